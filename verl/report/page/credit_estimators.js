// Advantage estimators on rows of records: `verl/trainer/ppo/core_algos/estimators`, written a second time.
//
// An estimator gets a part: `rows` of agents with equal settings, `settings`, the `groups` and `scores` of the
// rows, `weights` of rows in statistics (undefined: equal) and whether rows of a trajectory are averaged first
// (`overTrajectories`). It sets of each row `advantage` (mean over its tokens), `abs` (mean size, where tokens
// differ), `baseline`, `spread` (standard deviation of the group), `groupSize`, and for some `parts`, `whitening`
// and `factor`. It throws Unrecorded for what no record has.
{
  const { gathered, mean, sum } = report.credit;
  const { fround } = Math; // token rewards are float32: values that differ below it are equal there
  const EPSILON = 1e-6;

  /** What of the records is missing for an advantage, as the message. */
  class Unrecorded extends Error {}

  const counts = (r) => r.valid && (r.weighed ?? 1) > 0;

  // Per group: count, mean, std (unbiased), constant and weight of its units that are valid and weigh anything.
  // With `copies` a weight is a number of copies of its unit.
  const groupStats = (units, copies = false) => {
    const stats = new Map();
    for (const [, members] of gathered(units, (u) => u.group)) {
      const some = members.filter((u) => u.valid && (u.weight ?? 1) > 0);
      // sorted, so that equal scores have an equal mean in any order
      some.sort((a, b) => a.score - b.score || (a.weight ?? 1) - (b.weight ?? 1));
      const w = some.map((u) => u.weight ?? 1);
      const weight = sum(w);
      const constant = some.every((u) => u.score === some[0].score);
      const average = constant ? some[0]?.score ?? 0 : sum(some.map((u, i) => u.score * w[i])) / weight;
      const square = sum(some.map((u, i) => w[i] * (u.score - average) ** 2));
      const freedom = weight - (copies ? 1 : sum(w.map((x) => x * x)) / weight);
      const std = constant ? 0 : Math.sqrt(square / freedom);
      stats.set(members[0].group, { count: some.length, mean: average, std, constant, weight });
    }
    return stats;
  };

  // What is compared: rows, or trajectories with the mean score of their rows.
  const unitsOf = (part) => {
    const rows = part.rows.map((r, i) => ({
      score: part.scores[i], valid: r.valid, group: part.groups[i], weight: part.weights?.[i], rows: [r],
    }));
    if (!part.overTrajectories) return rows;
    return [...gathered(rows, (u) => [u.group, u.rows[0].row.traj_uid]).values()].map((members) => {
      const { mean: score, count } = groupStats(members).get(members[0].group);
      return { score, valid: count > 0, group: members[0].group, rows: members.map((u) => u.rows[0]) };
    });
  };

  // 0 in a group of equal scores, the value of `singleton` in a group of one, else `value()`.
  const unlessSilent = (unit, s, singleton, value) => {
    if (s.count === 1) return singleton === "raw" ? unit.score : 0;
    return s.constant ? 0 : value();
  };

  const relative = (unit, s, byStd, singleton) =>
    unlessSilent(unit, s, singleton, () => (unit.score - s.mean) / (byStd ? s.std + EPSILON : 1));

  // Give `value(unit, statistics of its group)` to the rows of each unit.
  const spread = (part, value, { units = unitsOf(part), baseline = (u, s) => s.mean, copies = false } = {}) => {
    const stats = groupStats(units, copies);
    for (const unit of units) {
      const s = stats.get(unit.group);
      const silent = !unit.valid || (s.constant && !(s.count === 1 && part.settings.singleton === "raw"));
      for (const r of unit.rows) {
        r.advantage = counts(r) ? value(unit, s) : 0;
        Object.assign(r, { groupSize: s.count, baseline: baseline(unit, s), spread: s.std, silent });
      }
    }
  };

  // Zero mean and unit variance over the entries of each policy; `entries(r, f)` calls f(value, number of them).
  const whiten = (part, entries) => {
    const weight = (r) => (r.valid ? r.weighed ?? 1 : 0);
    for (const [, rows] of gathered(part.rows, (r) => r.policy)) {
      const some = rows.filter((r) => weight(r) > 0);
      const values = new Set(); // at most two, to know whether all are equal
      let total = 0;
      let squares = 0;
      let weighted = 0;
      const each = (f) => some.forEach((r) => entries(r, (value, n) => f(value, n, weight(r))));
      each((value, n, w) => {
        if (values.size < 2) values.add(value);
        total += w * n;
        squares += w * w * n;
        weighted += w * n * value;
      });
      const average = total ? weighted / total : 0;
      let square = 0;
      each((value, n, w) => { square += w * n * (value - average) ** 2; });
      const freedom = total - squares / (total || 1);
      const std = Math.sqrt(square / (freedom > 0 ? freedom : 1) + 1e-8);
      for (const r of rows) {
        Object.assign(r, { advantage: 0, abs: 0, whitening: { mean: average, std } });
        let size = 0;
        if (weight(r) > 0 && values.size > 1) entries(r, (value, n) => {
          size += n;
          r.advantage += (n * (value - average)) / std;
          r.abs += (n * Math.abs(value - average)) / std;
        });
        Object.assign(r, { advantage: r.advantage / (size || 1), abs: r.abs / (size || 1) });
      }
    }
  };

  const silence = (rows) => rows.forEach((r) => Object.assign(r, { advantage: 0, abs: 0 }));

  // Calls f(reward to go, number of tokens with it) for the kept tokens of a row, the last one first.
  const rewardsToGo = (r, gamma, f) => {
    const onTokens = r.row.token_rewards;
    if (r.kl) throw new Unrecorded("the KL in the reward of each token is in no file");
    if (onTokens === true) throw new Unrecorded("the rewards of single tokens are in the texts alone");
    if (!onTokens?.length && gamma === 1) {
      f(fround(r.reward), r.tokens);
      return;
    }
    if (onTokens?.length && onTokens.length !== r.tokens) {
      throw new Unrecorded("which of the tokens with a reward were masked or rejected is in no file");
    }
    const onLast = fround(r.reward - sum(onTokens ?? []));
    let later = 0;
    for (let t = r.tokens - 1; t >= 0; t -= 1) {
      const reward = fround((onTokens?.[t] ?? 0) + (t === r.tokens - 1 ? onLast : 0));
      later = fround(reward + fround(fround(gamma) * later));
      f(later, 1);
    }
  };

  // Calls f(rows of a call, rows of the agent's next call) along each agent's calls in an episode, the last one
  // first. A call that was rejected as a whole is in the chain if none of its candidates is left.
  const alongChains = (part, f) => {
    const replied = part.rows.filter((r) => r.valid || r.row.response_tokens > 0);
    for (const [, chain] of gathered(replied, (r) => [r.row.traj_uid, r.row.agent])) {
      const calls = [...gathered(chain, (r) => [r.row.turn, r.row.call]).values()].map((rows) => {
        const left = rows.filter((r) => r.valid);
        return left.length ? left : rows;
      });
      calls.sort(([a], [b]) => a.row.turn - b.row.turn || a.row.call - b.row.call);
      for (let i = calls.length - 1; i >= 0; i -= 1) f(calls[i], calls[i + 1] ?? []);
    }
  };

  // Columns of a batch that are rewards for GDPO; any other name is a named term of reward functions.
  const FIELDS = new Set([
    "team_reward", "local_reward", "step_reward", "mixed_reward", "candidate_reward", "invalid_penalty",
    "overlong_penalty", "reward", "valid", "turn", "call", "depth", "candidate", "committed", "version", "masked",
  ]);

  const namedReward = (r, name) => {
    const { row } = r;
    if (FIELDS.has(name)) return Number(row[name] ?? 0);
    if (name === "response_clipped") return Number(row.stop_reason === "length");
    if (name === "prompt_clipped") return Number(row.dropped_context > 0);
    const terms = [row.reward_terms, r.finalTerms, r.episodeTerms].find((one) => one && name in one);
    if (!terms) throw new Unrecorded(`${name} of algorithm.gdpo_reward_keys is in no record`);
    return terms[name];
  };

  const grpo = (part) => {
    const { norm_adv_by_std_in_grpo: byStd, singleton } = part.settings;
    spread(part, (u, s) => relative(u, s, byStd, singleton));
  };

  const rloo = (part) => {
    const others = (u, s) => s.weight - (u.weight ?? 1);
    spread(
      part,
      (u, s) => unlessSilent(u, s, part.settings.singleton, () => ((u.score - s.mean) * s.weight) / others(u, s)),
      { baseline: (u, s) => (s.count < 2 ? s.mean : (s.mean * s.weight - u.score * (u.weight ?? 1)) / others(u, s)) },
    );
  };

  // The baseline is the mean weighted by lengths.
  const opo = (part) => {
    const units = unitsOf(part);
    const length = (u) => sum(u.rows.map((r) => r.tokens * (r.weighed ?? 1)));
    const stats = groupStats(units.map((u) => ({ ...u, weight: length(u) })));
    const baseline = (u) => stats.get(u.group).mean;
    const value = (u, s) => unlessSilent(u, s, part.settings.singleton, () => u.score - baseline(u));
    spread(part, value, { units, baseline });
  };

  const gpg = (part) => {
    spread(part, (u, s) => relative(u, s, false, part.settings.singleton));
    for (const [, rows] of gathered(part.rows, (r) => r.policy)) {
      const weight = (some) => sum(some.map((r) => (r.valid ? r.weighed ?? 1 : 0)));
      const signal = weight(rows.filter((r) => r.score !== 0));
      for (const r of rows) {
        r.factor = signal ? weight(rows) / signal : 1;
        r.advantage *= r.factor;
      }
    }
  };

  // Only the best of a group has an advantage, over the second best.
  const grpoPassK = (part) => {
    const { norm_adv_by_std_in_grpo: byStd, singleton } = part.settings;
    const units = unitsOf(part);
    const best = new Map();
    const second = new Map();
    for (const [, members] of gathered(units.filter((u) => u.valid), (u) => u.group)) {
      const ordered = members.sort((a, b) => a.score - b.score);
      best.set(ordered.at(-1), ordered.at(-1).score - (ordered.at(-2) ?? ordered[0]).score);
      second.set(ordered[0].group, (ordered.at(-2) ?? ordered[0]).score);
    }
    const value = (u, s) =>
      unlessSilent(u, s, singleton, () => (best.get(u) ?? 0) / (byStd ? s.std + EPSILON : 1));
    spread(part, value, { units, baseline: (u) => second.get(u.group) ?? 0 });
  };

  const reinforceBaseline = (part) => {
    spread(part, (u, s) => relative(u, s, false, part.settings.singleton));
    const values = new Map(part.rows.map((r) => [r, fround(r.advantage)]));
    whiten(part, (r, f) => f(values.get(r), r.tokens));
    silence(part.rows.filter((r) => r.silent));
  };

  const reinforce = (part) => whiten(part, (r, f) => rewardsToGo(r, part.settings.gamma, f));

  // Each reward by its own statistics, then their sum whitened.
  const gdpo = (part) => {
    const { norm_adv_by_std_in_grpo: byStd, singleton, gdpo_reward_keys: names } = part.settings;
    const factors = part.settings.gdpo_reward_weights ?? names.map(() => 1);
    for (const r of part.rows) Object.assign(r, { parts: [], total: 0, allSilent: true });
    names.forEach((name, k) => {
      const scores = part.rows.map((r) => (r.valid ? namedReward(r, name) : 0));
      spread({ ...part, scores }, (u, s) => relative(u, s, byStd, singleton));
      for (const r of part.rows) {
        const value = factors[k] * r.advantage;
        r.total += value;
        r.allSilent &&= r.silent || factors[k] === 0;
        r.parts.push({ name, value, baseline: r.baseline, spread: r.spread, groupSize: r.groupSize });
      }
    });
    whiten(part, (r, f) => f(fround(r.total), r.tokens));
    silence(part.rows.filter((r) => r.allSilent));
    for (const r of part.rows) Object.assign(r, { baseline: null, spread: null });
  };

  // The episode in its group, and the step among steps from an equal state.
  const gigpo = (part) => {
    const { settings } = part;
    if (settings["gigpo.enable_similarity"]) {
      throw new Unrecorded("states that are joined by the similarity of their texts are not compared here");
    }
    if (part.rows.some((r) => r.row.anchor == null || r.row.step_reward == null)) {
      throw new Unrecorded("the records have no anchor or no step_reward");
    }
    const byStd = settings["gigpo.mode"] === "mean_std_norm";
    spread(part, (u, s) => relative(u, s, byStd, settings.singleton));
    const returns = new Map();
    alongChains(part, (rows, next) => {
      const later = mean(next.map((r) => returns.get(r)));
      for (const r of rows) returns.set(r, r.row.step_reward + settings.gamma * later);
    });
    const steps = part.rows.map((r, i) => ({
      score: returns.get(r) ?? 0, valid: r.valid, weight: part.weights?.[i],
      group: `${part.groups[i]} ${r.row.anchor}`,
    }));
    const states = groupStats(steps);
    part.rows.forEach((r, i) => {
      const s = states.get(steps[i].group);
      const w = settings["gigpo.step_advantage_w"];
      const value = counts(r) ? w * relative(steps[i], s, byStd, "zero") : 0;
      r.parts = [
        { name: "episode", value: r.advantage, baseline: r.baseline, spread: r.spread, groupSize: r.groupSize },
        { name: "step", value, score: steps[i].score, baseline: s.mean, spread: s.std, groupSize: s.count },
      ];
      r.advantage += value;
    });
  };

  const remax = (part) => {
    for (const r of part.rows) {
      if (r.greedy == null) throw new Unrecorded("the step has no greedy episode, and no baseline in credit/");
      Object.assign(r, { baseline: r.greedy, advantage: 0, abs: 0 });
      if (r.valid) rewardsToGo(r, 1, (value, n) => {
        r.advantage += (n * (value - fround(r.greedy))) / r.tokens;
        r.abs += (n * Math.abs(value - fround(r.greedy))) / r.tokens;
      });
    }
  };

  // A moving average over steps: it starts at 0, and credit/ has it later on.
  const rae = (part) => {
    const { "rae.decay": decay, "rae.order": order } = part.settings;
    for (const [, rows] of gathered(part.rows, (r) => [r.row.data_source, r.row.agent])) {
      const alone = { ...part, rows, groups: rows.map(() => 0), scores: rows.map((r) => r.score) };
      const units = unitsOf({ ...alone, weights: part.weights && rows.map((r) => r.weighed) });
      const some = units.filter((u) => u.valid && (u.weight ?? 1) > 0);
      const first = order === "update_first" ? (1 - decay ** some.length) * mean(some.map((u) => u.score)) : 0;
      for (const r of rows) {
        r.baseline = r.credit?.baseline ?? (r.row.step === 1 ? first : null);
        if (r.baseline === null) throw new Unrecorded("the moving average of the role is in credit/ alone");
        r.advantage = counts(r) ? r.score - r.baseline : 0;
        r.groupSize = some.length;
      }
    }
  };

  // Episodes of the main agent, and calls of sub-agents that are drawn to a number an episode.
  const mGrpo = (part) => {
    const { "m_grpo.main_agent": main, "m_grpo.sub_calls": calls } = part.settings;
    const isMain = (r) => r.row.agent === main;
    for (const r of part.rows) r.weighed = Number(r.valid);
    const subs = gathered(part.rows.filter((r) => r.valid && !isMain(r)), (r) => [r.row.traj_uid, r.row.agent]);
    for (const [, rows] of subs) {
      const drawn = calls % rows.length !== 0; // else every call counts equally often
      for (const r of rows) {
        if (drawn && r.credit?.weight == null) throw new Unrecorded("which calls were drawn is in credit/ alone");
        r.weighed = drawn ? r.credit.weight : calls / rows.length;
      }
    }
    const kind = (chosen, name, options) => {
      const some = part.rows.map((r, i) => i).filter((i) => chosen(part.rows[i]));
      const rows = some.map((i) => part.rows[i]);
      const groups = some.map((i) => `${part.groups[i]} ${name}`);
      return unitsOf({ rows, groups, scores: rows.map((r) => r.score), ...options(rows) });
    };
    const units = [
      ...kind(isMain, "episodes", () => ({ overTrajectories: true })),
      ...kind((r) => !isMain(r), "calls", (rows) => ({ weights: rows.map((r) => r.weighed) })),
    ];
    const { norm_adv_by_std_in_grpo: byStd, singleton } = part.settings;
    spread(part, (u, s) => relative(u, s, byStd, singleton), { units, copies: true });
    for (const r of part.rows) r.weight = r.weighed;
  };

  // At level turn: an action is a reply, its value that of its first token.
  const gae = (part) => {
    const { gamma, lam, "gae.level": level } = part.settings;
    if (level !== "turn") throw new Unrecorded("it needs the critic's value of every token");
    if (part.rows.some((r) => r.credit?.baseline == null)) {
      throw new Unrecorded("the critic's values of first tokens are in credit/ alone");
    }
    const sums = new Map();
    alongChains(part, (rows, next) => {
      const value = mean(next.map((r) => r.credit.baseline));
      const later = mean(next.map((r) => sums.get(r)));
      for (const r of rows) {
        // of several generations of a call the last one has its reward, less its own penalties the others
        const penalties = (r.row.invalid_penalty ?? 0) + (r.row.overlong_penalty ?? 0);
        const ends = (r.row.final_call ?? null) === null;
        const reward = ends ? r.score : fround(r.score - fround(r.reward + penalties));
        r.baseline = r.credit.baseline;
        sums.set(r, reward + gamma * value - r.baseline + gamma * lam * later);
      }
    });
    whiten(part, (r, f) => f(fround(sums.get(r)), 1));
  };

  const ESTIMATORS = {
    grpo, rloo, opo, gpg, gdpo, gigpo, remax, rae, gae, grpo_passk: grpoPassK, m_grpo: mGrpo,
    reinforce_plus_plus: reinforce, reinforce_plus_plus_baseline: reinforceBaseline,
  };
  const ofTokens = "it needs the probabilities of every token";
  const IMPOSSIBLE = { optimal_token_baseline: ofTokens, tir_optimal_token_baseline: ofTokens };

  /** Set the advantages of a part. Throws Unrecorded. */
  const estimate = (part) => {
    const name = part.settings.adv_estimator;
    if (IMPOSSIBLE[name]) throw new Unrecorded(IMPOSSIBLE[name]);
    if (!Object.hasOwn(ESTIMATORS, name)) throw new Unrecorded(`${name} is an estimator of a plug-in`);
    ESTIMATORS[name](part);
  };

  Object.assign(report.credit, { EPSILON, Unrecorded, estimate, groupStats, relative });
}
