"use strict";
// Data and elements that every page uses: inflating, columns, text, lists, keys, the state in the address.
globalThis.report ??= {};

/** Inflate the gzip of JSON that stands as base64 in the element with this id. */
report.inflate = async function (id) {
  const binary = atob(document.getElementById(id).textContent.trim());
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
};

/** Read the index of the page, or ask the server for it. */
report.load = async function () {
  report.state = report.readState();
  report.index = document.getElementById("index")
    ? report.expandIndex(await report.inflate("index"))
    : await report.fetchJson("index");
};

/** The texts of chunk `number`: of the page, or asked from the server. The last 12 are remembered. */
report.chunk = function (number) {
  const cache = (report.chunks ??= new Map());
  let chunk = cache.get(number);
  if (!chunk) {
    const inPage = document.getElementById(`chunk-${number}`) !== null;
    chunk = inPage
      ? report.inflate(`chunk-${number}`).then(report.expandChunk)
      : report.fetchJson(`chunk/${number}`);
  }
  cache.delete(number);
  cache.set(number, chunk);
  if (cache.size > 12) cache.delete(cache.keys().next().value);
  return chunk;
};

report.fetchJson = async function (address) {
  const answer = await fetch(address, { cache: "no-store" });
  if (!answer.ok) throw new Error(`${address}: the server answered ${answer.status}`);
  return answer.json();
};

/** Value of row `i` in a table of columns; a column is an array, {all: value}, or absent (null). */
report.value = function (table, name, i) {
  const column = table?.[name];
  if (column === undefined || column === null) return null;
  return (Array.isArray(column) ? column[i] : column.all) ?? null;
};

/** A function that returns the value of a row in one column, for loops over many rows. */
report.column = function (table, name) {
  const column = table?.[name];
  if (Array.isArray(column)) return (i) => column[i] ?? null;
  const value = column?.all ?? null;
  return () => value;
};

/** Number of rows of a table of columns. */
report.count = (table) => table?.length ?? Object.values(table ?? {}).find(Array.isArray)?.length ?? 0;

/** Row `i` as an object. */
report.row = function (table, i) {
  const names = Object.keys(table ?? {}).filter((name) => name !== "length");
  return Object.fromEntries(names.map((name) => [name, report.value(table, name, i)]));
};

/** Add the rows of a table that begin at `from`: a live run grows. */
report.extend = function (table, rows, from) {
  const length = from + report.count(rows);
  for (const name of new Set([...Object.keys(table), ...Object.keys(rows)])) {
    if (name === "length") continue;
    const constant = table[name]?.all !== undefined && rows[name]?.all === table[name].all;
    if (constant) continue;
    table[name] = Array.from({ length }, (_, i) =>
      i < from ? report.value(table, name, i) : report.value(rows, name, i - from),
    );
  }
  table.length = length;
};

/** Every call of the training episodes of one step, with what identifies its episode. */
report.stepRows = function (run, step) {
  const ofEpisode = ["uid", "traj_uid", "task_id", "data_source", "index", "failure", "left_out", "step"];
  const ofCall = Object.keys(run.calls).filter((name) => name !== "length");
  const episodeColumns = ofEpisode.map((name) => [name, report.column(run.episodes, name)]);
  const callColumns = ofCall.map((name) => [name, report.column(run.calls, name)]);
  const [stepOf, splitOf, firstOf, countOf] = ["step", "split", "first_call", "calls"].map((name) =>
    report.column(run.episodes, name),
  );
  const rows = [];
  for (let i = 0; i < report.count(run.episodes); i++) {
    if (stepOf(i) !== step || splitOf(i) !== "train") continue;
    for (let call = firstOf(i); call < firstOf(i) + countOf(i); call++) {
      const row = { episode: i, row: call };
      for (const [name, value] of callColumns) row[name] = value(call);
      for (const [name, value] of episodeColumns) row[name] = value(i);
      row.agent = run.agents[row.agent]?.agent ?? String(row.agent);
      rows.push(row);
    }
  }
  return rows;
};

report.slug = (name) =>
  name
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "_")
    .replace(/^_+|_+$/g, "");

// Characters that would be invisible, move others, or break a line unseen.
report.HIDDEN = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e" +
    "\\u2060-\\u206f\\ufe00-\\ufe0e\\ufeff\\ufff0-\\ufffb\\u{e0000}-\\u{e01ef}\\ud800-\\udfff]",
  "gu",
);

report.codeOf = (character) => "U+" + character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");

/** A string with hidden characters replaced by their names, for labels. */
report.visible = (text) => String(text).replace(report.HIDDEN, (c) => `\u27e6${report.codeOf(c)}\u27e7`);

/** Append a long text to `parent`, hidden characters as marks; texts beyond 20,000 characters on request. */
report.appendText = function (parent, text, most = 20000) {
  const part = text.length > most + 2000 ? text.slice(0, most) : text;
  let last = 0;
  for (const match of part.matchAll(report.HIDDEN)) {
    if (match.index > last) parent.append(part.slice(last, match.index));
    parent.append(
      report.el("span", { class: "mark", title: "a character that cannot be seen" }, report.codeOf(match[0])),
    );
    last = match.index + match[0].length;
  }
  if (last < part.length) parent.append(part.slice(last));
  if (part.length === text.length) return parent;
  const button = report.el(
    "button",
    { type: "button", class: "more" },
    `show ${report.integer(text.length - part.length)} more characters`,
  );
  button.addEventListener("click", () => {
    const marker = document.createTextNode("");
    button.replaceWith(marker);
    report.appendText(parent, text.slice(part.length), 200000);
  });
  parent.append(button);
  return parent;
};

report.fill = function (node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    } else if (name === "css") {
      for (const [property, text] of Object.entries(value)) node.style.setProperty(property, text);
    } else {
      node.setAttribute(name, value === true ? "" : report.visible(value));
    }
  }
  for (const child of children.flat(4)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(report.visible(child)));
  }
  return node;
};

/** An element. `on` holds listeners, `css` style properties; strings among the children become text. */
report.el = (name, attributes = {}, ...children) =>
  report.fill(document.createElement(name), attributes, children);

/** The same in SVG. */
report.svg = (name, attributes = {}, ...children) =>
  report.fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

/** Nodes that `make` returns; the error of a file that is not what was expected, where it has one. */
report.drawn = function (make) {
  try {
    return [make()].flat(4).filter(Boolean);
  } catch (error) {
    console.error(error);
    const text = `This cannot be shown, because a file of the run is not what was expected: ${error}`;
    return [report.el("p", { class: "bad", role: "alert" }, text)];
  }
};

/** Whether a recorded flag is false; one that was not recorded is neither true nor false. */
report.isFalse = (flag) => flag === false || flag === 0;

report.isNumber = (x) => typeof x === "number" && Number.isFinite(x);
report.GROUPED = new Intl.NumberFormat("en-US");
report.integer = (x) => (report.isNumber(x) ? report.GROUPED.format(Math.round(x)) : "\u2013");
report.percent = (x, digits = 1) => (report.isNumber(x) ? `${(100 * x).toFixed(digits)} %` : "\u2013");

/** A number with about three significant digits; a dash if there is none. */
report.number = function (x) {
  if (!report.isNumber(x)) return x === null || x === undefined ? "\u2013" : String(x);
  const size = Math.abs(x);
  if (size === 0) return "0";
  if (size >= 1000) return report.integer(x);
  if (size < 0.001) return x.toExponential(1).replaceAll("-", "\u2212");
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return x.toFixed(digits).replace("-", "\u2212");
};

/** A number with a fixed count of digits, for columns of numbers of one size. */
report.fixed = (x, digits = 2) =>
  report.isNumber(x)
    ? x
        .toFixed(digits)
        .replace(/^-(?=.*[1-9])/, "\u2212")
        .replace(/^-/, "")
    : "\u2013";

/** A count with its noun: 1 call, 2 calls. */
report.many = (count, noun) => `${report.integer(count)} ${noun}${count === 1 ? "" : "s"}`;

report.signed = (x) => (report.isNumber(x) && x > 0 ? "+" : "") + report.number(x);

/** Seconds as 12 s, 3.4 min, 1.2 h. */
report.duration = function (seconds) {
  if (!report.isNumber(seconds)) return "\u2013";
  const short = (value, digits) => value.toFixed(Number.isInteger(value) ? 0 : digits);
  if (seconds > 0 && seconds < 1) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 100 && seconds !== 60) return `${short(seconds, seconds < 10 ? 1 : 0)} s`;
  return seconds < 6000 ? `${short(seconds / 60, 1)} min` : `${short(seconds / 3600, 1)} h`;
};

report.mean = function (values) {
  const numbers = values.filter(report.isNumber);
  return numbers.length ? numbers.reduce((sum, x) => sum + x, 0) / numbers.length : null;
};

/** Number of steps at the start and at the end that are averaged: 5, in a short run half of its steps. */
report.edgeSize = (run) =>
  Math.min(5, Math.max(1, Math.floor(run.steps.filter((step) => step > 0).length / 2)));

/** Name of the steps at an end, "last" or "first", that are averaged: last 3 steps, last step. */
report.edgeName = (end, size) => (size === 1 ? `${end} step` : `${end} ${size} steps`);

/** Mean of the first or last `n` numbers of a metric. */
report.edge = function (values, n, fromEnd = false) {
  const numbers = (values ?? []).filter(report.isNumber);
  return report.mean(fromEnd ? numbers.slice(-n) : numbers.slice(0, n));
};

/** The address after the `#`; one that `go` has drawn may not be in the address line yet. */
report.hash = () => report.drawnAddress ?? location.hash;

/** The state in the address, `#/page?run=0&episode=3`, as an object. */
report.readState = function () {
  const [page, query] = report.hash().replace(/^#\/?/, "").split("?", 2);
  return { ...Object.fromEntries(new URLSearchParams(query ?? "")), page: page || "overview" };
};

/** Address of the present state with some values changed; null removes one. Another page starts afresh. */
report.address = function (changes) {
  const kept =
    (changes.page ?? report.state.page) === report.state.page ? report.state : { run: report.state.run };
  const { page, ...values } = { page: report.state.page, ...kept, ...changes };
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, value);
  }
  return `#/${page}${query.size ? "?" : ""}${query}`;
};

/** Go to another state; `replace` adds nothing to the history. */
report.go = function (changes, replace = false) {
  const address = report.address(changes);
  if (address === report.hash()) return;
  if (!replace) {
    report.writeAddress(location.hash);
    location.hash = address;
    return;
  }
  // The first change of an address takes a browser several milliseconds, so the page is drawn before it.
  if (report.drawnAddress === undefined) setTimeout(report.writeAddress, 0, location.hash);
  report.drawnAddress = address;
  report.draw();
};

/** Write the address of a page that `go` has drawn into the address line, unless it is no longer that of `before`. */
report.writeAddress = function (before) {
  const address = report.drawnAddress;
  delete report.drawnAddress;
  if (address !== undefined && location.hash === before) history.replaceState(null, "", address);
};

report.link = (changes, ...children) => report.el("a", { href: report.address(changes) }, ...children);

/** A labelled select: options are [value, text]; a change is given to `onChange`. */
report.select = function (id, label, options, value, onChange) {
  const select = report.el(
    "select",
    { id, on: { change: (event) => onChange(event.target.value) } },
    options.map(([key, text]) => report.el("option", { value: key }, text)),
  );
  select.value = String(value ?? "");
  return report.el("label", { class: "field", for: id }, report.el("span", {}, label), select);
};

/** A labelled text field; a change is given to `onChange` 200 ms after the last key. */
report.textField = function (id, label, value, onChange, hint = "") {
  let timer = 0;
  const input = report.el("input", {
    id,
    type: "search",
    placeholder: hint,
    autocomplete: "off",
    spellcheck: "false",
    on: {
      input: (event) => {
        clearTimeout(timer);
        timer = setTimeout(() => onChange(event.target.value), 200);
      },
    },
  });
  input.value = value ?? "";
  return report.el("label", { class: "field", for: id }, report.el("span", {}, label), input);
};

/** Part of a page that is opened on request; `draw` makes its content at the first opening. */
report.folded = function (summary, draw, attributes = {}) {
  const body = report.el("div", { class: "folded" });
  const details = report.el("details", attributes, report.el("summary", {}, summary), body);
  const fillOnce = () => {
    if (details.open && !body.firstChild) body.append(...[draw()].flat());
  };
  details.addEventListener("toggle", fillOnce);
  fillOnce();
  return details;
};

/** A table: `columns` are {name, class, title}, `rows` arrays of strings or nodes. */
report.table = function (caption, columns, rows) {
  return report.el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    report.el(
      "table",
      {},
      report.el("caption", { class: "unseen" }, caption),
      report.el(
        "thead",
        {},
        report.el(
          "tr",
          {},
          columns.map((column) =>
            report.el("th", { scope: "col", class: column.class, title: column.title }, column.name),
          ),
        ),
      ),
      report.el(
        "tbody",
        {},
        rows.map((row) =>
          report.el(
            "tr",
            {},
            row.map((cell, i) =>
              report.el(i ? "td" : "th", { scope: i ? null : "row", class: columns[i].class }, cell),
            ),
          ),
        ),
      ),
    ),
  );
};

/**
 * A list of which only the rows in view are in the document. Arrow keys, Page Up and Down, Home and End move,
 * Enter opens. `draw(i)` returns the children of row i, `open(i)` is called for the row that is chosen.
 * Returns {element, fill, choose}: `fill(count, chosen, keep)` gives it other rows, from the first one on unless
 * `keep`; `choose(i)` marks another row.
 */
report.list = function ({ id, label, rowHeight, draw, open }) {
  let count = 0;
  let active = 0;
  let chosen = -1;
  // As of the last event: to ask the element for them would lay the page out once more.
  let top = 0;
  let height = 0;
  const rows = new Map();
  const inner = report.el("div", { class: "list-inner", role: "presentation" });
  const list = report.el(
    "div",
    { id, class: "list", role: "listbox", tabindex: "0", "aria-label": label },
    inner,
  );
  const rowOf = (i) =>
    report.el(
      "div",
      {
        id: `${id}-${i}`,
        class: i === active ? "row active" : "row",
        role: "option",
        "aria-selected": String(i === chosen),
        "aria-setsize": count,
        "aria-posinset": i + 1,
        css: { top: `${i * rowHeight}px`, height: `${rowHeight}px` },
        on: {
          click: () => {
            activate(i);
            open(i);
          },
        },
      },
      draw(i),
    );
  const show = () => {
    // Rows beyond the edges are there before a reader scrolls to them, but not before the list is seen.
    const spare = height ? 8 : 0;
    const first = Math.max(0, Math.min(Math.floor(top / rowHeight) - spare, count - 1));
    const end = Math.min(count, Math.ceil((top + (height || 600)) / rowHeight) + spare);
    for (const [i, row] of rows) {
      if (i >= first && i < end) continue;
      row.remove();
      rows.delete(i);
    }
    for (let i = first; i < end; i++) {
      if (rows.has(i)) continue;
      const row = rowOf(i);
      rows.set(i, row);
      // The rows before it are there already, so its place among the children is known.
      inner.insertBefore(row, inner.children[i - first] ?? null);
    }
    if (count) list.setAttribute("aria-activedescendant", `${id}-${active}`);
    else list.removeAttribute("aria-activedescendant");
  };
  const activate = (i) => {
    rows.get(active)?.classList.remove("active");
    active = i;
    rows.get(active)?.classList.add("active");
    list.setAttribute("aria-activedescendant", `${id}-${active}`);
  };
  const scrollTo = (place) => {
    list.scrollTop = place;
    top = list.scrollTop;
    show();
  };
  /** Bring the active row into view: to an edge, or to the middle where it is far. */
  const reveal = (toMiddle = false) => {
    const above = active * rowHeight;
    const isSeen = above >= top && above + rowHeight <= top + height;
    if (isSeen || !height) show();
    else if (toMiddle) scrollTo(above - height / 2);
    else scrollTo(above < top ? above : above + rowHeight - height);
  };
  const fill = (n, picked, keep = false) => {
    count = n;
    chosen = picked;
    active = Math.max(0, picked >= 0 || !keep ? picked : Math.min(active, count - 1));
    inner.style.setProperty("height", `${count * rowHeight}px`);
    inner.replaceChildren();
    rows.clear();
    if (!keep && top) {
      list.scrollTop = 0;
      top = 0;
    }
    if (picked >= 0 && !keep) reveal(true);
    else show();
  };
  const choose = (picked) => {
    rows.get(chosen)?.setAttribute("aria-selected", "false");
    chosen = picked;
    rows.get(chosen)?.setAttribute("aria-selected", "true");
    if (picked < 0) return;
    activate(picked);
    reveal(true);
  };
  list.addEventListener(
    "scroll",
    () => {
      top = list.scrollTop;
      show();
    },
    { passive: true },
  );
  list.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(height / rowHeight) - 1);
    const moves = {
      ArrowDown: active + 1,
      ArrowUp: active - 1,
      PageDown: active + page,
      PageUp: active - page,
      Home: 0,
      End: count - 1,
    };
    if (event.key in moves) {
      if (count) activate(Math.min(count - 1, Math.max(0, moves[event.key])));
      reveal();
      event.preventDefault();
    } else if (event.key === "Enter" && count) {
      open(active);
      event.preventDefault();
    }
  });
  new ResizeObserver(() => {
    const isFirst = !height;
    height = list.clientHeight;
    top = list.scrollTop;
    if (isFirst && chosen >= 0) reveal(true);
    else show();
  }).observe(list);
  return { element: list, fill, choose };
};
