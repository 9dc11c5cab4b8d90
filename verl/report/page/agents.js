// Agents: who learns, who coasts?
globalThis.report ??= {};

/** The agents of a run, each once: {agent, slug, policies, trained, number}. */
report.agentsOf = function (run) {
  const byName = new Map();
  run.agents.forEach((entry, number) => {
    const agent = byName.get(entry.agent) ?? {
      agent: entry.agent,
      slug: report.slug(entry.agent),
      policies: [],
      trained: false,
      numbers: [],
    };
    agent.policies.push(entry.policy);
    agent.numbers.push(number);
    agent.trained ||= entry.trained !== false;
    byName.set(entry.agent, agent);
  });
  return [...byName.values()];
};

/**
 * Groups of each agent in each training step, by what their rewards say: {slug: {solved, failed, tied,
 * signal}}, arrays over run.steps of shares. A group, of the fields by which the run forms groups, is silent if
 * all rewards of the agent's trained calls are equal, and tied where no success is recorded.
 */
report.silentGroups = function (run) {
  if (run.silent) return run.silent;
  const groups = new Map();
  const place = new Map(run.steps.map((step, i) => [step, i]));
  const { episodes, calls } = run;
  const fields = run.agents.map(({ agent }) => report.credit.groupFields(run.config, agent));
  for (let i = 0; i < report.count(episodes); i++) {
    if (report.value(episodes, "split", i) !== "train" || report.value(episodes, "failure", i)) continue;
    const step = report.value(episodes, "step", i);
    const success = report.value(episodes, "success", i);
    const first = report.value(episodes, "first_call", i);
    for (let call = first; call < first + report.value(episodes, "calls", i); call++) {
      if (!report.value(calls, "trained", call) || report.value(calls, "greedy", call)) continue;
      const agent = report.value(calls, "agent", call);
      const names = fields[agent].map((name) => report.value(calls, name, call) ?? report.value(episodes, name, i));
      const key = [step, agent, ...names].join("|");
      let group = groups.get(key);
      if (!group)
        groups.set(key, (group = { step, agent, low: Infinity, high: -Infinity, good: 0, judged: 0, rows: 0 }));
      const reward = report.value(calls, "reward", call) ?? 0;
      group.low = Math.min(group.low, reward);
      group.high = Math.max(group.high, reward);
      group.good += success > 0 ? 1 : 0;
      group.judged += success === null ? 0 : 1;
      group.rows += 1;
    }
  }
  const result = new Map(
    report
      .agentsOf(run)
      .map((agent) => [
        agent.slug,
        Object.fromEntries(
          ["solved", "failed", "tied", "signal", "count"].map((kind) => [kind, run.steps.map(() => 0)]),
        ),
      ]),
  );
  for (const group of groups.values()) {
    const kinds = result.get(report.slug(run.agents[group.agent].agent));
    const at = place.get(group.step);
    if (at === undefined) continue;
    const silent = group.high - group.low < 1e-9;
    const kind = !silent
      ? "signal"
      : group.good === group.rows
        ? "solved"
        : group.good === 0 && group.judged > 0
          ? "failed"
          : "tied";
    kinds[kind][at] += 1;
    kinds.count[at] += 1;
  }
  for (const kinds of result.values()) {
    for (const kind of ["solved", "failed", "tied", "signal"]) {
      kinds[kind] = kinds[kind].map((n, i) => (kinds.count[i] ? n / kinds.count[i] : null));
    }
  }
  run.silent = result;
  return result;
};

/** Share of an agent's calls for which a 0/1 column holds, over the last `steps` training steps. */
report.callShare = function (run, agent, column, steps = 5) {
  if (!run.calls?.[column]) return null;
  const recent = new Set(run.steps.slice(-steps));
  const [step, split, first, length] = ["step", "split", "first_call", "calls"].map((name) =>
    report.column(run.episodes, name),
  );
  const [agentOf, turn, numberOf, committed, value] = ["agent", "turn", "call", "committed", column].map((name) =>
    report.column(run.calls, name),
  );
  // The last call of a turn, each of its candidates, speaks to the world, not to an agent.
  const acts = (call, end) => {
    let next = call + 1;
    while (next < end && turn(next) === turn(call) && numberOf(next) === numberOf(call)) next++;
    return next === end || turn(next) !== turn(call);
  };
  let count = 0;
  let total = 0;
  for (let i = 0; i < report.count(run.episodes); i++) {
    if (!recent.has(step(i)) || split(i) !== "train") continue;
    const end = first(i) + length(i);
    for (let call = first(i); call < end; call++) {
      if (!agent.numbers.includes(agentOf(call)) || value(call) === null) continue;
      if (column === "heard" && report.isFalse(committed(call))) continue;
      if (column === "heard" && !value(call) && acts(call, end)) continue;
      total += 1;
      count += value(call) ? 1 : 0;
    }
  }
  return total ? count / total : null;
};

/** What the page shows of an agent: name, metric of `agent/<slug>/` (or of its policy), format, meaning. */
report.AGENT_METRICS = [
  ["Reward", "reward/mean", report.number, "mean reward of a call, after shaping and penalties"],
  [
    "Advantage",
    "advantage_abs",
    report.number,
    "mean absolute advantage of its samples: 0 means it learns nothing",
  ],
  [
    "Silent groups",
    "zero_signal_groups",
    report.percent,
    "share of its groups in which all advantages are 0",
  ],
  ["Reply length", "response_length/mean", report.number, "tokens"],
  ["Valid", "valid_rate", report.percent, "share of replies that could be parsed"],
  ["Cut", "truncated_replies", report.percent, "share of replies cut at the length limit"],
  ["Entropy", "actor/entropy", report.number, "of the policy at sampled tokens, in nats"],
  ["KL", "actor/ppo_kl", report.number, "from the policy before the update"],
  ["KL to the reference", "actor/kl_loss", report.number, "of the policy, where the loss has it"],
  ["Values", "critic/vf_explained_var", report.number, "share of the variance of returns that the critic explains"],
  ["Gradient", "grad_norm", report.number, "norm of the policy's gradient before clipping"],
  ["Share of gradient", "gradient_share", report.percent, "of agents that share a policy"],
  ["Tool calls", "tools/calls_per_episode", report.number, "in an episode"],
  ["Tool errors", "tools/errors", report.number, "tool calls that raised an error"],
  ["Staleness", "staleness/mean", report.number, "versions between sampling and update"],
];

/** Values over steps of a metric of an agent, or of its policy where the agent has none. */
report.agentMetric = function (run, agent, name) {
  const own = report.metric(run, `agent/${agent.slug}/${name}`);
  if (own.some(report.isNumber) || !agent.trained) return own;
  const policy = report.slug(agent.policies[0] ?? "");
  const short = /^(actor|critic)\//.test(name) ? name : `actor/${name}`;
  return report.metric(run, `wg/${policy}/${short}`);
};

report.agentCard = function (run, agent, silent) {
  const kinds = silent.get(agent.slug);
  const size = report.edgeSize(run);
  const last = (kind) => report.edge(kinds[kind], size, true);
  const rows = [];
  for (const [name, metric, format, meaning] of report.AGENT_METRICS) {
    const values = report.agentMetric(run, agent, metric);
    if (!values.some(report.isNumber)) continue;
    rows.push([
      report.el("span", { title: meaning }, name),
      report.spark(values, name),
      format(report.edge(values, size)),
      format(report.edge(values, size, true)),
    ]);
  }
  const shares = [
    ["Heard", "heard", "replies that reappear in a later prompt or the answer"],
    ["Copied", "copied", "replies equal to an earlier one of the episode"],
    ["Garbled", "garbled", "half of the reply is one character, or four words repeat 10 times"],
    ["Not delivered", "unheard", "replies that no client got"],
  ];
  for (const [name, column, meaning] of shares) {
    const share = report.callShare(run, agent, column);
    if (share !== null && (share > 0 || name === "Heard")) {
      rows.push([report.el("span", { title: meaning }, name), "", "", report.percent(share)]);
    }
  }
  const audit = run.audit?.at(-1)?.table?.find((row) => row.turn === null && row.agent === agent.agent);
  const effect = audit
    ? report.el(
        "p",
        { class: "small" },
        report.link({ page: "audit" }, "Effect by replay"),
        `: ${report.fixed(audit.effect)} [${report.fixed(audit.low)}, ${report.fixed(audit.high)}]`,
      )
    : null;
  const bar = report.el(
    "div",
    {
      class: "bar",
      role: "img",
      "aria-label": `Groups of the ${report.edgeName("last", size)}: ${["signal", "solved", "failed", "tied"]
        .map((kind) => `${kind} ${report.percent(last(kind))}`)
        .join(", ")}`,
    },
    ["signal", "solved", "failed", "tied"]
      .filter((kind) => last(kind) > 0)
      .map((kind) => {
        const text = `${kind} ${report.percent(last(kind))}`;
        return report.el(
          "span",
          { class: `part ${kind}`, title: text, css: { "flex-grow": String(last(kind)) } },
          last(kind) > 0.12 ? text : "",
        );
      }),
  );
  return report.el(
    "section",
    { class: "card agent", "aria-label": agent.agent },
    report.el(
      "h3",
      {},
      agent.agent,
      report.el(
        "span",
        { class: "quiet" },
        ` ${agent.trained ? "policy" : "not trained:"} ${agent.policies.join(", ")}`,
      ),
    ),
    kinds.count.some((n) => n)
      ? [report.el("p", { class: "quiet small" }, `Groups of the ${report.edgeName("last", size)} by their rewards`), bar]
      : null,
    rows.length
      ? report.table(
          `Figures of ${agent.agent}`,
          [
            { name: "" },
            { name: "over the run" },
            { name: size === 1 ? "first" : `first ${size}`, class: "n", title: `mean of the ${report.edgeName("first", size)}` },
            { name: size === 1 ? "last" : `last ${size}`, class: "n", title: `mean of the ${report.edgeName("last", size)}` },
          ],
          rows,
        )
      : report.el("p", { class: "quiet" }, "No figures were recorded of this agent."),
    effect,
  );
};

report.drawAgents = function (run, state) {
  const agents = report.agentsOf(run);
  const silent = report.silentGroups(run);
  const choices = report.AGENT_METRICS.filter(([, metric]) =>
    agents.some((agent) => report.agentMetric(run, agent, metric).some(report.isNumber)),
  );
  const chosen = choices.find(([, metric]) => metric === state.metric) ?? choices[0];
  const learning = agents
    .filter((agent) => agent.trained)
    .map((agent) => {
      const now = report.edge(report.agentMetric(run, agent, "advantage_abs"), report.edgeSize(run), true);
      return `${agent.agent} ${report.number(now)}`;
    });
  const parts = [
    report.el("h2", {}, "Agents"),
    report.el(
      "p",
      { class: "verdict" },
      `Who still learns? Mean absolute advantage of the ${report.edgeName("last", report.edgeSize(run))}: `,
      learning.join(", ") || "no trained agent",
      run.solved ? ". The task is solved, so silence is no fault." : ".",
    ),
    report.el(
      "div",
      { class: "cards" },
      agents.map((agent) => report.agentCard(run, agent, silent)),
    ),
  ];
  if (chosen) {
    const [name, metric, format, meaning] = chosen;
    parts.push(
      report.el(
        "section",
        { "aria-label": "Figures over the steps" },
        report.el(
          "div",
          { class: "filters" },
          report.select(
            "metric",
            "Figure",
            choices.map(([n, m]) => [m, n]),
            metric,
            (value) => report.go({ metric: value }, true),
          ),
        ),
        report.lineChart({
          title: name,
          note: meaning,
          x: run.steps,
          format,
          height: 230,
          series: agents.map((agent) => report.seriesOfAgent(run, agent, metric)),
        }),
      ),
    );
  }
  for (const [kind, note] of [
    ["solved", "all episodes of the group succeed"],
    ["failed", "none succeeds"],
    ["tied", "equal rewards, of different results or of results that are not recorded"],
  ]) {
    const rows = agents
      .map((agent) => ({ name: agent.agent, values: silent.get(agent.slug)[kind] }))
      .filter((row) => row.values.some((v) => v > 0));
    if (rows.length) parts.push(report.heat({ title: `Silent groups: ${kind}`, note, x: run.steps, rows }));
  }
  parts.push(report.requests(run));
  return parts;
};

report.seriesOfAgent = (run, agent, metric) => ({
  name: agent.agent,
  values: report.agentMetric(run, agent, metric),
});

/** Requests of programs: how many conversations were rendered anew, and why. */
report.requests = function (run) {
  const keys = Object.keys(run.metrics ?? {}).filter((key) => key.startsWith("gateway/"));
  if (!keys.length) return null;
  const size = report.edgeSize(run);
  return report.el(
    "section",
    { "aria-labelledby": "requests" },
    report.el("h2", { id: "requests" }, "Requests of the program"),
    report.table(
      "Requests of the program, per episode",
      [
        { name: "figure" },
        { name: "over the run" },
        { name: report.edgeName("first", size), class: "n" },
        { name: report.edgeName("last", size), class: "n" },
      ],
      keys.map((key) => [
        key.slice(8),
        report.spark(report.metric(run, key), key),
        report.number(report.edge(report.metric(run, key), size)),
        report.number(report.edge(report.metric(run, key), size, true)),
      ]),
    ),
  );
};
