// Time: who waited for whom?
globalThis.report ??= {};

report.TIMINGS = [
  ["gen", "sampling"],
  ["old_log_prob", "old log-probs"],
  ["ref", "reference"],
  ["values", "values"],
  ["adv", "advantages"],
  ["update_critic", "critic update"],
  ["update_actor", "update"],
  ["sync_weights", "weights to engines"],
  ["testing", "validation"],
  ["save_checkpoint", "checkpoint"],
];

/** What becomes of a group in asynchronous training, by its metric. */
report.GROUP_STATES = {
  running: "in progress",
  complete: "complete, not yet trained",
  training: "being trained",
  failed: "failed",
  rejected: "rejected",
  dropped_stale_samples: "dropped as too old",
};

/** Spans of the steps from `first` to `last`, as lanes; open ones end now. */
report.laneSpans = function (run, first, last, now) {
  const lanes = new Map();
  const kinds = new Map();
  for (let i = 0; i < report.count(run.spans); i++) {
    const step = report.value(run.spans, "step", i);
    const end = report.value(run.spans, "end", i);
    if (end !== null && (step < first || step > last)) continue;
    const [lane, call] = [report.value(run.spans, "lane", i), report.value(run.spans, "call", i)];
    if (!kinds.has(call)) kinds.set(call, kinds.size);
    if (!lanes.has(lane)) lanes.set(lane, []);
    const start = report.value(run.spans, "start", i);
    lanes.get(lane).push({
      start,
      end: end ?? now,
      kind: kinds.get(call),
      open: end === null,
      name:
        `${call}, step ${step}: ` +
        `${end === null ? "open for " : ""}${report.duration((end ?? now) - start)}`,
    });
  }
  for (const spans of lanes.values()) spans.sort((a, b) => a.start - b.start);
  return { lanes: [...lanes].map(([name, spans]) => ({ name, spans })), kinds: [...kinds.keys()] };
};

/** Where the time of a step goes, as a sentence. */
report.timeVerdict = function (run) {
  const last = (key) => report.edge(report.metric(run, key), report.edgeSize(run), true);
  const step = last("timing_s/step");
  if (step === null) return ["No times were recorded yet."];
  const parts = report.TIMINGS.filter(([key]) => !["testing", "save_checkpoint"].includes(key))
    .map(([key, name]) => [name, last(`timing_s/${key}`)])
    .filter(([, s]) => s > 0)
    .sort((a, b) => b[1] - a[1])
    .slice(0, 3);
  const idle = Object.keys(run.metrics)
    .filter((key) => /^wg\/[^/]+\/idle$/.test(key))
    .map((key) => [key.split("/")[1], last(key)])
    .filter(([, share]) => share !== null)
    .sort((a, b) => b[1] - a[1]);
  return [
    "A step takes ",
    report.el("b", {}, report.duration(step)),
    ` (mean of the ${report.edgeName("last", report.edgeSize(run))}): `,
    parts.map(([name, seconds]) => `${name} ${report.duration(seconds)}`).join(", "),
    ".",
    idle.length ? ` ${idle[0][0]} samples or waits for ${report.percent(idle[0][1], 0)} of it.` : "",
  ];
};

report.openSpans = function (run, now) {
  const open = run.state?.open_spans ?? [];
  if (!open.length || run.state.state === "done") return null;
  return report.table(
    "Calls in progress",
    [{ name: "worker group" }, { name: "call" }, { name: "for", class: "n" }],
    open.map((span) => [span.wg_id, span.call, report.duration(now - span.start)]),
  );
};

report.drawTime = function (run, state) {
  const steps = [...new Set(Array.isArray(run.spans?.step) ? run.spans.step : [run.spans?.step?.all])]
    .filter(report.isNumber)
    .sort((a, b) => a - b);
  const now = report.index.live ? Date.now() / 1000 : (run.state?.heartbeat ?? report.index.built);
  const parts = [
    report.el("h2", {}, "Time"),
    report.el("p", { class: "verdict" }, report.timeVerdict(run)),
    report.openSpans(run, now),
  ];
  if (steps.length) {
    const last = steps.includes(Number(state.step)) ? Number(state.step) : steps.at(-1);
    const width = Number(state.steps ?? 3);
    const first = steps[Math.max(0, steps.indexOf(last) - width + 1)];
    const { lanes, kinds } = report.laneSpans(run, first, last, now);
    const spans = lanes.flatMap((lane) => lane.spans);
    const legend = report.el(
      "ul",
      { class: "legend" },
      kinds.map((name, i) =>
        report.el(
          "li",
          {},
          report.svg(
            "svg",
            { width: 12, height: 12, "aria-hidden": "true" },
            report.svg("rect", { class: `span s${i % 8}`, width: 12, height: 12, rx: 2 }),
          ),
          name,
        ),
      ),
    );
    parts.push(
      report.el(
        "section",
        { "aria-label": "Lanes" },
        report.el(
          "div",
          { class: "filters" },
          report.select(
            "step",
            "Last step",
            steps.map((s) => [String(s), `step ${s}`]),
            last,
            (value) => report.go({ step: value }, true),
          ),
          report.select(
            "steps",
            "Steps shown",
            [1, 3, 10].map((n) => [String(n), String(n)]),
            width,
            (value) => report.go({ steps: value }, true),
          ),
        ),
        report.lanes({
          title: `Calls of the worker groups, steps ${first} to ${last}`,
          lanes,
          legend,
          note: "dashed: still open",
          from: spans.reduce((low, span) => Math.min(low, span.start), Infinity),
          to: spans.reduce((high, span) => Math.max(high, span.end), -Infinity),
          after: report.folded(
            "as a table",
            () =>
              report.table(
                "Spans",
                [{ name: "lane" }, { name: "call" }],
                lanes.flatMap((lane) => lane.spans.slice(0, 200).map((span) => [lane.name, span.name])),
              ),
            { class: "data" },
          ),
        }),
      ),
    );
  }
  const chart = (title, note, series, format, bounds) => {
    const filled = series.filter((s) => s.values.some(report.isNumber));
    if (filled.length)
      parts.push(report.lineChart({ title, note, x: run.steps, series: filled, format, bounds }));
  };
  const from = (pattern, name) =>
    Object.keys(run.metrics)
      .filter((key) => pattern.test(key))
      .map((key) => ({ name: name(key), values: report.metric(run, key) }));
  chart(
    "Where the time of a step goes",
    "timing_s/ in metrics.jsonl",
    report.TIMINGS.map(([key, name]) => ({ name, values: report.metric(run, `timing_s/${key}`) })).filter(
      (s) => s.values.some((v) => v > 0),
    ),
    report.duration,
    [0],
  );
  chart(
    "Sampling or waiting",
    "share of the step in which the worker group had no call but those of sampling",
    from(/^wg\/[^/]+\/idle$/, (key) => key.split("/")[1]),
    (v) => report.percent(v, 0),
    [0, 1],
  );
  const ages = from(/^agent\/[^/]+\/staleness\/max$/, (key) => key.split("/")[1]);
  if (ages.some((age) => age.values.some((value) => value > 0)))
    chart(
      "Age of the samples",
      "weight versions between sampling and update, highest",
      ages,
      report.number,
      [0, 1],
    );
  else if (ages.length)
    parts.push(report.el("p", {}, "All samples were trained by the weights that sampled them (age 0)."));
  chart(
    "Groups",
    "of asynchronous training, at the end of each step",
    Object.entries(report.GROUP_STATES).map(([key, name]) => ({
      name,
      values: report.metric(run, `fully_async/count/${key}`),
    })),
    report.number,
    [0],
  );
  parts.push(report.versionTable(run));
  return parts;
};

/** Versions that sampled the training replies of each of the last steps. */
report.versionTable = function (run) {
  if (!run.calls?.version) return null;
  const counts = new Map();
  for (let i = 0; i < report.count(run.episodes); i++) {
    if (report.value(run.episodes, "split", i) !== "train") continue;
    const step = report.value(run.episodes, "step", i);
    const first = report.value(run.episodes, "first_call", i);
    if (!counts.has(step)) counts.set(step, new Map());
    const seen = counts.get(step);
    for (let call = first; call < first + report.value(run.episodes, "calls", i); call++) {
      const version = report.value(run.calls, "version", call);
      if (version !== null) seen.set(version, (seen.get(version) ?? 0) + 1);
    }
  }
  const rows = [...counts]
    .sort((a, b) => b[0] - a[0])
    .map(([step, seen]) => [
      String(step),
      [...seen]
        .sort((a, b) => a[0] - b[0])
        .map(([version, n]) => `version ${version}: ${report.integer(n)}`)
        .join(", "),
    ]);
  return rows.length
    ? report.folded("Versions of the weights by step", () =>
        report.table("Replies by version", [{ name: "step" }, { name: "replies" }], rows),
      )
    : null;
};
