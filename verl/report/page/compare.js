// Compare: which keys differ between two runs, and which tasks changed sides?
globalThis.report ??= {};

report.drawCompare = function (run, state) {
  const { runs, compare } = report.index;
  const parts = [report.el("h2", {}, "Compare")];
  if (runs.length < 2) {
    parts.push(
      report.el(
        "p",
        {},
        "This report has one run. To compare: ",
        report.el("code", {}, "verl-mas report RUN OTHER_RUN"),
      ),
    );
    parts.push(report.compareValidations(run));
    return parts;
  }
  const other = Number(state.other ?? 1);
  const keys = compare?.keys ?? [];
  parts.push(
    report.el(
      "p",
      { class: "verdict" },
      `${runs.length} runs, `,
      report.el("b", {}, `${keys.length} key${keys.length === 1 ? " differs" : "s differ"}`),
      report.areSeeds() ? ": seeds and names only, so curves show their mean and range." : ".",
    ),
  );
  const measure = runs[0].accuracy?.measure;
  parts.push(
    report.intervals({
      title: measure === "team_reward" ? "Team reward" : "Success on validation",
      bounds: measure === "team_reward" ? [] : [0, 1],
      format: measure === "team_reward" ? report.number : (v) => report.percent(v, 0),
      rows: runs.map((r) => {
        const before = r.accuracy?.before;
        const last = r.accuracy?.points?.at(-1);
        // a run that was stopped has no "after"; its last validation may be the one before training
        const after = r.accuracy?.after ?? (last?.step > (before?.step ?? 0) ? last : null);
        return {
          name: r.name,
          marks: [
            { ...before, name: "before", value: before?.rate },
            { ...after, name: "after", value: after?.rate },
          ],
        };
      }),
    }),
  );
  const steps = [...new Set(runs.flatMap((r) => r.steps))].sort((a, b) => a - b);
  const success = runs.some((r) => report.metric(r, "episode/success_rate").some(report.isNumber));
  const key = success ? "episode/success_rate" : "episode/team_reward/mean";
  parts.push(
    report.lineChart({
      title: success ? "Success in training" : "Team reward in training",
      x: steps,
      height: 230,
      bounds: success ? [0, 1] : null,
      format: success ? (v) => report.percent(v, 0) : report.number,
      series: runs.slice(0, 8).map((r) => {
        const at = new Map(r.steps.map((step, i) => [step, report.metric(r, key)[i]]));
        return { name: r.name, values: steps.map((step) => at.get(step) ?? null) };
      }),
    }),
  );
  parts.push(
    report.el("h2", {}, "Keys that differ"),
    keys.length
      ? report.table(
          "Keys that differ",
          [{ name: "key" }, ...runs.map((r) => ({ name: r.name }))],
          keys.map((entry) => [
            report.el("code", {}, entry.key),
            ...entry.values.map((value) =>
              report.el("code", {}, value === undefined ? "\u2013" : JSON.stringify(value)),
            ),
          ]),
        )
      : report.el("p", {}, "None."),
  );
  parts.push(report.compareTasks(runs, compare, other));
  return parts;
};

/** Tasks that one of the first run and another solves at least half of the time, largest change first. */
report.compareTasks = function (runs, compare, other) {
  const changed = (compare?.tasks ?? [])
    .filter(({ rates }) => [rates[0], rates[other]].every(report.isNumber))
    .filter(({ rates }) => rates[0] >= 0.5 !== rates[other] >= 0.5)
    .sort((a, b) => Math.abs(b.rates[other] - b.rates[0]) - Math.abs(a.rates[other] - a.rates[0]));
  const up = changed.filter((task) => task.rates[other] > task.rates[0]).length;
  const links = (task, r) =>
    (task.episodes[r] ?? [])
      .slice(0, 4)
      .map((i) =>
        report.el(
          "a",
          { class: "chip", href: `#/episodes?run=${r}&episode=${i}` },
          `#${report.value(runs[r].episodes, "index", i) ?? i}`,
        ),
      );
  const choice =
    runs.length > 2
      ? report.el(
          "div",
          { class: "filters" },
          report.select(
            "other",
            "Compared with the first run",
            runs.slice(1).map((r, i) => [String(i + 1), r.name]),
            other,
            (value) => report.go({ other: value }, true),
          ),
        )
      : null;
  return report.el(
    "section",
    { "aria-labelledby": "tasks" },
    report.el("h2", { id: "tasks" }, "Tasks that changed sides"),
    choice,
    report.el(
      "p",
      {},
      `Of ${report.many(compare?.common ?? 0, "task")} of the last validation, ${changed.length} changed `,
      `sides: ${up} better, ${changed.length - up} worse in ${runs[other].name}. A task counts as solved if `,
      "at least half of its episodes succeed.",
    ),
    changed.length
      ? report.table(
          "Tasks",
          [
            { name: "task" },
            { name: runs[0].name, class: "n" },
            { name: runs[other].name, class: "n" },
            { name: "episodes of the first" },
            { name: "of the other" },
          ],
          changed
            .slice(0, 300)
            .map((task) => [
              task.task_id,
              report.percent(task.rates[0], 0),
              report.percent(task.rates[other], 0),
              links(task, 0),
              links(task, other),
            ]),
        )
      : null,
  );
};

/** Tasks of one run that changed between its first and its last validation. */
report.compareValidations = function (run) {
  const steps = [...new Set((run.accuracy?.points ?? []).map((point) => point.step))].sort((a, b) => a - b);
  if (steps.length < 2) return null;
  const [first, last] = [steps[0], steps.at(-1)];
  const tasks = new Map();
  for (let i = 0; i < report.count(run.episodes); i++) {
    if (report.value(run.episodes, "split", i) !== "val") continue;
    const step = report.value(run.episodes, "step", i);
    if (step !== first && step !== last) continue;
    const id = report.value(run.episodes, "task_id", i);
    if (!tasks.has(id)) tasks.set(id, { before: [], after: [] });
    tasks.get(id)[step === first ? "before" : "after"].push(i);
  }
  const rate = (list) => report.mean(list.map((i) => report.value(run.episodes, "success", i) ?? 0));
  const rows = [...tasks]
    .map(([id, { before, after }]) => ({ id, before, after, from: rate(before), to: rate(after) }))
    .filter((task) => task.from !== null && task.to !== null && task.from !== task.to)
    .sort((a, b) => a.to - a.from - (b.to - b.from));
  const links = (list) =>
    list
      .slice(0, 4)
      .map((i) =>
        report.link({ page: "episodes", episode: i }, `#${report.value(run.episodes, "index", i)} `),
      );
  const worse = rows.filter((task) => task.to < task.from).length;
  return report.el(
    "section",
    { "aria-labelledby": "within" },
    report.el("h2", { id: "within" }, `Within this run: validation at step ${first} and step ${last}`),
    report.el("p", {}, `${rows.length - worse} tasks became better, ${worse} worse.`),
    rows.length
      ? report.table(
          "Tasks, worst change first",
          [
            { name: "task" },
            { name: `step ${first}`, class: "n" },
            { name: `step ${last}`, class: "n" },
            { name: "before" },
            { name: "after" },
          ],
          rows
            .slice(0, 300)
            .map((task) => [
              task.id,
              report.percent(task.from, 0),
              report.percent(task.to, 0),
              links(task.before),
              links(task.after),
            ]),
        )
      : null,
  );
};
