// The way from a reward to an agent's advantage, computed again from the records of a run: a second
// implementation beside `agent_system/reward` and `verl/trainer/ppo/credit`, so that the page shows the arithmetic
// of every call and marks what differs from what was trained. No DOM. Rewards are in credit_rewards.js,
// estimators in credit_estimators.js; this file has rows, settings and results, and comes before them.
//
//   report.creditPath(run, stepRows, settings) -> a result for each row; null for rows that were not trained
//   report.creditChecks(run, stepRows, results) -> the results beside the metrics of a step without credit/
//
// stepRows: every call of the training episodes of a step (`report.stepRows`); settings: run.config. A result:
//   terms             [{name, value}] on the way to the reward, which is the last one
//   reward, kl, score the reward of the record; what the KL takes from it; their difference, which is compared
//   group, groupSize  number of the group in the step; how many units were compared
//   baseline, spread  what is subtracted; standard deviation of the group (null: there is none)
//   parts             [{name, value, ...}] of an advantage that is a sum: steps, candidates, named rewards
//   whitening         {mean, std} of the policy's tokens; `factor`: of gpg
//   advantage, tokens mean over the tokens that are trained, and their number
//   weight            of the row in the loss, if weights differ
//   recorded, error   the advantage in credit/ and the difference from it, rewardError that of the reward
//   marked            whether a difference is above the tolerance
//   why               what is missing for the advantage; ""
//   line              all of it in one text
globalThis.report ??= {};
{
  const TOLERANCE = 1e-5;
  const GREEDY = "/greedy"; // ends the group of a greedy episode
  // Keys of `algorithm` that an agent may have a value of its own for, with their defaults.
  const KEYS = {
    adv_estimator: "grpo", gamma: 1, lam: 1, norm_adv_by_std_in_grpo: true, gdpo_reward_keys: null,
    gdpo_reward_weights: null, group_by_agent_id: true, group_by: null, statistics_over: "auto",
    call_weighting: "sample", singleton: "zero", "gae.level": "token", "gigpo.step_advantage_w": 1,
    "gigpo.mode": "mean_norm", "gigpo.enable_similarity": false, "rae.decay": 0.95,
    "rae.order": "subtract_first", "m_grpo.main_agent": null, "m_grpo.sub_calls": 4,
  };
  // Estimators that compare no groups; those that never average trajectories; those that see the whole batch.
  const UNGROUPED = new Set(["rae", "gae", "remax", "reinforce_plus_plus"]);
  const ROWS_ONLY = new Set(["m_grpo", "gae", "remax", "reinforce_plus_plus"]);
  const WHOLE_BATCH = new Set(["gae", "gdpo", "gpg", "rae", "reinforce_plus_plus", "reinforce_plus_plus_baseline"]);

  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const mean = (values) => (values.length ? sum(values) / values.length : 0);
  const show = (value) => (Number.isFinite(value) ? String(Number(value.toPrecision(4))) : "?");
  const slug = (name) => name.toLowerCase().replace(/[^a-z0-9]+/g, "_").replace(/^_+|_+$/g, "");

  // Value of a column, which may be {"all": value}.
  const at = (table, name, i) => {
    const column = table?.[name];
    if (column === undefined || column === null) return undefined;
    return "all" in column ? column.all : column[i];
  };

  const textOf = (key) => (typeof key === "string" ? key : JSON.stringify(key));

  const gathered = (items, keyOf) => {
    const lists = new Map();
    for (const item of items) {
      const key = textOf(keyOf(item));
      if (!lists.has(key)) lists.set(key, []);
      lists.get(key).push(item);
    }
    return lists;
  };

  // Numbers from 0 in the order of appearance.
  const numbered = (keys) => {
    const numbers = new Map();
    return keys.map(textOf).map((key) => {
      if (!numbers.has(key)) numbers.set(key, numbers.size);
      return numbers.get(key);
    });
  };

  // Nested keys as dotted ones; lists are values.
  const flat = (value, prefix = "", out = {}) => {
    for (const [key, inner] of Object.entries(value ?? {})) {
      if (inner && typeof inner === "object" && !Array.isArray(inner)) flat(inner, `${prefix}${key}.`, out);
      else out[prefix + key] = inner;
    }
    return out;
  };

  const metricAt = (run, step, key) => run.metrics?.[key]?.[run.steps?.indexOf(step)] ?? undefined;
  const isCommittedTree = (config) =>
    config["rollout.sampling"] === "tree" && config["rollout.tree.returns"] === "committed";

  report.credit = { at, gathered, isCommittedTree, mean, metricAt, numbered, show, sum };

  // ------------------------------------------------------------------------------------- settings

  const settingsOf = (config, agent) => {
    const prefix = (name) => `algorithm.per_agent.${name}.`;
    const named = Object.keys(KEYS).some((key) => prefix(agent) + key in config);
    const own = prefix(named ? agent : slug(agent));
    const value = (key) => (own + key in config ? config[own + key] : config[`algorithm.${key}`] ?? KEYS[key]);
    const settings = Object.fromEntries(Object.keys(KEYS).map((key) => [key, value(key)]));
    settings.adv_estimator = settings.adv_estimator.replace(/_vectorized$/, "");
    settings.fields = settings.group_by ?? (settings.group_by_agent_id ? ["uid", "agent_id"] : ["uid"]);
    return settings;
  };

  // The columns by which the calls of an agent are in one group, those of the agent left out.
  const OF_AGENT = new Set(["agent_id", "policy_id", "wg_id"]);
  report.credit.groupFields = (config, agent) => {
    const settings = settingsOf(config ?? {}, agent);
    return UNGROUPED.has(settings.adv_estimator) ? ["uid"] : settings.fields.filter((name) => !OF_AGENT.has(name));
  };

  // What no file has of a step, because of its settings; "" if nothing is missing.
  const missing = (config, settings, hasCredit) => {
    const correction = (name) => config[`algorithm.rollout_correction.${name}`] ?? null;
    const rejects = !correction("bypass_mode") && correction("rollout_rs") !== null;
    if (rejects && correction("m2po_tau") !== null) return "which tokens were left before M2PO masked is in no file";
    const alone = (what) => `${what} in credit/ alone, which this step does not have`;
    if (hasCredit) return "";
    if (config["algorithm.use_kl_in_reward"] ?? config["algorithm.kl_ctrl.kl_coef"] > 0) return alone("the KL in the reward is");
    if (rejects) return alone("the tokens that were rejected are");
    const dropped = config["algorithm.filter_groups.enable"] ?? config["algorithm.filter_groups.metric"];
    const filters = dropped && WHOLE_BATCH.has(settings.adv_estimator);
    return filters ? alone("the groups that were trained are") : "";
  };

  // ----------------------------------------------------------------------------------------- rows

  const creditOf = (run, step) => run.credit?.[step]?.columns ?? run.credit?.[step];
  const callKey = (row) => JSON.stringify([row.traj_uid, row.turn, row.call]);

  // The rows that were trained, each with its entry of credit/.
  const trainedRows = (run, config, stepRows) => {
    const credit = creditOf(run, stepRows[0]?.step);
    const key = (traj, turn, call, candidate) => JSON.stringify([traj, turn, call, candidate ?? 0]);
    const places = new Map();
    for (let i = 0; i < (credit?.traj_uid?.length ?? 0); i += 1) {
      places.set(key(...["traj_uid", "turn", "call", "candidate"].map((name) => at(credit, name, i))), i);
    }
    const agents = new Map((run.agents ?? []).map((agent) => [agent.agent, agent]));
    const finals = new Map(stepRows.filter((c) => (c.committed ?? true) && !c.unheard).map((c) => [callKey(c), c]));
    // M2PO masks tokens after the advantages of all have been computed
    const masksLater = (config["algorithm.rollout_correction.m2po_tau"] ?? null) !== null;
    return stepRows.flatMap((row, place) => {
      const i = places.get(key(row.traj_uid, row.turn, row.call, row.candidate));
      const trained = row.trained && !row.unheard && !row.failure && !row.left_out && !row.uid.endsWith(GREEDY);
      if (!trained || (credit && i === undefined)) return [];
      const own = credit && Object.fromEntries(Object.keys(credit).map((name) => [name, at(credit, name, i)]));
      const tokens = (masksLater ? null : own?.tokens) ?? row.response_tokens;
      const kl = own?.kl ?? 0;
      return [{
        row, place, tokens, kl, credit: own, valid: tokens > 0, reward: row.reward,
        score: Math.fround(row.reward) - kl,
        policy: own?.policy_id ?? agents.get(row.agent)?.policy ?? row.agent,
        workers: agents.get(row.agent)?.group ?? "",
        finalTerms: finals.get(callKey({ ...row, call: row.final_call }))?.reward_terms,
        episodeTerms: at(run.episodes, "reward_terms", row.episode),
      }];
    });
  };

  const fieldOf = (r, name) => {
    const { row } = r;
    const renamed = {
      agent_id: row.agent, policy_id: r.policy, wg_id: r.workers, depth: row.depth ?? 0, design: row.design ?? "",
      candidate: row.candidate ?? 0,
    };
    return name in renamed ? renamed[name] : row[name];
  };

  // Baselines of ReMax: a greedy reply to the call in a tree of single steps, else the greedy episode of the task.
  const addGreedy = (run, config, stepRows, rows) => {
    const groupOf = (c) => JSON.stringify([c.uid.replace(/\/greedy$/, ""), c.agent]);
    const means = (calls) => {
      const lists = gathered(calls.filter((c) => (c.committed ?? true)), groupOf);
      return new Map([...lists.values()].map((list) => [groupOf(list[0]), mean(list.map((c) => c.reward))]));
    };
    const played = stepRows.filter((c) => c.uid.endsWith(GREEDY) && !c.failure && !c.unheard);
    const called = means(played.filter((c) => c.trained));
    const sampled = means(rows.map((r) => r.row));
    const alpha = config["reward.alpha"] ?? 1;
    const team = new Map(); // of every greedy episode that did not fail, also of one without calls
    for (let i = 0; i < (run.episodes.length ?? 0); i += 1) {
      const of = (name) => at(run.episodes, name, i);
      const isOfStep = of("step") === stepRows[0].step && of("split") === "train";
      if (isOfStep && !of("failure") && of("uid").endsWith(GREEDY)) team.set(of("uid"), alpha * of("team_reward"));
    }
    const calls = gathered(stepRows, callKey);
    const singleSteps = config["rollout.sampling"] === "tree" && !isCommittedTree(config);
    const withGreedy = new Set([...team.keys(), ...stepRows.map((c) => c.uid).filter((uid) => uid.endsWith(GREEDY))]);
    for (const r of rows) {
      const group = groupOf(r.row);
      const uid = r.row.uid + GREEDY;
      if (singleSteps) {
        const all = calls.get(callKey(r.row));
        const greedy = all.filter((c) => c.greedy);
        r.greedy = mean((greedy.length ? greedy : all).map((c) => c.reward));
      } else if (withGreedy.has(uid)) r.greedy = called.get(group) ?? team.get(uid) ?? sampled.get(group);
      else r.greedy = r.credit?.baseline;
    }
  };

  // ----------------------------------------------------------------------------------- advantages

  // Marks rows whose group has trained rows that no file of trajectories has (`trainer.log_trajectories`).
  const markIncomplete = (credit, rows, settingsBy) => {
    if (!credit?.group) return;
    const name = (agent) => settingsBy.get(agent)?.adv_estimator;
    // an estimator that sees the whole batch needs every row of the agents with it
    const groupOf = (agent, group) => (WHOLE_BATCH.has(name(agent)) ? `all ${name(agent)}` : group);
    const count = (keys) => {
      const counts = new Map();
      for (const key of keys) counts.set(key, (counts.get(key) ?? 0) + 1);
      return counts;
    };
    const trained = count(credit.group.map((group, i) => groupOf(at(credit, "agent_id", i), group)));
    const present = count(rows.map((r) => groupOf(r.row.agent, r.credit.group)));
    for (const r of rows.filter((one) => !["rae", "remax"].includes(name(one.row.agent)))) {
      const key = groupOf(r.row.agent, r.credit.group);
      const absent = trained.get(key) - present.get(key);
      if (absent > 0) r.why = `${absent} of ${trained.get(key)} rows that it is compared with are not in trajectories/`;
    }
  };

  // Advantages of rows of agents with equal settings.
  const estimatePart = (config, rows, settings, hasCredit) => {
    const { Unrecorded, estimate } = report.credit;
    const placed = !settings.fields.includes("wg_id") || rows.every((r) => r.workers);
    const why = placed ? missing(config, settings, hasCredit) : "the worker groups of agents are in run.json alone";
    if (why) throw new Unrecorded(why);
    const name = settings.adv_estimator;
    const isTask = settings.fields.length === 1 && settings.fields[0] === "uid";
    const { statistics_over: mode } = settings;
    const over = mode === "auto" ? isTask || UNGROUPED.has(name) : mode === "trajectories";
    if (settings.call_weighting === "trajectory") {
      for (const [, chain] of gathered(rows, (r) => [r.row.traj_uid, r.row.agent])) {
        const calls = chain.filter((r) => r.valid).length;
        for (const r of chain) r.weight = r.valid ? 1 / calls : 0;
      }
      // in the statistics too; ReMax has none
      if (name !== "remax") for (const r of rows) r.weighed = r.weight;
    }
    estimate({
      rows, settings, overTrajectories: over && !ROWS_ONLY.has(name),
      groups: numbered(rows.map((r) => settings.fields.map((field) => fieldOf(r, field)))),
      scores: rows.map((r) => (r.valid ? r.score : 0)),
      weights: rows.some((r) => r.weighed !== undefined) ? rows.map((r) => r.weighed) : undefined,
    });
  };

  // Adds to a tree with committed returns the comparison of each call's candidates by their own action.
  const compareCandidates = (config, rows, settings) => {
    const { groupStats, relative } = report.credit;
    const w = config["rollout.tree.candidate_weight"] ?? 1;
    const units = rows.map((r) => ({
      score: (r.row.candidate_reward ?? 0) - (r.row.invalid_penalty ?? 0) - (r.row.overlong_penalty ?? 0) - r.kl,
      valid: r.valid, group: callKey(r.row),
    }));
    const stats = groupStats(units);
    const committed = new Map(rows.filter((r) => r.row.committed).map((r) => [callKey(r.row), r]));
    const weighs = w === 0 || rows.some((r) => r.weight !== undefined);
    rows.forEach((r, i) => {
      const s = stats.get(units[i].group);
      const value = r.valid ? w * relative(units[i], s, settings.norm_adv_by_std_in_grpo, "zero") : 0;
      const { score } = units[i];
      const own = { name: "candidates", value, score, baseline: s.mean, spread: s.std, groupSize: s.count };
      const { baseline, spread, groupSize } = r;
      const episode = [{ name: "episode", value: r.advantage, baseline, spread, groupSize }];
      r.parts = [...(r.row.committed && !r.why ? r.parts ?? episode : []), own];
      // tokens that differ have a mean size of their own, which that of a sum does not follow from
      r.abs = r.abs === undefined || r.abs === Math.abs(r.advantage) ? undefined : null;
      r.advantage = (r.row.committed ? r.advantage : 0) + value;
      if (!weighs) return;
      r.weight = w === 0 && !r.row.committed ? 0 : committed.get(callKey(r.row))?.weight ?? 1;
    });
  };

  // -------------------------------------------------------------------------------------- results

  const lineOf = (r, terms) => {
    const way = terms.slice(0, -1).map(({ name, value }) => `${name} ${show(value)}`).join(", ");
    let text = `${way} = reward ${show(r.reward)}`;
    if (r.kl) text += ` - KL ${show(r.kl)} = ${show(r.score)}`;
    if (r.why) return `${text}; the advantage cannot be computed again: ${r.why}`;
    if (r.parts) text += r.parts.map(({ name, value }) => `; ${name} ${show(value)}`).join("");
    else if (r.baseline != null) text += ` - baseline ${show(r.baseline)}`;
    if (!r.parts && r.spread != null) text += ` in a group of ${r.groupSize} with spread ${show(r.spread)}`;
    if (r.factor !== undefined) text += `, times ${show(r.factor)}`;
    if (r.whitening) text += `, whitened (mean ${show(r.whitening.mean)}, std ${show(r.whitening.std)})`;
    text += ` -> advantage ${show(r.advantage)}`;
    if (r.weight !== undefined) text += ` x weight ${show(r.weight)}`;
    return `${text} on ${r.tokens} tokens`;
  };

  const resultOf = (r, terms) => {
    const why = r.why ?? "";
    const rewardError = Math.abs(terms.at(-1).value - r.reward);
    const recorded = (r.valid && r.credit?.tokens !== 0 ? r.credit?.advantage : null) ?? null;
    const errors = recorded === null || why ? [] : [Math.abs(r.advantage - recorded)];
    if (errors.length && r.abs != null && r.credit.abs != null) errors.push(Math.abs(r.abs - r.credit.abs));
    const error = errors.length ? Math.max(...errors) : null;
    // sums of float32 over tokens differ in their last bits, which a small spread makes larger
    const summed = r.kl !== 0 || Boolean(r.row.token_rewards);
    const bits = summed ? (4e-7 * Math.max(1, Math.abs(r.score))) / ((r.spread ?? 1) + report.credit.EPSILON) : 0;
    const differs = (value, size, more) => value > TOLERANCE * Math.max(1, Math.abs(size)) + more;
    const marked = (error !== null && differs(error, recorded, bits)) || differs(rewardError, r.reward, 0);
    const { reward, kl, score, group, groupSize, baseline, spread, parts, whitening, factor, weight, tokens } = r;
    return {
      terms, reward, kl, score, group, groupSize: groupSize ?? null, baseline: baseline ?? null, spread: spread ?? null,
      parts, whitening, factor, advantage: why ? null : r.advantage, abs: why ? null : r.abs === undefined ? Math.abs(r.advantage) : r.abs,
      weight, tokens, recorded, error, rewardError, marked, why, line: lineOf(r, terms),
    };
  };

  report.creditPath = function (run, stepRows, settings) {
    const config = flat(settings);
    const terms = new Map();
    const heard = stepRows.filter((c) => !c.unheard);
    for (const [, calls] of gathered(heard, (c) => c.traj_uid)) {
      for (const [row, list] of report.credit.episodeTerms(run, config, calls)) terms.set(row, list);
    }
    const rows = trainedRows(run, config, stepRows);
    const agents = [...new Set(rows.map((r) => r.row.agent))];
    const settingsBy = new Map(agents.map((agent) => [agent, settingsOf(config, agent)]));
    const settingsKeys = new Map([...settingsBy].map(([agent, own]) => [agent, JSON.stringify(own)]));
    const usesGreedy = [...settingsBy.values()].some((own) => own.adv_estimator === "remax");
    if (usesGreedy) addGreedy(run, config, stepRows, rows);
    markIncomplete(creditOf(run, stepRows[0]?.step), rows, settingsBy);
    const tree = isCommittedTree(config);
    let next = 0;
    for (const [, part] of gathered(rows, (r) => settingsKeys.get(r.row.agent))) {
      const own = settingsBy.get(part[0].row.agent);
      const groups = numbered(part.map((r) => own.fields.map((field) => fieldOf(r, field))));
      part.forEach((r, i) => { r.group = groups[i] + next; });
      next += Math.max(...groups) + 1;
      const compared = tree ? part.filter((r) => r.row.committed) : part;
      try {
        estimatePart(config, compared, own, creditOf(run, stepRows[0]?.step) !== undefined);
      } catch (error) {
        if (!(error instanceof report.credit.Unrecorded)) throw error;
        for (const r of compared) r.why = error.message;
      }
      if (tree) compareCandidates(config, part, own);
    }
    const results = stepRows.map(() => null);
    for (const r of rows) results[r.place] = resultOf(r, terms.get(r.row));
    return results;
  };

  /** [{metric, value, recorded, error, marked}] of a step: metrics of advantages, from the results. */
  report.creditChecks = function (run, stepRows, results) {
    const rows = results.flatMap((result, i) => (result?.tokens > 0 ? [{ ...result, agent: stepRows[i].agent }] : []));
    const checks = [];
    const check = (metric, value) => {
      const recorded = metricAt(run, stepRows[0]?.step, metric);
      if (recorded == null || !Number.isFinite(value)) return;
      const error = Math.abs(value - recorded);
      checks.push({ metric, value, recorded, error, marked: error > TOLERANCE * Math.max(1, Math.abs(recorded)) });
    };
    for (const [, some] of gathered(rows, (r) => r.agent)) {
      if (some.some((r) => r.abs === null)) continue;
      const name = `agent/${slug(some[0].agent)}`;
      check(`${name}/advantage_abs`, mean(some.map((r) => r.abs)));
      const groups = [...gathered(some, (r) => r.group).values()];
      check(`${name}/zero_signal_groups`, mean(groups.map((list) => Number(list.every((r) => r.abs === 0)))));
    }
    if (!rows.some((r) => r.why)) {
      check("critic/advantages/mean", sum(rows.map((r) => r.advantage * r.tokens)) / sum(rows.map((r) => r.tokens)));
    }
    return checks;
  };
}
