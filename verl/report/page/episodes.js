// Episodes: what did they say, and why was it paid? The list with its filters, and one episode.
globalThis.report ??= {};

report.RESULTS = [
  ["", "all results"],
  ["success", "success"],
  ["wrong", "no success"],
  ["failed", "failed"],
  ["left", "left out of training"],
  ["silent", "group without spread"],
];
report.ORDERS = [
  ["", "as played"],
  ["low", "lowest reward"],
  ["high", "highest reward"],
  ["long", "most calls"],
];

/** Uids of groups whose episodes all have one team reward. */
report.flatGroups = function (run) {
  if (run.flat) return run.flat;
  const groups = new Map();
  const uid = report.column(run.episodes, "uid");
  const reward = report.column(run.episodes, "team_reward");
  for (let i = 0; i < report.count(run.episodes); i++) {
    const group = groups.get(uid(i));
    if (!group) groups.set(uid(i), { reward: reward(i), count: 1, flat: true });
    else {
      group.count += 1;
      if (reward(i) !== group.reward) group.flat = false;
    }
  }
  run.flat = new Set([...groups].filter(([, group]) => group.flat && group.count > 1).map(([name]) => name));
  return run.flat;
};

/** What a text is searched in, as tables and their columns. */
report.SEARCHED = [
  ["episodes", "task_id"],
  ["episodes", "answer"],
  ["episodes", "failure"],
  ["calls", "action"],
];

/** The texts of a column in lower case, one after the other, and the place where each ends. */
report.joinedTexts = function (column) {
  const text = column.join("\n");
  let lower = text.toLowerCase();
  let parts = column;
  if (lower.length !== text.length) {
    // A few capitals have two characters in lower case, which moves the places after them.
    parts = column.map((value) => String(value ?? "").toLowerCase());
    lower = parts.join("\n");
  }
  return { text: lower, ends: report.endsOf(parts) };
};

/** Place where each of some texts ends, if they stand one after the other with a character between them. */
report.endsOf = function (parts) {
  const ends = new Float64Array(parts.length);
  let place = 0;
  for (let i = 0; i < parts.length; i++) {
    const part = parts[i];
    place += (typeof part === "string" ? part.length : String(part ?? "").length) + 1;
    ends[i] = place;
  }
  return ends;
};

/** The joined texts of a column, which are made once; null for a column with one value. */
report.joinedColumn = function (run, table, name) {
  const column = run[table]?.[name];
  return Array.isArray(column) ? ((run.searched ??= {})[name] ??= report.joinedTexts(column)) : null;
};

/** Numbers of the rows of a table in whose column a text is, which is in lower case. */
report.searchColumn = function (run, table, name, wanted) {
  const joined = report.joinedColumn(run, table, name);
  if (!joined) {
    const value = String(run[table]?.[name]?.all ?? "").toLowerCase();
    return value.includes(wanted) ? Array.from({ length: report.count(run[table]) }, (_, i) => i) : [];
  }
  // One search in one long text: a search in each of thousands of texts takes ten times as long.
  const { text, ends } = joined;
  const rows = [];
  let at = text.indexOf(wanted);
  let i = 0;
  while (at >= 0 && i < ends.length) {
    while (ends[i] <= at) i++;
    const isInside = at + wanted.length < ends[i];
    if (isInside) rows.push(i);
    at = text.indexOf(wanted, isInside ? ends[i] : at + 1);
  }
  return rows;
};

/** Join what a text is searched in while the page has nothing else to do: the first search finds it there. */
report.prepareSearch = function (run) {
  const idle = globalThis.requestIdleCallback ?? setTimeout; // which Safari lacks
  const left = [...report.SEARCHED];
  const next = () => {
    report.joinedColumn(run, ...left.pop());
    if (left.length) idle(next);
  };
  idle(next);
};

/** Numbers of the episodes of which task, answer, failure or an action contains a text, in any case. */
report.searchEpisodes = function (run, text) {
  const wanted = text.toLowerCase();
  const count = report.count(run.episodes);
  const isFit = new Uint8Array(count);
  for (const name of ["task_id", "answer", "failure"])
    for (const i of report.searchColumn(run, "episodes", name, wanted)) isFit[i] = 1;
  const first = report.column(run.episodes, "first_call");
  const length = report.column(run.episodes, "calls");
  let i = 0;
  for (const call of report.searchColumn(run, "calls", "action", wanted)) {
    while (i < count && first(i) + length(i) <= call) i++;
    if (i < count) isFit[i] = 1;
  }
  const numbers = [];
  for (let episode = 0; episode < count; episode++) if (isFit[episode]) numbers.push(episode);
  return numbers;
};

/** Numbers of the episodes that the filters of the state let through, in the order it asks for. */
report.filterEpisodes = function (run, state) {
  const names = ["step", "split", "success", "failure", "left_out", "uid", "team_reward", "calls"];
  const [step, split, success, failure, leftOut, uid, reward, length] = names.map((name) =>
    report.column(run.episodes, name),
  );
  const tests = [];
  if (state.split) tests.push((i) => split(i) === state.split);
  if (state.step) tests.push((i) => step(i) === Number(state.step));
  if (state.uid) tests.push((i) => uid(i) === state.uid);
  if (state.result === "success") tests.push((i) => !failure(i) && success(i) > 0);
  if (state.result === "wrong") tests.push((i) => !failure(i) && success(i) !== null && !(success(i) > 0));
  if (state.result === "failed") tests.push((i) => Boolean(failure(i)));
  if (state.result === "left") tests.push((i) => Boolean(leftOut(i)));
  if (state.result === "silent") tests.push((i) => report.flatGroups(run).has(uid(i)));
  if (state.alarm) {
    const shown = new Set(run.alarms.find((alarm) => String(alarm.number) === state.alarm)?.episodes ?? []);
    tests.push((i) => shown.has(i));
  }
  let numbers = state.text
    ? report.searchEpisodes(run, state.text)
    : Array.from({ length: report.count(run.episodes) }, (_, i) => i);
  for (const test of tests) numbers = numbers.filter(test);
  if (state.sort === "low") numbers.sort((a, b) => (reward(a) ?? 0) - (reward(b) ?? 0));
  if (state.sort === "high") numbers.sort((a, b) => (reward(b) ?? 0) - (reward(a) ?? 0));
  if (state.sort === "long") numbers.sort((a, b) => length(b) - length(a));
  return numbers;
};

report.mark = function (run, i) {
  if (report.value(run.episodes, "failure", i)) return ["!", "failed", "bad"];
  const success = report.value(run.episodes, "success", i);
  if (success === null) return ["\u00b7", "no success recorded", "quiet"];
  return success > 0 ? ["\u2713", "success", "good"] : ["\u2717", "no success", "wrong"];
};

/** Task of an episode without the folder of its data set, which is the same in most rows. */
report.shortTask = function (run, i) {
  const task = String(report.value(run.episodes, "task_id", i));
  const folder = String(report.value(run.episodes, "data_source", i) ?? "").replace(/[^/]*$/, "");
  return task.startsWith(folder) ? task.slice(folder.length) : task;
};

report.episodeRow = function (run, i) {
  const [sign, word, kind] = report.mark(run, i);
  const leftOut = report.value(run.episodes, "left_out", i);
  return [
    report.el("span", { class: `sign ${kind}`, title: word, role: "img", "aria-label": word }, sign),
    report.el(
      "span",
      { class: "name", title: report.value(run.episodes, "task_id", i) },
      report.shortTask(run, i),
      leftOut ? report.el("span", { class: "quiet" }, ` ${leftOut}`) : null,
    ),
    report.el("span", { class: "n quiet" }, `#${report.value(run.episodes, "index", i)}`),
    report.el("span", { class: "n" }, report.fixed(report.value(run.episodes, "team_reward", i))),
    report.el(
      "span",
      { class: "n quiet" },
      `${report.value(run.episodes, "split", i) === "val" ? "val " : ""}` +
        `step ${report.value(run.episodes, "step", i)}`,
    ),
  ];
};

/** Steps of which there are episodes, in order. */
report.episodeSteps = function (run) {
  const step = report.column(run.episodes, "step");
  const steps = new Set();
  let last = null;
  for (let i = 0; i < report.count(run.episodes); i++) {
    // Episodes of a step lie together.
    if (step(i) !== last) steps.add((last = step(i)));
  }
  return [...steps].filter(report.isNumber).sort((a, b) => a - b);
};

report.FILTERS = ["split", "step", "result", "sort", "text", "uid", "alarm"];

/** The filters, and a function that lets them show a state. */
report.makeFilters = function (run, state) {
  const set = (name) => (value) => report.go({ [name]: value, episode: null, call: null }, true);
  const splits = [
    ["", "both"],
    ["train", "training"],
    ["val", "validation"],
  ];
  const field = {
    split: report.select("split", "Split", splits, state.split, set("split")),
    step: report.select("step", "Step", [["", "all steps"]], "", set("step")),
    result: report.select("result", "Result", report.RESULTS, state.result, set("result")),
    sort: report.select("sort", "Order", report.ORDERS, state.sort, set("sort")),
    text: report.textField("text", "Task, answer or action contains", state.text, set("text")),
  };
  const chip = report.el("span", {});
  const steps = field.step.lastChild;
  const shown = { text: state.text };
  const option = (step) => report.el("option", { value: step }, `step ${step}`);
  // Thousands of steps would be laid out for nothing, so they are there when somebody turns to the field.
  const addSteps = () => {
    const all = report.episodeSteps(run);
    if (steps.length === all.length + 1) return;
    const chosen = steps.value;
    steps.replaceChildren(steps.firstChild, ...all.map(option));
    steps.value = chosen;
  };
  for (const event of ["focus", "pointerdown"]) steps.addEventListener(event, addSteps);
  const show = (now) => {
    const isThere = [...steps.options].some((entry) => entry.value === (now.step ?? ""));
    if (!isThere) steps.append(option(now.step));
    for (const name of ["split", "step", "result", "sort"]) field[name].lastChild.value = now[name] ?? "";
    // A reader may be typing: the field changes only where the address does.
    if (now.text !== shown.text && field.text.lastChild.value !== now.text)
      field.text.lastChild.value = now.text ?? "";
    shown.text = now.text;
    const narrowed = now.uid ? "one group only \u00d7" : now.alarm ? `alarm ${now.alarm} only \u00d7` : null;
    const everything = { class: "chip", href: report.address({ uid: null, alarm: null }) };
    chip.hidden = !narrowed;
    chip.replaceChildren(report.el("a", everything, narrowed));
  };
  const element = report.el("div", { class: "filters", role: "search" }, Object.values(field), chip);
  return { element, show };
};

/** What the page of a run consists of, and a function that lets it show a state. */
report.makeEpisodes = function (run, state) {
  const filters = report.makeFilters(run, state);
  const status = report.el("p", { class: "quiet", role: "status" });
  const list = report.list({
    id: "episodes",
    label: "Episodes",
    rowHeight: 34,
    draw: (row) => report.episodeRow(run, report.listed[row]),
    open: (row) => report.go({ episode: report.listed[row], call: null }),
  });
  let detail = report.el("section");
  const left = report.el(
    "section",
    { class: "side", "aria-label": "List of episodes" },
    report.el("h2", {}, "Episodes"),
    filters.element,
    status,
    list.element,
  );
  const element = report.el("div", {}, left, detail);
  const shown = {};
  const showList = (now, open) => {
    const filter = report.FILTERS.map((name) => now[name] ?? "").join("\n");
    const isSame = filter === shown.filter;
    if (isSame && shown.episodes === run.episodes) {
      list.choose(report.listed.indexOf(open));
      return;
    }
    const numbers = report.filterEpisodes(run, now);
    const success = report.column(run.episodes, "success");
    const solved = numbers.reduce((sum, i) => sum + (success(i) > 0), 0);
    const isJudged = numbers.some((i) => success(i) !== null);
    report.listed = numbers;
    status.textContent =
      `${report.integer(numbers.length)} of ${report.integer(report.count(run.episodes))}` +
      (isJudged ? `, ${report.integer(solved)} with success` : "");
    list.fill(numbers.length, numbers.indexOf(open), isSame);
    Object.assign(shown, { filter, episodes: run.episodes });
  };
  const showDetail = (now, open, exists) => {
    const place = `${now.episode}\n${now.call}`;
    if (place === shown.place && !report.isStale) return;
    shown.place = place;
    const section = report.el(
      "section",
      { class: "detail", id: "detail", "aria-label": "The episode" },
      exists
        ? report.drawEpisode(run, open, now)
        : report.el("p", { class: "quiet hint" }, "Choose an episode: arrow keys and Enter, or a click."),
    );
    detail.replaceWith(section);
    detail = section;
  };
  const show = (now) => {
    const open = now.episode === undefined ? -1 : Number(now.episode);
    const exists = open >= 0 && open < report.count(run.episodes);
    filters.show(now);
    showList(now, open);
    showDetail(now, open, exists);
    element.className = exists ? "split opened" : "split";
  };
  return { run, element, show };
};

report.drawEpisodes = function (run, state) {
  if (!report.count(run.episodes))
    return [
      report.el("h2", {}, "Episodes"),
      report.el("p", {}, "The run has no trajectories (trainer.log_trajectories=0, or no step is complete)."),
    ];
  // While it stands, list and filters stay as they are, so typing goes on and nothing unfolded is folded.
  const page = report.episodesPage;
  if (page?.run !== run || !page.element.isConnected) report.episodesPage = report.makeEpisodes(run, state);
  report.episodesPage.show(state);
  return [report.episodesPage.element];
};

report.stepEpisode = function (by) {
  if (report.state.page !== "episodes" || !report.listed?.length) return;
  const at = report.listed.indexOf(Number(report.state.episode ?? -1));
  const next = report.listed[Math.min(report.listed.length - 1, Math.max(0, at + by))];
  report.go({ episode: next, call: null });
};

report.closeEpisode = function () {
  report.go({ episode: null, call: null });
  setTimeout(() => document.getElementById("episodes")?.focus(), 50);
};

/** Numbers of the episodes of the same group, in order of their index. */
report.groupOf = function (run, i) {
  const uid = report.column(run.episodes, "uid");
  const split = report.column(run.episodes, "split");
  const numbers = [];
  for (let j = 0; j < report.count(run.episodes); j++) {
    if (uid(j) === uid(i) && split(j) === split(i)) numbers.push(j);
  }
  return numbers;
};

/** The episodes of the group side by side: reward and answer, best and worst named. */
report.drawGroup = function (run, i) {
  const group = report.groupOf(run, i);
  if (group.length < 2) return null;
  const reward = (j) => report.value(run.episodes, "team_reward", j) ?? 0;
  const best = group.reduce((a, b) => (reward(b) > reward(a) ? b : a));
  const worst = group.reduce((a, b) => (reward(b) < reward(a) ? b : a));
  const spread = reward(best) > reward(worst);
  const name = (j) =>
    [
      j === i ? "this one" : null,
      spread && j === best ? "best" : null,
      spread && j === worst ? "worst" : null,
    ]
      .filter(Boolean)
      .join(", ");
  const jump = (j, text) =>
    j === i || !spread
      ? null
      : report.el(
          "a",
          { class: "chip", href: report.address({ episode: j, call: null }) },
          `${text} of the group: ${report.number(reward(j))}`,
        );
  return [
    report.el(
      "p",
      { class: "line" },
      spread
        ? [jump(best, "best"), jump(worst, "worst")]
        : report.el("span", { class: "quiet" }, "All episodes of the group have the same reward."),
    ),
    report.folded(`Group of ${group.length} episodes`, () =>
      report.table(
        "Episodes of the group",
        [
          { name: "episode" },
          { name: "" },
          { name: "reward", class: "n" },
          { name: "turns", class: "n" },
          { name: "answer" },
        ],
        group.map((j) => [
          report.el(
            "a",
            { href: report.address({ episode: j, call: null }) },
            `#${report.value(run.episodes, "index", j)}`,
          ),
          name(j),
          report.number(reward(j)),
          String(report.value(run.episodes, "turns", j) ?? ""),
          report.value(run.episodes, "answer", j) ?? "",
        ]),
      ),
    ),
  ];
};

/** The opened episode: head, group, world, dialogue. Its texts are read when it opens. */
report.drawEpisode = function (run, i, state) {
  const { episodes } = run;
  const row = report.row(episodes, i);
  const [sign, word, kind] = report.mark(run, i);
  const file = run.files?.[row.file];
  const body = report.el(
    "div",
    { "aria-busy": "true" },
    report.el("p", { class: "quiet" }, "Reading its texts."),
  );
  report.fillEpisode(run, i, row, body, state);
  return [
    report.el(
      "p",
      { class: "line close" },
      report.el("button", { id: "close", type: "button", on: { click: report.closeEpisode } }, "\u2190 list"),
      report.el(
        "button",
        { id: "previous", type: "button", on: { click: () => report.stepEpisode(-1) } },
        "previous",
      ),
      report.el("button", { id: "next", type: "button", on: { click: () => report.stepEpisode(1) } }, "next"),
    ),
    report.el("h2", {}, `${row.task_id} `, report.el("span", { class: "quiet" }, `#${row.index}`)),
    report.el(
      "p",
      { class: "line" },
      report.el("span", { class: `chip ${kind}` }, `${sign} ${word}`),
      report.el("span", { class: "chip" }, `team reward ${report.fixed(row.team_reward)}`),
      report.el(
        "span",
        { class: "chip quiet" },
        `${row.split === "val" ? "validation at" : "training"} step ${row.step}`,
      ),
      report.el(
        "span",
        { class: "chip quiet" },
        `${report.many(row.turns, "turn")}, ${report.many(row.calls, "call")}`,
      ),
      row.left_out ? report.el("span", { class: "chip bad" }, `not trained: ${row.left_out}`) : null,
    ),
    row.failure ? report.el("p", { class: "bad box" }, row.failure) : null,
    row.answer ? report.el("p", {}, "Answer: ", report.el("code", {}, row.answer)) : null,
    report.drawGroup(run, i),
    body,
    file
      ? report.el("p", { class: "quiet small" }, `Record: ${file}, line ${row.line}; ${row.traj_uid}`)
      : null,
  ];
};

report.fillEpisode = async function (run, i, row, body, state) {
  const calls = Array.from({ length: row.calls }, (_, j) => ({
    ...report.row(run.calls, row.first_call + j),
    number: row.first_call + j,
    place: j,
  }));
  calls.forEach((call) => {
    call.name = run.agents[call.agent]?.agent ?? String(call.agent);
  });
  let texts = null;
  let strings = [];
  const parts = [];
  if (row.chunk >= 0 || report.index.live) {
    try {
      const chunk = await report.chunk(Math.max(0, row.chunk));
      strings = chunk.strings;
      texts = chunk.episodes[row.row];
    } catch (error) {
      parts.push(
        report.el("p", { class: "bad", role: "alert" }, `Its texts could not be read: ${error.message}`),
      );
    }
  } else {
    parts.push(
      report.el(
        "p",
        { class: "box" },
        "The text of this episode is not in this file, to keep it small. ",
        `It is in ${run.files?.[row.file]}, line ${row.line}; a larger --max-mb takes it in.`,
      ),
    );
  }
  parts.push(...report.drawn(() => report.episodeParts(run, row, calls, texts, strings)));
  body.replaceChildren(...parts);
  body.removeAttribute("aria-busy");
  if (state.call !== undefined) {
    const card = document.getElementById(`call-${state.call}`);
    card?.scrollIntoView({ block: "center" });
    card?.focus({ preventScroll: true });
  }
};

/** Lanes, world, conversations and dialogue of an episode, and what its environment reported. */
report.episodeParts = function (run, row, calls, texts, strings) {
  const last = new Map(calls.filter((call) => !call.unheard).map((call) => [call.turn, call.call]));
  calls.forEach((call, j) => {
    report.addTexts(call, texts?.calls?.[j], strings);
    // The last call of a turn, each of its candidates, speaks to the world, not to an agent.
    call.acts = call.call === last.get(call.turn);
  });
  if (row.split === "train") report.addCredit(run, row.step, calls);
  const parts = [
    report.el(
      "div",
      { class: "beside" },
      report.drawEpisodeLanes(run, calls),
      texts?.states?.length
        ? report.drawWorld(texts.states)
        : report.drawWorld(report.anchors(calls), "State that the calls acted on", false),
    ),
    report.drawConversations(calls),
    report.drawDialogue(run, calls, texts),
  ];
  const info = Object.entries(texts?.info ?? {});
  if (info.length)
    parts.push(
      report.folded("What the environment reported", () =>
        report.table(
          "Reported values",
          [{ name: "name" }, { name: "value" }],
          info.map(([name, value]) => [name, JSON.stringify(value)]),
        ),
      ),
    );
  return parts;
};

/** Give a call its texts from a chunk: prompt as lines, reply, rounds. */
report.addTexts = function (call, entry, strings) {
  call.lines = (entry?.prompt ?? []).map((n) => strings[n] ?? "");
  call.text = entry?.reply === undefined ? null : (strings[entry.reply] ?? String(entry.reply));
  if (entry?.action !== undefined) call.action = strings[entry.action] ?? call.action;
  call.stateText = entry?.anchor === undefined ? null : (strings[entry.anchor] ?? null);
  if (Array.isArray(entry?.token_rewards)) call.token_rewards = entry.token_rewards;
  else if (!Array.isArray(call.token_rewards)) call.token_rewards = [];
  for (const name of ["tools", "rounds", "fields", "request"]) {
    if (entry?.[name] !== undefined) call[name] = entry[name];
  }
};

/** States before each call, by the texts that the records have, where the world draws none. */
report.anchors = function (calls) {
  const states = calls.filter((call) => call.stateText).map((call) => call.stateText);
  return states.filter((text, i) => text !== states[i - 1]);
};

/** Calls of the episode in lanes of agents: by time where it was recorded, else by order. */
report.drawEpisodeLanes = function (run, calls) {
  if (calls.length < 2) return null;
  const timed = calls.every((call) => report.isNumber(call.began) && report.isNumber(call.ended));
  const names = [...new Set(calls.map((call) => call.name))];
  const spans = (name) =>
    calls
      .filter((call) => call.name === name)
      .map((call) => {
        const start = timed ? call.began : (call.order ?? call.place);
        const waited = timed && call.waited ? `, of which waiting ${report.duration(call.waited)}` : "";
        return {
          start,
          end: timed ? call.ended : start + 0.92,
          kind: call.agent,
          name:
            `${name}, turn ${call.turn}, ` +
            `call ${call.call}: ${report.integer(call.response_tokens)} tokens` +
            (timed ? ` in ${report.duration(call.ended - call.began)}${waited}` : ""),
        };
      });
  const lanes = names.map((name) => ({ name, spans: spans(name) }));
  const all = lanes.flatMap((lane) => lane.spans);
  return report.lanes({
    title: timed ? "Calls over time" : "Order of the calls",
    lanes,
    from: Math.min(...all.map((span) => span.start)),
    to: Math.max(...all.map((span) => span.end)),
    format: timed ? report.duration : (value) => String(value),
  });
};

/** Class of each symbol of a grid by its meaning: a wall, the floor, or one of the colours. */
report.symbolClasses = function (legend) {
  const classes = new Map();
  for (const [symbol, meaning] of Object.entries(legend)) {
    if (/\bwall/i.test(meaning)) classes.set(symbol, "wall");
    else if (/\b(free|empty|floor|blank)/i.test(meaning)) classes.set(symbol, "floor");
    else classes.set(symbol, `c${classes.size % 6}`);
  }
  return classes;
};

/** A state as text or as a grid of cells; a row of the grid is a list, or a string of single characters. */
report.drawState = function (state) {
  if (typeof state === "string") return report.appendText(report.el("pre", { class: "state" }), state);
  const meanings = state?.legend ?? {};
  const lines = (state?.cells ?? []).map((line) => Array.from(line, (cell) => String(cell ?? "")));
  const classes = report.symbolClasses(meanings);
  const cellOf = (cell) => report.el("td", { class: classes.get(cell), title: meanings[cell] }, cell);
  const legend = Object.entries(meanings).map(([symbol, meaning]) =>
    report.el("li", {}, report.el("code", { class: classes.get(symbol) }, symbol), ` ${meaning}`),
  );
  return [
    report.el(
      "table",
      { class: "board" },
      report.el("caption", { class: "unseen" }, "State of the world"),
      report.el(
        "tbody",
        {},
        lines.map((line) => report.el("tr", {}, line.map(cellOf))),
      ),
    ),
    legend.length ? report.el("ul", { class: "legend" }, legend) : null,
  ];
};

/** Replay of the states of the world, by buttons or a slider. */
report.drawWorld = function (states, title = "The world", byTurn = true) {
  if (!states?.length) return null;
  const view = report.el("div", { class: "world", "aria-live": "polite" });
  const label = report.el("output", { for: "world" });
  const slider = report.el("input", {
    id: "world",
    type: "range",
    min: 0,
    max: states.length - 1,
    step: 1,
    "aria-label": "State of the world",
  });
  slider.value = "0";
  const show = (n) => {
    const i = Math.min(states.length - 1, Math.max(0, n));
    slider.value = String(i);
    const when = i ? `after turn ${i}` : "before turn 1";
    label.textContent = byTurn ? `${when} of ${states.length - 1}` : `state ${i + 1} of ${states.length}`;
    view.replaceChildren(...[report.drawState(states[i])].flat().filter(Boolean));
  };
  slider.addEventListener("input", () => show(Number(slider.value)));
  const button = (text, by) =>
    report.el("button", { type: "button", on: { click: () => show(Number(slider.value) + by) } }, text);
  show(0);
  return report.el(
    "section",
    { class: "card", "aria-label": title },
    report.el("h3", {}, title),
    states.length > 1
      ? report.el("p", { class: "line" }, button("back", -1), slider, button("forward", 1), label)
      : null,
    view,
  );
};

/** Requests of a program as a tree of conversations, with the cause where tokens were rendered anew. */
report.drawConversations = function (calls) {
  const asked = calls.filter((call) => call.request);
  if (!asked.length) return null;
  const children = new Map();
  const places = new Map(asked.map((call) => [`${call.turn}|${call.call}`, call.place]));
  for (const call of asked) {
    const place = places.get((call.request.parent ?? []).join("|")) ?? -1;
    const parent = place < call.place ? place : -1;
    children.set(parent, [...(children.get(parent) ?? []), call]);
  }
  const branch = (parent) =>
    !children.has(parent)
      ? null
      : report.el(
          "ul",
          {},
          children
            .get(parent)
            .map((call) =>
              report.el(
                "li",
                {},
                report.el(
                  "a",
                  { href: report.address({ call: call.place }) },
                  `${call.name}, call ${call.call}`,
                ),
                call.request.rewritten
                  ? report.el("span", { class: "tag bad" }, `rendered anew: ${call.request.rewritten}`)
                  : null,
                call.request.shared
                  ? report.el("span", { class: "tag" }, `${call.request.shared} tokens shared`)
                  : null,
                call.request.choice
                  ? report.el("span", { class: "tag" }, `choice ${call.request.choice}`)
                  : null,
                call.unheard ? report.el("span", { class: "tag" }, "no client got it") : null,
                branch(call.place),
              ),
            ),
        );
  const anew = asked.filter((call) => call.request.rewritten).length;
  return report.folded(`Requests as conversations (${asked.length}, ${anew} rendered anew)`, () =>
    report.el("div", { class: "tree" }, branch(-1)),
  );
};
