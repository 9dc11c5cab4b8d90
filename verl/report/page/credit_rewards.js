// Terms of the reward of each call: what `agent_system/reward/assign.py` makes of what arrived in an episode.
// Team and local rewards, act_reward, turn_rewards and penalties are read; team_reward, mixed_reward and reward
// of the record are not, so that they can be compared.
{
  const { at, gathered, isCommittedTree, metricAt, numbered, show, sum } = report.credit;

  const shapings = {
    default: (r) => r,
    turn_weighted: (r, place) => (r * place.turn) / place.turns,
    discount: (r, place) => r * place.gamma ** (place.turns - place.turn),
    hop_weighted: (r, place) => (r * place.hop) / place.hops,
    hop_discount: (r, place) => r * place.gamma ** (place.hops - place.hop),
    binary: (r, place) => (r > place.threshold ? 1 : 0),
    normalized: (r) => Math.min(Math.max(r, -1), 1),
  };

  // Several generations (rounds of a tool loop, a summary) are one call, with the number of the last one.
  const wholeCall = (c) => c.final_call ?? c.call;
  const isLast = (c) => (c.final_call ?? null) === null;

  // The team reward of every call of an episode by `reward.team_scope`.
  const teamRewards = (run, calls, scope) => {
    const { episode } = calls[0];
    if (calls.some((c) => c.fork_reward != null)) return calls.map((c) => c.fork_reward ?? 0);
    if (scope === "episode") return calls.map(() => at(run.episodes, "team_reward", episode));
    const turns = at(run.episodes, "turn_rewards", episode);
    if (!turns) return calls.map((c) => c.team_reward);
    if (scope === "turn") {
      const acts = new Map();
      for (const c of calls) acts.set(c.turn, (acts.get(c.turn) ?? 0) + (c.act_reward ?? 0));
      return calls.map((c) => acts.get(c.turn) + turns[c.turn - 1]);
    }
    const first = new Map(); // calls in the order in which they began
    for (const c of calls) if (!first.has(`${c.turn} ${wholeCall(c)}`)) first.set(`${c.turn} ${wholeCall(c)}`, c);
    const last = new Map([...first.values()].map((c) => [c.turn, wholeCall(c)])); // whose action ended its turn
    const ends = new Map(calls.map((c) => [`${c.turn} ${c.call}`, c]));
    return calls.map((c) => {
      const act = ends.get(`${c.turn} ${wholeCall(c)}`)?.act_reward ?? null;
      const step = turns[c.turn - 1];
      if (act === null) return step;
      return last.get(c.turn) === wholeCall(c) ? act + step : act;
    });
  };

  // Team and local rewards of the calls of an episode after `reward.propagation`.
  const propagated = (run, config, calls, team, hops) => {
    const key = (name, other) => config[`reward.propagation.${name}`] ?? other;
    const mode = key("mode", "none");
    const local = calls.map((c) => c.local_reward);
    if (mode === "none") return { team, local };
    const [low, high] = key("local_range", [0, 1]);
    const scaled = local.map((value) => Math.min(Math.max((value - low) / (high - low), 0), 1));
    const hopCount = Math.max(...hops);
    if (mode === "uniform") return { team, local: scaled };
    if (mode === "discounted") {
      return { team: team.map((r, i) => r * key("gamma", 0.9) ** (hopCount - hops[i])), local: scaled };
    }
    // theta and the fallback are of the whole step: its metrics have them
    const metric = (name) => metricAt(run, calls[0].step, `reward/propagation/${name}`);
    const fallback = key("min_pass_rate", 0.8) === 0 ? 0 : metric("fallback");
    const theta = metric("theta") ?? (key("theta_quantile", null) === null ? key("theta", 0.5) : undefined);
    if (theta === undefined || ![0, 1].includes(fallback) || calls[0].local_given === undefined) {
      return { team: calls.map((c) => c.team_reward), local: scaled };
    }
    // numbers of a report have nine digits, and a quantile may be one of the local rewards
    const bad = calls.map((c, i) => c.local_given && isLast(c) && scaled[i] < theta - 1e-8);
    const lastBad = Math.max(0, ...hops.filter((_, i) => bad[i]));
    return { team: team.map((r, i) => (fallback || hops[i] >= lastBad ? r : 0)), local: scaled };
  };

  // The terms of a call, the reward last; `how` says where its team reward is from.
  const termsOf = (config, c, team, local, shaping, place, how) => {
    const alpha = config["reward.alpha"] ?? 1;
    const mixed = alpha * team + local;
    const shaped = shapings[shaping](mixed, place);
    const terms = [{ name: `team (${how})`, value: team }, { name: "local", value: local }];
    terms.push({ name: alpha === 1 ? "team + local" : `${show(alpha)} team + local`, value: mixed });
    if (shaping !== "default") terms.push({ name: shaping, value: shaped });
    if (c.invalid_penalty) terms.push({ name: "invalid", value: -c.invalid_penalty });
    if (c.overlong_penalty) terms.push({ name: "overlong", value: -c.overlong_penalty });
    const reward = shaped - (c.invalid_penalty ?? 0) - (c.overlong_penalty ?? 0);
    // a reply that several episodes share has the mean of their rewards, of which the others are elsewhere
    const repeats = Object.keys(config).some((name) => name.startsWith("rollout.repeat_calls."));
    if (!repeats || reward === c.reward) return [...terms, { name: "reward", value: reward }];
    return [...terms, { name: "mean of equal replies", value: c.reward - reward }, { name: "reward", value: c.reward }];
  };

  /** The terms of every call of one episode: Map of row -> [{name, value}], the reward last. */
  report.credit.episodeTerms = (run, config, calls) => {
    const tree = calls.some((c) => c.fork_reward != null);
    const continued = tree && isCommittedTree(config);
    const terms = new Map();
    if (continued) {
      for (const c of calls.filter((one) => !one.committed)) {
        terms.set(c, termsOf(config, c, c.fork_reward ?? 0, c.local_reward, "default", {}, "own fork"));
      }
    }
    const originals = continued ? calls.filter((c) => c.committed) : calls;
    if (!originals.length) return terms;
    const played = continued ? originals.map((c) => ({ ...c, fork_reward: null })) : originals;
    const hops = numbered(played.map((c) => [c.turn, wholeCall(c)])).map((n) => n + 1);
    const scope = config["reward.team_scope"] ?? "episode";
    const mode = config["reward.propagation.mode"] ?? "none";
    const credited = propagated(run, config, played, teamRewards(run, played, scope), hops);
    const how = tree && !continued ? "own fork" : mode === "none" ? scope : mode;
    const turns = at(run.episodes, "turns", calls[0].episode);
    const by = config["reward.shaping_by"];
    originals.forEach((c, i) => {
      const place = {
        turn: c.turn, turns, hop: hops[i], hops: Math.max(...hops),
        gamma: by ?? config["reward.shaping_gamma"] ?? 0.9,
        threshold: by ?? config["reward.shaping_threshold"] ?? 0.5,
      };
      const shaping = config["reward.shaping"] ?? "default";
      terms.set(c, termsOf(config, c, credited.team[i], credited.local[i], shaping, place, how));
    });
    return terms;
  };
}
