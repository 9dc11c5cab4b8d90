// Charts in SVG: lines with bands and points with intervals, intervals by row, lanes over time, heat strips.
globalThis.report ??= {};

/** Round bounds and ticks for values from low to high. */
report.ticks = function (low, high, count = 5, inTime = false) {
  if (!(high > low)) return { low, high: low + 1, ticks: [low, low + 1] };
  const rough = (high - low) / count;
  // Times from 20 seconds on have ticks at minutes and hours.
  const unit = !inTime || rough <= 20 ? 1 : rough <= 1800 ? 60 : 3600;
  const power = 10 ** Math.floor(Math.log10(rough / unit));
  const step = unit * (power * [1, 2, 5, 10].find((factor) => factor * power * unit >= rough));
  const first = Math.floor(low / step + 1e-9);
  const last = Math.ceil(high / step - 1e-9);
  const ticks = Array.from({ length: last - first + 1 }, (_, i) =>
    Number(((first + i) * step).toPrecision(12)),
  );
  return { low: ticks[0], high: ticks.at(-1), ticks };
};

/** Labels of ticks: numbers with as many digits as their distance needs, times in one unit, else by `format`. */
report.tickLabels = function (ticks, format) {
  if (format === report.duration) {
    const step = ticks[1] - ticks[0];
    const [size, unit] =
      step >= 3600 ? [3600, "h"] : step >= 60 ? [60, "min"] : ticks.at(-1) >= 1 ? [1, "s"] : [0.001, "ms"];
    return ticks.map((tick) => `${Number((tick / size).toPrecision(6))} ${unit}`);
  }
  if (format !== report.number) return ticks.map(format);
  const digits = Math.max(0, -Math.floor(Math.log10(ticks[1] - ticks[0]) + 1e-9));
  const small = digits > 6;
  return ticks.map((tick) => (small || Math.abs(tick) >= 1000 ? format(tick) : report.fixed(tick, digits)));
};

/** A name cut to the pixels that it has. */
report.cut = (name, width) =>
  name.length > width / 7 ? `${name.slice(0, Math.floor(width / 7) - 1)}\u2026` : name;

/** A figure whose SVG is drawn for the width it gets, and again when that changes. */
report.figure = function ({ title, note, readout, legend, draw, height, after }) {
  const frame = report.el("div", { class: "frame" });
  const figure = report.el(
    "figure",
    { class: "chart" },
    report.el(
      "figcaption",
      {},
      report.el("b", {}, title),
      note ? report.el("span", { class: "quiet" }, note) : null,
      readout,
    ),
    legend,
    frame,
    after,
  );
  let drawn = 0;
  const redraw = (width) => {
    if (width < 40 || Math.abs(width - drawn) < 2) return;
    drawn = width;
    frame.replaceChildren(draw(width, height));
  };
  new ResizeObserver((entries) => redraw(entries[0].contentRect.width)).observe(frame);
  return figure;
};

/** Names beside the signs of their series: a line, or a dot with an interval where `isDot(i)`. */
report.legend = (names, isDot = () => false) =>
  names.length < 2
    ? null
    : report.el(
        "ul",
        { class: "legend" },
        names.map((name, i) =>
          report.el(
            "li",
            {},
            report.svg(
              "svg",
              { width: 22, height: 8, "aria-hidden": "true" },
              isDot(i)
                ? [
                    report.svg("line", { class: `whisker s${i % 8}`, x1: 3, x2: 19, y1: 4, y2: 4 }),
                    report.svg("circle", { class: `dot s${i % 8}`, cx: 11, cy: 4, r: 3.5 }),
                  ]
                : report.svg("line", { class: `line s${i % 8}`, x1: 0, x2: 22, y1: 4, y2: 4 }),
            ),
            name,
          ),
        ),
      );

/** Pieces of the path of a line; a missing value makes a gap. */
report.linePath = function (points) {
  let path = "";
  let pen = false;
  for (const [x, y] of points) {
    if (Number.isFinite(y)) path += `${pen ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = Number.isFinite(y);
  }
  return path;
};

report.summaryOf = function (series, x, format, unit = "step") {
  return series
    .map(({ name, values }) => {
      const ends = values.map((v, i) => [x[i], v]).filter(([, v]) => report.isNumber(v));
      if (!ends.length) return `${name}: no values`;
      const [first, last] = [ends[0], ends.at(-1)];
      const numbers = ends.map(([, v]) => v);
      return (
        `${name}: ${format(first[1])} at ${unit} ${first[0]}, ${format(last[1])} at ${unit} ${last[0]}, ` +
        `lowest ${format(Math.min(...numbers))}, highest ${format(Math.max(...numbers))}`
      );
    })
    .join("; ");
};

/**
 * Lines over steps. `series`: {name, values, low?, high? (a band), points? [{step, rate, low, high}] with
 * intervals}; `bounds`: [low, high] that the axis has at least; `format`: of a value as text.
 */
report.lineChart = function ({
  title,
  note,
  x,
  series,
  bounds,
  format = report.number,
  height = 190,
  unit = "step",
}) {
  const live = report.el("span", { class: "readout", "aria-live": "polite" });
  const shown = series.filter((s) => (s.values ?? []).some(report.isNumber) || s.points?.length);
  const columns = [{ name: unit, class: "n" }, ...shown.map((s) => ({ name: s.name, class: "n" }))];
  const table = report.folded(
    "as a table",
    () =>
      report.table(
        title,
        columns,
        x.map((step, i) => [String(step), ...shown.map((s) => format(s.values?.[i] ?? null))]),
      ),
    { class: "data" },
  );
  const draw = (width) =>
    report.drawLines({ title, x, series: shown, bounds, format, height, width, live, unit });
  return report.figure({
    title,
    note,
    legend: report.legend(
      shown.map((s) => s.name),
      (i) => !shown[i].values?.length,
    ),
    draw,
    height,
    readout: live,
    after: table,
  });
};

report.drawLines = function ({ title, x, series, bounds, format, height, width, live, unit }) {
  const all = [...(bounds ?? [])];
  for (const s of series) {
    for (const list of [s.values, s.low, s.high]) all.push(...(list ?? []).filter(report.isNumber));
    for (const point of s.points ?? []) all.push(point.low ?? point.rate, point.high ?? point.rate);
  }
  if (!all.length)
    return report.svg(
      "svg",
      { width, height: 40, role: "img", "aria-label": `${title}: no values` },
      report.svg("text", { x: 4, y: 24, class: "axis" }, "no values yet"),
    );
  const scale = report.ticks(Math.min(...all), Math.max(...all), 5, format === report.duration);
  const pointSteps = series.flatMap((s) => (s.points ?? []).map((point) => point.step));
  const [from, to] = [Math.min(...x, ...pointSteps), Math.max(...x, ...pointSteps)];
  const labels = report.tickLabels(scale.ticks, format);
  const left = 12 + 7 * Math.max(...labels.map((label) => label.length));
  const right = 12;
  const [top, bottom] = [8, height - 22];
  const atX = (step) => left + ((step - from) / (to - from || 1)) * (width - left - right);
  const atY = (value) => bottom - ((value - scale.low) / (scale.high - scale.low)) * (bottom - top);
  const parts = scale.ticks.map((tick, i) => [
    report.svg("line", { class: "grid", x1: left, x2: width - right, y1: atY(tick), y2: atY(tick) }),
    report.svg("text", { class: "axis end", x: left - 6, y: atY(tick) + 4 }, labels[i]),
  ]);
  const marks = report
    .ticks(from, to, Math.max(2, Math.floor(width / 110)))
    .ticks.filter((tick) => tick >= from && tick <= to && Number.isInteger(tick));
  parts.push(
    marks.map((tick) => report.svg("text", { class: "axis mid", x: atX(tick), y: height - 6 }, tick)),
  );
  series.forEach((s, i) => parts.push(report.drawSeries(s, i, x, atX, atY)));
  const cursor = report.svg("line", { class: "cursor", y1: top, y2: bottom, x1: -9, x2: -9 });
  const svg = report.svg(
    "svg",
    {
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      tabindex: "0",
      "aria-label": `${title}. ${report.summaryOf(series, x, format, unit)}. Arrow keys read its values.`,
    },
    parts,
    cursor,
  );
  let at = -1;
  const read = (i) => {
    if (!x.length) return;
    at = Math.min(x.length - 1, Math.max(0, i));
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, atX(x[at]));
    const values = series
      .filter((s) => report.isNumber(s.values?.[at]))
      .map((s) => (series.length > 1 ? `${s.name} ` : "") + format(s.values[at]));
    live.textContent = report.visible(`${unit} ${x[at]}: ${values.join(", ") || "no value"}`);
  };
  svg.addEventListener("pointermove", (event) => {
    const step = from + ((event.offsetX - left) / (width - left - right)) * (to - from);
    read(x.reduce((best, value, i) => (Math.abs(value - step) < Math.abs(x[best] - step) ? i : best), 0));
  });
  svg.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    read(at < 0 ? x.length - 1 : at + (event.key === "ArrowRight" ? 1 : -1));
    event.preventDefault();
  });
  return svg;
};

report.drawSeries = function (series, number, x, atX, atY) {
  const colour = `s${number % 8}`;
  const parts = [];
  if (series.low && series.high) {
    const kept = x
      .map((step, i) => [atX(step), series.low[i], series.high[i]])
      .filter(([, low, high]) => report.isNumber(low) && report.isNumber(high));
    const edge = [
      ...kept.map(([px, , high]) => [px, atY(high)]),
      ...kept.reverse().map(([px, low]) => [px, atY(low)]),
    ];
    if (edge.length)
      parts.push(report.svg("path", { class: `band ${colour}`, d: `${report.linePath(edge)}Z` }));
  }
  const points = x.map((step, i) => [
    atX(step),
    report.isNumber(series.values?.[i]) ? atY(series.values[i]) : NaN,
  ]);
  // Values with gaps between them all would be invisible as a line.
  const joined = points.filter(([, y]) => Number.isFinite(y));
  const line = joined.length * 2 < points.length ? joined : points;
  parts.push(report.svg("path", { class: `line ${colour}`, d: report.linePath(line) }));
  if (joined.length < 3)
    joined.forEach(([cx, cy]) => parts.push(report.svg("circle", { class: `dot ${colour}`, cx, cy, r: 3 })));
  for (const point of series.points ?? []) {
    const px = atX(point.step);
    if (report.isNumber(point.low))
      parts.push(
        report.svg("line", {
          class: `whisker ${colour}`,
          x1: px,
          x2: px,
          y1: atY(point.low),
          y2: atY(point.high),
        }),
      );
    parts.push(report.svg("circle", { class: `dot ${colour}`, cx: px, cy: atY(point.rate), r: 3.5 }));
  }
  return parts;
};

/** A small line without axes, for tables. */
report.spark = function (values, label) {
  const [width, height] = [88, 22];
  const numbers = values.filter(report.isNumber);
  if (numbers.length < 2) return "";
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  const points = numbers.map((value, i) => [
    2 + (i / (numbers.length - 1)) * (width - 4),
    high > low ? height - 3 - ((value - low) / (high - low)) * (height - 6) : height / 2,
  ]);
  return report.svg(
    "svg",
    {
      width,
      height,
      class: "spark",
      role: "img",
      "aria-label": `${label}: ${report.number(numbers[0])} to ${report.number(numbers.at(-1))}`,
    },
    report.svg("path", { class: "line s0", d: report.linePath(points) }),
    report.svg("circle", { class: "dot s0", cx: points.at(-1)[0], cy: points.at(-1)[1], r: 2 }),
  );
};

/**
 * Points with intervals, one row each. `rows`: {name, marks: [{value, low, high, name}]}; a vertical line at
 * `zero` if it is given, and a grey band from row.band[0] to row.band[1].
 */
report.intervals = function ({ title, note, rows, bounds, zero, format = report.number }) {
  const names = rows[0]?.marks.map((mark) => mark.name) ?? [];
  const text = (mark) => `${format(mark.value)} [${format(mark.low)}, ${format(mark.high)}]`;
  const height = 30 + 30 * rows.length;
  const draw = (width) => {
    const numbers = [
      ...(bounds ?? []),
      ...rows.flatMap((row) => [
        ...(row.band ?? []),
        ...row.marks.flatMap((mark) => [mark.value, mark.low, mark.high]),
      ]),
    ].filter(report.isNumber);
    const scale = report.ticks(Math.min(0, ...numbers), Math.max(0, ...numbers));
    const left = Math.min(0.4 * width, 16 + 7 * Math.max(...rows.map((row) => row.name.length)));
    const atX = (value) => left + 6 + ((value - scale.low) / (scale.high - scale.low)) * (width - left - 26);
    const labels = report.tickLabels(scale.ticks, format);
    const parts = scale.ticks.map((tick, i) => [
      report.svg("line", { class: "grid", x1: atX(tick), x2: atX(tick), y1: 4, y2: height - 22 }),
      report.svg("text", { class: "axis mid", x: atX(tick), y: height - 6 }, labels[i]),
    ]);
    if (report.isNumber(zero))
      parts.push(
        report.svg("line", { class: "cursor", x1: atX(zero), x2: atX(zero), y1: 4, y2: height - 22 }),
      );
    rows.forEach((row, i) => {
      const middle = 18 + 30 * i;
      const name = report.cut(row.name, left);
      parts.push(report.svg("text", { class: "axis end", x: left - 6, y: middle + 4 }, name));
      if (row.band?.every(report.isNumber))
        parts.push(
          report.svg("rect", {
            class: "greyband",
            x: atX(row.band[0]),
            y: middle - 10,
            width: Math.max(1, atX(row.band[1]) - atX(row.band[0])),
            height: 20,
          }),
        );
      row.marks.forEach((mark, j) => {
        const y = middle + 9 * (j - (row.marks.length - 1) / 2);
        if (report.isNumber(mark.low))
          parts.push(
            report.svg("line", {
              class: `whisker s${j}`,
              x1: atX(mark.low),
              x2: atX(mark.high),
              y1: y,
              y2: y,
            }),
          );
        if (report.isNumber(mark.value))
          parts.push(report.svg("circle", { class: `dot s${j}`, cx: atX(mark.value), cy: y, r: 4 }));
      });
    });
    const label = rows
      .map((row) => `${row.name}: ${row.marks.map((mark) => `${mark.name} ${text(mark)}`).join(", ")}`)
      .join("; ");
    return report.svg(
      "svg",
      { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}. ${label}` },
      parts,
    );
  };
  return report.figure({ title, note, legend: report.legend(names, () => true), draw, height });
};

/**
 * Spans in lanes over time, in seconds. `lanes`: {name, spans: [{start, end, name, kind, open}]}, `kind` the
 * number of a colour. Spans that would be narrower than a pixel are joined with the one before.
 */
report.lanes = function ({
  title,
  note,
  lanes,
  from,
  to,
  legend,
  after,
  marks = [],
  format = report.duration,
}) {
  const height = 26 + 26 * lanes.length;
  const draw = (width) => {
    const left = Math.min(0.34 * width, 14 + 7 * Math.max(4, ...lanes.map((lane) => lane.name.length)));
    const atX = (time) => left + ((time - from) / (to - from || 1)) * (width - left - 20);
    const { ticks } = report.ticks(0, to - from, Math.max(2, Math.floor(width / 130)), format === report.duration);
    const labels = report.tickLabels(ticks, format);
    const parts = ticks
      .filter((tick) => tick <= to - from && (format === report.duration || Number.isInteger(tick)))
      .map((tick, i) => [
        report.svg("line", {
          class: "grid",
          x1: atX(from + tick),
          x2: atX(from + tick),
          y1: 0,
          y2: height - 20,
        }),
        report.svg(
          "text",
          { class: "axis mid", x: atX(from + tick), y: height - 5 },
          tick ? labels[i] : "0",
        ),
      ]);
    marks.forEach((mark) =>
      parts.push(
        report.svg("line", { class: "cursor", x1: atX(mark), x2: atX(mark), y1: 0, y2: height - 20 }),
      ),
    );
    lanes.forEach((lane, i) => {
      const name = report.cut(lane.name, left);
      parts.push(report.svg("text", { class: "axis end", x: left - 6, y: 26 * i + 17 }, name));
      let end = -1;
      for (const span of lane.spans) {
        const x = Math.max(left, atX(span.start));
        const x2 = Math.min(width - 20, atX(span.end));
        if (x2 < left || x > width - 20 || x2 < end + 0.7) continue;
        end = x2;
        parts.push(
          report.svg(
            "rect",
            {
              class: `span s${span.kind % 8}${span.open ? " open" : ""}`,
              x,
              y: 26 * i + 4,
              width: Math.max(1, x2 - x - 0.5),
              height: 18,
              rx: 2,
            },
            report.svg("title", {}, span.name),
          ),
        );
      }
    });
    const label = lanes.map((lane) => `${lane.name}: ${lane.spans.length} spans`).join(", ");
    return report.svg(
      "svg",
      { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}. ${label}` },
      parts,
    );
  };
  return report.figure({ title, note, legend, draw, height, after });
};

/** Steps and rows of values with at most `most` columns: neighbours are averaged, empty steps left out. */
report.condensed = function (steps, rows, most = 240) {
  const filled = steps.map((_, i) => i).filter((i) => rows.some((row) => report.isNumber(row.values[i])));
  const size = Math.max(1, Math.ceil(filled.length / most));
  const bins = [];
  for (let i = 0; i < filled.length; i += size) bins.push(filled.slice(i, i + size));
  return {
    x: bins.map((bin) => steps[bin[0]]),
    rows: rows.map((row) => ({
      ...row,
      values: bins.map((bin) => report.mean(bin.map((i) => row.values[i]))),
    })),
  };
};

/** One row of cells a series, darker for higher values between `bounds`. */
report.heat = function ({ title, note, x: steps, rows: all, bounds = [0, 1], format = report.percent }) {
  const { x, rows } = report.condensed(steps, all);
  const height = 24 + 24 * rows.length;
  const draw = (width) => {
    const left = Math.min(0.34 * width, 14 + 7 * Math.max(4, ...rows.map((row) => row.name.length)));
    const cell = (width - left - 20) / Math.max(1, x.length);
    const parts = [];
    rows.forEach((row, i) => {
      const name = report.cut(row.name, left);
      parts.push(report.svg("text", { class: "axis end", x: left - 6, y: 24 * i + 16 }, name));
      row.values.forEach((value, j) => {
        if (!report.isNumber(value)) return;
        const share = Math.min(1, Math.max(0, (value - bounds[0]) / (bounds[1] - bounds[0])));
        parts.push(
          report.svg(
            "rect",
            {
              class: "cell",
              x: left + j * cell,
              y: 24 * i + 2,
              width: Math.max(0.5, cell - (cell > 4 ? 1 : 0)),
              height: 20,
              "fill-opacity": (0.06 + 0.94 * share).toFixed(3),
            },
            report.svg("title", {}, `step ${x[j]}: ${format(value)}`),
          ),
        );
      });
    });
    const every = Math.max(1, Math.ceil(x.length / Math.max(2, Math.floor(width / 80))));
    x.forEach((step, j) => {
      if (j % every === 0)
        parts.push(
          report.svg("text", { class: "axis mid", x: left + (j + 0.5) * cell, y: height - 5 }, step),
        );
    });
    return report.svg(
      "svg",
      {
        width,
        height,
        viewBox: `0 0 ${width} ${height}`,
        role: "img",
        "aria-label": `${title}. ${report.summaryOf(rows, x, format)}`,
      },
      parts,
    );
  };
  return report.figure({ title, note, draw, height });
};
