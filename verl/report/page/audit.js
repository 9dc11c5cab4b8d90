// Audit: who mattered, and do the advantages know?
globalThis.report ??= {};

report.drawAudit = function (run, state) {
  const files = run.audit ?? [];
  if (!files.length) {
    return [
      report.el("h2", {}, "Audit"),
      report.el(
        "p",
        {},
        "No audit of this run. It replays decisions with other replies " +
          "and tells how much each agent's choice changes the team's reward: ",
        report.el("code", {}, `verl-mas audit ${run.folder}`),
      ),
    ];
  }
  const chosen = files.find((file) => String(file.step) === state.step) ?? files.at(-1);
  const whole = chosen.table.filter((row) => row.turn === null || row.turn === undefined);
  const best = whole.reduce((a, b) => (b.effect > (a?.effect ?? -1) ? b : a), null);
  const overlaps = best && whole.some((row) => row !== best && row.high > best.low);
  const parts = [
    report.el("h2", {}, "Audit"),
    report.el(
      "p",
      { class: "verdict" },
      best && best.low <= 0
        ? `No agent's choice is shown to matter: the largest effect is ${report.fixed(best.effect)} ` +
            `[${report.fixed(best.low)}, ${report.fixed(best.high)}], of ${best.agent}.`
        : best
        ? [
            "The choices of ",
            report.el("b", {}, best.agent),
            overlaps ? " seem to matter most" : " matter most",
            `: they move the team reward by ${report.fixed(best.effect)} `,
            `[${report.fixed(best.low)}, ${report.fixed(best.high)}] (standard deviation).`,
            overlaps ? " The intervals overlap." : "",
          ]
        : "No decision could be restored.",
    ),
  ];
  if (files.length > 1)
    parts.push(
      report.el(
        "div",
        { class: "filters" },
        report.select(
          "step",
          "Step",
          files.map((file) => [String(file.step), `step ${file.step}`]),
          chosen.step,
          (value) => report.go({ step: value }, true),
        ),
      ),
    );
  const silent = whole.filter((row) => row.low <= 0.005);
  if (silent.length)
    parts.push(
      report.el(
        "p",
        { class: "box" },
        `${silent.map((row) => row.agent).join(", ")}: ` +
          "the interval reaches 0, so the audit does not show that these choices matter.",
      ),
    );
  if (whole.length)
    parts.push(
      report.intervals({
        title: "Effect of the choice of a reply on the team reward",
        zero: 0,
        note: "standard deviation, 95 % interval over tasks",
        rows: whole.map((row) => ({
          name: row.agent,
          marks: [{ name: "effect", value: row.effect, low: row.low, high: row.high }],
        })),
      }),
    );
  const range = (row, name) =>
    `${report.percent(row[name], 0)}` +
    (report.isNumber(row[`${name}_low`])
      ? ` [${(100 * row[`${name}_low`]).toFixed(0)}, ${(100 * row[`${name}_high`]).toFixed(0)}]`
      : "");
  parts.push(
    report.el("h2", {}, "By agent and turn"),
    report.table(
      "Effect by agent and turn",
      [
        { name: "agent" },
        { name: "turn" },
        { name: "decisions", class: "n" },
        { name: "effect", class: "n" },
        { name: "share of all variance", class: "n" },
        { name: "no other action", class: "n", title: "decisions at which all replies led to one action" },
      ],
      chosen.table.map((row) => [
        row.agent,
        row.turn === null || row.turn === undefined ? "all" : String(row.turn),
        report.integer(row.decisions),
        `${report.fixed(row.effect)} [${report.fixed(row.low)}, ${report.fixed(row.high)}]`,
        range(row, "share"),
        report.percent(row.no_other_action, 0),
      ]),
    ),
  );
  parts.push(report.drawEstimators(chosen));
  const missing = Object.entries(chosen.left_out ?? {}).map(([name, why]) => `${name}: ${why}`);
  if (missing.length) parts.push(report.el("p", { class: "quiet" }, `Not computed: ${missing.join("; ")}.`));
  const refused = Object.entries(chosen.restored?.no ?? {});
  parts.push(
    report.el(
      "p",
      { class: "quiet" },
      `Step ${chosen.step}: ${report.integer(chosen.decisions)} decisions of ` +
        `${report.integer(chosen.tasks)} tasks, ${chosen.alternatives} alternatives, ` +
        `${chosen.continuations} continuations each, ` +
        `${report.integer(chosen.replies)} replies sampled. ` +
        `Restored: ${report.integer(chosen.restored?.yes)}` +
        (refused.length
          ? `; not restored: ${refused.map(([cause, n]) => `${cause} ${n}`).join(", ")}.`
          : "."),
    ),
  );
  return parts;
};

/** Whether the advantages of each estimator go with what replay found. */
report.drawEstimators = function (file) {
  const rows = file.estimators ?? [];
  if (!rows.length) return null;
  const name = (row) => `${row.name}${row.used ? " (used)" : ""}${row.agent ? `, ${row.agent}` : ""}`;
  return report.el(
    "section",
    { "aria-labelledby": "estimators" },
    report.el("h2", { id: "estimators" }, "Do the advantages know it?"),
    report.intervals({
      title: "Rank correlation of advantage and replayed difference",
      bounds: [-0.2, 1],
      zero: 0,
      note: "grey: 95 % of shuffled advantages",
      rows: rows.map((row) => ({
        name: name(row),
        band: [row.shuffled_low, row.shuffled_high],
        marks: [{ name: "spearman", value: row.spearman }],
      })),
    }),
    report.table(
      "Estimators",
      [
        { name: "estimator" },
        { name: "verdict" },
        { name: "correlation", class: "n" },
        { name: "shuffled", class: "n" },
        {
          name: "reliability",
          class: "n",
          title: "of the replayed difference: below 0.3 nothing can be said",
        },
        { name: "advantage 0", class: "n" },
        { name: "tokens", class: "n" },
      ],
      rows.map((row) => [
        name(row),
        report.el(
          "b",
          { class: row.verdict === "agrees" ? "good" : row.verdict === "inconclusive" ? "quiet" : "bad" },
          row.verdict,
        ),
        report.fixed(row.spearman),
        `${report.fixed(row.shuffled_low)} to ${report.fixed(row.shuffled_high)}`,
        report.fixed(row.reliability),
        report.percent(row.zero_advantages, 0),
        report.integer(row.tokens),
      ]),
    ),
  );
};
