// Tables and texts as the file of a report has them, made what they were: the forms of compact.py.
globalThis.report ??= {};

/** Integers of a text with a character each: every second code is negative; null is "!". */
report.integersOf = function (text) {
  const numbers = [];
  // by index, since an iterator makes a string of each character
  for (let i = 0; i < text.length; i++) {
    let code = text.charCodeAt(i);
    if (code >= 0xd800 && code < 0xe000) code = text.codePointAt(i++);
    if (code >= 0xe000) code -= 0x800;
    if (code > 92) code -= 1;
    const value = code - 35;
    numbers.push(value < 0 ? null : value % 2 ? -(value + 1) / 2 : value / 2);
  }
  return numbers;
};

/** A column that stands alone. */
report.expandColumn = function (column) {
  if (Array.isArray(column)) return column;
  if (column?.ints !== undefined) {
    let total = column.from ?? 0;
    const numbers = report.integersOf(column.ints);
    if (column.set) return numbers.map((place) => column.set[place]);
    const whole = column.sum ? numbers.map((difference) => (total += difference)) : numbers;
    return column.per ? whole.map((value) => (value === null ? null : value / column.per)) : whole;
  }
  if (column?.fields) {
    const table = report.expandTable(column.fields);
    const none = new Set(report.expandColumn(column.none));
    const length = report.count(table) + none.size;
    let at = 0;
    return Array.from({ length }, (_, i) => (none.has(i) ? null : report.row(table, at++)));
  }
  return column;
};

/** A table, in which columns may refer to others; in place. */
report.expandTable = function (table) {
  for (const [name, column] of Object.entries(table)) {
    if (name !== "length") table[name] = report.expandColumn(column);
  }
  for (const [name, column] of Object.entries(table)) {
    if (column?.joined) {
      const [first, second] = column.joined.map((other) => report.column(table, other));
      table[name] = Array.from({ length: report.count(table) }, (_, i) => `${first(i)}${column.by}${second(i)}`);
    } else if (column?.abs) table[name] = table[column.abs].map(Math.abs);
  }
  for (const [name, column] of Object.entries(table)) if (column?.same) table[name] = table[column.same];
  return table;
};

/** Log-probs before and after the update of the rows that have them, as two columns. */
report.expandTokens = function (tokens, length) {
  const sizes = report.expandColumn(tokens.sizes);
  const numbers = ["before", "change"].map((name) => report.integersOf(tokens[name].ints));
  const decimals = ["before", "change"].map((name) => report.expandColumn(tokens[name].decimals));
  const columns = { log_prob_before: Array(length).fill(null), log_prob_after: Array(length).fill(null) };
  let start = 0;
  report.expandColumn(tokens.rows).forEach((row, i) => {
    const [before, change] = numbers.map((all, k) =>
      all.slice(start, start + sizes[i]).map((n) => (n === null ? null : n / 10 ** decimals[k][i])),
    );
    start += sizes[i];
    columns.log_prob_before[row] = before;
    columns.log_prob_after[row] = before.map((b, j) => (b === null || change[j] === null ? null : b + change[j]));
  });
  return columns;
};

/** The columns of credit/ of some steps, by step. */
report.expandCredit = function (run, part) {
  const table = report.expandTable(part.columns);
  const rows = report.expandColumn(part.rows);
  const length = part.sizes.reduce((sum, size) => sum + size, 0);
  const episodes = part.rows ? report.episodesOfCalls(run) : [];
  for (const [name, column] of Object.entries(table)) {
    if (column.call) table[name] = rows.map((row) => report.value(run.calls, column.call, row));
    if (column.episode) table[name] = rows.map((row) => report.value(run.episodes, column.episode, episodes[row]));
    if (column.agent) table[name] = rows.map((row) => run.agents[report.value(run.calls, "agent", row)][column.agent]);
  }
  if (part.tokens) Object.assign(table, report.expandTokens(part.tokens, length));
  let start = 0;
  return part.steps.map((step, i) => {
    const [from, end] = [start, (start += part.sizes[i])];
    return [step, Object.fromEntries(Object.entries(table).map(([name, column]) => [name, column.slice(from, end)]))];
  });
};

/** Number of the episode of each call. */
report.episodesOfCalls = function (run) {
  const numbers = [];
  const count = report.column(run.episodes, "calls");
  for (let i = 0; i < report.count(run.episodes); i++) for (let j = 0; j < count(i); j++) numbers.push(i);
  return numbers;
};

/** The index of a report, in place. */
report.expandIndex = function (index) {
  for (const run of index.runs) {
    for (const name of ["episodes", "calls", "spans"]) report.expandTable(run[name]);
    if (run.credit?.parts)
      run.credit = {
        ...run.credit.plain,
        ...Object.fromEntries(run.credit.parts.flatMap((part) => report.expandCredit(run, part))),
      };
  }
  return index;
};

/** The texts of a chunk: of each episode its calls with the numbers of their strings. */
report.expandChunk = function (chunk) {
  if (chunk.texts === undefined) return chunk;
  const texts = report.integersOf(chunk.texts);
  const lines = report.expandColumn(chunk.lines);
  const objects = (table) => {
    report.expandTable(table);
    return Array.from({ length: report.count(table) }, (_, i) =>
      Object.fromEntries(Object.entries(report.row(table, i)).filter(([, value]) => value !== null)),
    );
  };
  const calls = objects(chunk.calls);
  let at = 0;
  let unseen = 0;
  const next = () => {
    const code = texts[at++];
    if (code === null) return undefined;
    const number = code === 0 ? unseen : code - 1;
    unseen = Math.max(unseen, number + 1);
    return number;
  };
  calls.forEach((call, i) => {
    call.prompt = Array.from({ length: lines[i] }, next);
    call.reply = next();
    const anchor = next();
    if (anchor !== undefined) call.anchor = anchor;
  });
  const counts = report.expandColumn(chunk.counts);
  let first = 0;
  const episodes = objects(chunk.episodes).map((episode, i) => ({
    ...episode,
    calls: calls.slice(first, (first += counts[i])),
  }));
  return { strings: chunk.strings, episodes };
};
