// Overview: did it learn, by how much, is it still running, what is wrong?
globalThis.report ??= {};

report.LEVELS = {
  now: "needs you now",
  untrusted: "figures cannot be trusted",
  worse: "it gets worse",
  stuck: "it does not learn",
  hint: "hint",
};

/** A metric of a run, as an array over its steps. */
report.metric = (run, name) => run.metrics?.[name] ?? [];

/** Accuracy as [value, interval or null]: ["36.8 %", "[30.4, 43.6]"]. */
report.rateParts = function (point, measure) {
  if (!point) return ["\u2013", null];
  const reward = measure === "team_reward";
  const format = reward ? report.number : (value) => (100 * value).toFixed(1);
  const interval = report.isNumber(point.low) ? `[${format(point.low)}, ${format(point.high)}]` : null;
  return [reward ? report.number(point.rate) : report.percent(point.rate), interval];
};

report.rateText = (point, measure) => report.rateParts(point, measure).filter(Boolean).join(" ");

report.fact = (name, value, note, kind = "") =>
  report.el(
    "div",
    { class: `fact ${kind}` },
    report.el("dt", {}, name),
    report.el("dd", {}, report.el("b", {}, value), note ? report.el("span", {}, note) : null),
  );

/** One sentence that answers whether the run learned. */
report.verdict = function (run) {
  const { before, after, points, measure } = run.accuracy ?? {};
  const last = after ?? points?.at(-1);
  const what = measure === "team_reward" ? "Team reward" : "Success";
  if (before && last && last.step !== before.step) {
    const apart = report.isNumber(before.high) && (last.low > before.high || last.high < before.low);
    const up = last.rate > before.rate;
    const judged = !report.isNumber(before.high)
      ? ""
      : apart
        ? up
          ? "It learned."
          : "It got worse."
        : "The intervals overlap: no clear change.";
    return [
      `${what} on validation went from `,
      report.el("b", {}, report.rateText(before, measure)),
      " to ",
      report.el("b", {}, report.rateText(last, measure)),
      last.n ? ` on ${report.integer(last.n)} tasks. ` : ". ",
      judged,
      run.solved ? " The task is solved." : "",
    ];
  }
  const success = report.metric(run, "episode/success_rate");
  const values = success.some(report.isNumber) ? success : report.metric(run, "episode/team_reward/mean");
  if (!values.some(report.isNumber)) return ["Nothing was trained or validated yet."];
  const format = values === success ? report.percent : report.number;
  const size = report.edgeSize(run);
  return [
    "No two validations to compare. In training the ",
    values === success ? "success went from " : "team reward went from ",
    report.el("b", {}, format(report.edge(values, size))),
    ` (first ${size === 1 ? "step" : `${size} steps`}) to `,
    report.el("b", {}, format(report.edge(values, size, true))),
    ` (last ${size === 1 ? "one" : size}).`,
  ];
};

report.drawAlarm = function (run, alarm, chosen) {
  const episodes = alarm.episodes ?? [];
  const links = episodes
    .slice(0, 8)
    .map((i) =>
      report.link(
        { page: "episodes", episode: i },
        `${report.shortTask(run, i)} #${report.value(run.episodes, "index", i)}`,
      ),
    );
  if (episodes.length > 8) {
    links.push(report.link({ page: "episodes", alarm: alarm.number }, `all ${episodes.length} in the list`));
  }
  const series = (alarm.series ?? []).filter((key) => report.metric(run, key).some(report.isNumber));
  const tries = (alarm.try ?? []).map((text) => report.el("code", {}, text));
  return report.el(
    "li",
    { class: `alarm ${alarm.level}${chosen ? " chosen" : ""}`, id: `alarm-${alarm.number}` },
    report.el(
      "h3",
      {},
      report.el("span", { class: "level" }, report.LEVELS[alarm.level] ?? alarm.level),
      alarm.name,
    ),
    report.el("p", {}, alarm.text, report.el("span", { class: "quiet" }, ` Since step ${alarm.raised}.`)),
    tries.length ? report.el("p", { class: "line" }, "Try: ", tries) : null,
    links.length ? report.el("p", { class: "line" }, "Episodes: ", links) : null,
    series.length
      ? report.folded(
          "the figures",
          () =>
            series.map((key) =>
              report.lineChart({
                title: key,
                x: run.steps,
                series: [{ name: key, values: report.metric(run, key) }],
                height: 150,
              }),
            ),
          { open: chosen },
        )
      : null,
  );
};

report.drawAlarms = function (run, state) {
  const raised = (run.alarms ?? []).filter((alarm) => alarm.cleared === null || alarm.cleared === undefined);
  const cleared = (run.alarms ?? []).filter((alarm) => !raised.includes(alarm));
  const shown = (list) =>
    report.el(
      "ul",
      { class: "alarms" },
      list.map((alarm) => report.drawAlarm(run, alarm, String(alarm.number) === state.alarm)),
    );
  const rest = raised.slice(5);
  const judged = run.steps.filter((step) => step > (run.attempt?.from_step ?? 0)).length;
  const early = !run.solved && judged < 10;
  const nothing = run.solved
    ? "Nothing: the task is solved."
    : early
      ? `No alarm is raised, but most alarms judge from the tenth step on: there are ${judged}.`
      : "No alarm is raised.";
  return report.el(
    "section",
    { "aria-labelledby": "alarms" },
    report.el("h2", { id: "alarms" }, raised.length ? `What is wrong (${raised.length})` : "What is wrong"),
    raised.length
      ? shown(raised.slice(0, 5))
      : report.el("p", { class: early ? "" : "good" }, nothing),
    rest.length ? report.folded(`${rest.length} more`, () => shown(rest)) : null,
    cleared.length
      ? report.folded(`${cleared.length} raised earlier and cleared`, () =>
          report.el(
            "ul",
            { class: "plain" },
            cleared.map((alarm) =>
              report.el("li", {}, `${alarm.name}: steps ${alarm.raised} to ${alarm.cleared}. ${alarm.text}`),
            ),
          ),
        )
      : null,
  );
};

/** Whether the runs of the report differ in nothing but their seeds. */
report.areSeeds = function () {
  const keys = report.index.compare?.keys ?? [];
  const seedless = (value) => JSON.stringify(value ?? null).replace(/seed[-_]?\d+/gi, "seed");
  const isName = ({ key, values }) =>
    /seed$|experiment_name|project_name|_dir$|_path$|logger/.test(key) ||
    values.every((value) => seedless(value) === seedless(values[0]));
  return report.index.runs.length > 1 && keys.length > 0 && keys.every(isName);
};

/** A metric of several runs as one series: mean, and a band from the lowest to the highest. */
report.banded = function (name, runs, x, key) {
  const at = runs.map((run) => new Map(run.steps.map((step, i) => [step, report.metric(run, key)[i]])));
  const columns = x.map((step) => at.map((values) => values.get(step)).filter(report.isNumber));
  return {
    name,
    values: columns.map((values) => report.mean(values)),
    low: columns.map((values) => (values.length ? Math.min(...values) : null)),
    high: columns.map((values) => (values.length ? Math.max(...values) : null)),
  };
};

/** Series of one metric: of the run, or of all runs that differ in their seeds alone. */
report.seriesOf = function (run, name, key) {
  return report.areSeeds()
    ? report.banded(name, report.index.runs, run.steps, key)
    : { name, values: report.metric(run, key) };
};

report.curves = function (run) {
  const charts = [];
  const { points, measure } = run.accuracy ?? {};
  const success = report.metric(run, "episode/success_rate").some(report.isNumber);
  const training = success ? "episode/success_rate" : "episode/team_reward/mean";
  const asRate = success && measure !== "team_reward";
  charts.push(
    report.lineChart({
      title: success ? "Success of the team" : "Team reward",
      x: run.steps,
      bounds: asRate ? [0, 1] : null,
      format: asRate ? (v) => report.percent(v, 0) : report.number,
      height: 230,
      note:
        (report.areSeeds()
          ? `line: mean of ${report.index.runs.length} runs and their range`
          : "line: training") + "; dots: validation of this run with 95 % interval",
      series: [
        report.seriesOf(run, "training", training),
        { name: "validation", values: [], points: points ?? [] },
      ],
    }),
  );
  const agents = report.agentsOf(run);
  const ofAgents = (title, name, note, format, bounds) => {
    const series = agents.map((agent) => report.seriesOf(run, agent.agent, `agent/${agent.slug}/${name}`));
    if (series.some((s) => s.values.some(report.isNumber))) {
      charts.push(report.lineChart({ title, note, x: run.steps, series, format, bounds }));
    }
  };
  ofAgents("Reward by agent", "reward/mean", "after shaping and penalties", report.number);
  ofAgents("Length of a reply", "response_length/mean", "tokens", report.number);
  const share = (value) => report.percent(value, 0);
  ofAgents("Silent groups", "zero_signal_groups", "share of groups without any advantage", share, [0, 1]);
  return report.el("section", { class: "grid", "aria-label": "Curves" }, charts);
};

report.drawOverview = function (run, state) {
  const { before, after, points, measure, files } = run.accuracy ?? {};
  // Of a run in progress, its last validation.
  const last = after ?? points?.filter((point) => point.step !== before?.step).at(-1);
  const { word, kind } = report.stateOf(run);
  const splits = run.episodes?.split;
  const training = Array.isArray(splits)
    ? splits.filter((split) => split === "train").length
    : splits?.all === "train"
      ? report.count(run.episodes)
      : 0;
  // A run of which steps are known has played episodes.
  const isRecorded = report.count(run.episodes) > 0 || !run.steps.some((step) => step > 0);
  const failed = (run.episodes?.failure?.filter?.((f) => f) ?? []).length;
  const change =
    before && last && last.step !== before.step
      ? report.signed(Math.round(1000 * (last.rate - before.rate)) / 10)
      : null;
  const step = run.state?.step ?? run.steps.at(-1) ?? 0;
  const facts = report.el(
    "dl",
    { class: "facts" },
    report.fact("Before", ...report.rateParts(before, measure)),
    report.fact(after ? "After" : "Last validation", ...report.rateParts(last, measure)),
    measure === "team_reward"
      ? report.fact("Change", change === null ? "\u2013" : report.signed(last.rate - before.rate))
      : report.fact("Change", change ?? "\u2013", change ? "percentage points" : null),
    report.fact("Step", `${step}${run.state?.total_steps ? ` of ${run.state.total_steps}` : ""}`, word, kind),
    report.fact(
      "Episodes",
      isRecorded ? report.integer(report.count(run.episodes)) : "\u2013",
      isRecorded
        ? `${report.integer(training)} in training${failed ? `, ${report.integer(failed)} failed` : ""}`
        : "not recorded",
    ),
    report.fact(
      "Agents",
      String(report.agentsOf(run).length),
      `${new Set(run.agents.map((agent) => agent.policy)).size} policies`,
    ),
  );
  const sections = [
    report.el("h2", { class: "unseen" }, "Overview"),
    report.el("p", { class: "verdict" }, report.verdict(run)),
    facts,
  ];
  if (run.state?.error)
    sections.push(report.el("p", { class: "bad box" }, "The run ended with: ", run.state.error));
  sections.push(report.drawAlarms(run, state), report.curves(run));
  const names = Object.keys(files ?? {});
  if (names.length > 1) {
    sections.push(
      report.intervals({
        title: "Success by validation file",
        bounds: [0, 1],
        format: (v) => report.percent(v, 0),
        rows: names.map((name) => ({
          name,
          marks: [
            { name: "before", value: files[name].before?.rate, ...files[name].before },
            { name: "after", value: files[name].after?.rate, ...files[name].after },
          ],
        })),
      }),
    );
  }
  sections.push(report.drawAbout(run));
  return sections;
};

/** What the report is made of: machine, versions, what is missing, the configuration. */
report.drawAbout = function (run) {
  const items = [];
  if (run.left_out_texts)
    items.push(
      `The texts of ${report.many(run.left_out_texts, "episode")} are not in this file` +
        `${report.index.max_mb ? ` (limit ${report.index.max_mb} MB)` : ""}; ` +
        "each episode names the file and line that has them.",
    );
  for (const entry of run.damaged ?? [])
    items.push(`Damaged: ${entry.file}${entry.line ? `, line ${entry.line}` : ""}: ${entry.why}`);
  items.push(...(run.notes ?? []), ...(run.state?.exactness ?? []));
  const machine = run.state?.machine;
  const versions = Object.entries(run.state?.versions ?? {})
    .map(([name, version]) => `${name} ${version}`)
    .join(", ");
  const rows = [
    ["Folder", run.folder],
    ["Commit", run.state?.commit],
    ["Versions", versions],
    [
      "Machine",
      machine
        ? `${machine.cpus} CPUs, ${(machine.memory_bytes / 2 ** 30).toFixed(0)} GiB, ` +
          `GPUs: ${[machine.gpus].flat().filter(Boolean).join(", ") || "none"}`
        : null,
    ],
  ].filter(([, value]) => value);
  const config = Object.entries(run.config ?? {});
  return report.el(
    "section",
    { "aria-labelledby": "about" },
    report.el("h2", { id: "about" }, "About the run"),
    items.length
      ? report.el(
          "ul",
          { class: "plain" },
          items.map((text) => report.el("li", {}, text)),
        )
      : null,
    report.el(
      "dl",
      { class: "pairs" },
      rows.map(([name, value]) => [report.el("dt", {}, name), report.el("dd", {}, value)]),
    ),
    report.folded(`Configuration (${config.length} keys)`, () =>
      report.table(
        "Configuration",
        [{ name: "key" }, { name: "value" }],
        config.map(([key, value]) => [
          report.el("code", {}, key),
          report.el("code", {}, JSON.stringify(value)),
        ]),
      ),
    ),
  );
};
