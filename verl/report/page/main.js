// Start, navigation between pages, keys of the whole page, and updates of a run in progress.
globalThis.report ??= {};

report.PAGES = [
  { name: "overview", title: "Overview", draw: "drawOverview" },
  { name: "agents", title: "Agents", draw: "drawAgents" },
  { name: "episodes", title: "Episodes", draw: "drawEpisodes" },
  { name: "time", title: "Time", draw: "drawTime" },
  { name: "compare", title: "Compare", draw: "drawCompare" },
  { name: "audit", title: "Audit", draw: "drawAudit" },
];

/** The run that the address names. */
report.run = () => report.index.runs[Number(report.state.run ?? 0)] ?? report.index.runs[0];

/** State of a run as a word and a kind: running, done, stopped, failed, silent. */
report.stateOf = function (run) {
  const state = run.state;
  if (!state?.state) return { word: "state not recorded", kind: "quiet" };
  const now = report.index.live ? Date.now() / 1000 : report.index.built;
  const age = now - state.heartbeat;
  if (state.state === "running" && age > 60) {
    return { word: `says running, but no sign for ${report.duration(age)}`, kind: "bad" };
  }
  const kinds = { running: "good", done: "good", stopped: "quiet", failed: "bad" };
  return { word: state.state, kind: kinds[state.state] ?? "quiet" };
};

report.drawHeader = function (run) {
  document.getElementById("run-name").textContent = report.visible(run.name);
  const { word, kind } = report.stateOf(run);
  const step = run.state?.step ?? run.steps.at(-1) ?? 0;
  const total = run.state?.total_steps;
  const text = `${word}, step ${step}${total ? ` of ${total}` : ""}`;
  const state = document.getElementById("run-state");
  const chip = report.el("span", { class: `chip ${kind}` }, text);
  if (state.textContent !== text) state.replaceChildren(chip);
  const choice = document.getElementById("run-choice");
  if (report.index.runs.length > 1) {
    choice.replaceChildren(
      report.select(
        "run",
        "Run",
        report.index.runs.map((r, i) => [String(i), r.name]),
        String(report.state.run ?? 0),
        (value) => {
          location.hash = `#/${report.state.page}?run=${value}`;
        },
      ),
    );
  }
  const page = report.PAGES.find((p) => p.name === report.state.page);
  report.drawPages(page);
  const title = report.visible(`${run.name} \u2013 ${page.title}`);
  if (document.title !== title) document.title = title;
};

/** Links to the pages, of which one is shown. */
report.drawPages = function (shown) {
  const links = document.getElementById("pages");
  const run = String(report.state.run ?? 0);
  if (links.dataset.run !== run) {
    links.dataset.run = run;
    links.replaceChildren(
      ...report.PAGES.map(({ name, title }) =>
        report.el("a", { id: `page-${name}`, href: `#/${name}?run=${run}` }, title),
      ),
    );
  }
  for (const link of links.children) {
    if (link.id === `page-${shown.name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
};

report.drawFoot = function () {
  const built = new Date(1000 * report.index.built).toISOString().slice(0, 16).replace("T", " ");
  document
    .getElementById("foot")
    .replaceChildren(
      report.el(
        "p",
        {},
        report.index.live ? "Live: the page follows the files of the run. " : `Built ${built} UTC. `,
        "Keys: 1 to 6 open a page; in lists and charts the arrow keys, Enter opens; ",
        "n and p go to the next and the previous episode; Escape goes back.",
      ),
    );
};

/** Draw the page of the address anew; the element in focus and the scroll position stay. */
report.draw = function () {
  if (!report.index) return;
  const before = report.state;
  report.state = report.readState();
  if (!report.PAGES.some((page) => page.name === report.state.page)) report.state.page = "overview";
  const run = report.run();
  const main = document.getElementById("main");
  if (!run) {
    main.replaceChildren(report.el("p", {}, "There is no run in this report."));
    return;
  }
  const focus = document.activeElement?.id;
  const page = report.PAGES.find((p) => p.name === report.state.page);
  report.drawHeader(run);
  main.className = page.name;
  const parts = report.drawn(() => report[page.draw](run, report.state));
  const isThere = parts.length === main.childNodes.length && parts.every((part, i) => part === main.childNodes[i]);
  if (!isThere) main.replaceChildren(...parts);
  if (before?.page !== report.state.page) scrollTo(0, 0);
  const element = focus ? document.getElementById(focus) : null;
  if (element && element !== document.activeElement) {
    element.focus({ preventScroll: true });
    if (element.type === "search") element.setSelectionRange(element.value.length, element.value.length);
  }
  if (!element && before && before.page !== report.state.page) main.focus({ preventScroll: true });
};

report.onKey = function (event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    else if (report.state.episode !== undefined) report.closeEpisode();
    else document.getElementById("main").focus();
  } else if (!typing && event.key >= "1" && event.key <= String(report.PAGES.length)) {
    location.hash = `#/${report.PAGES[Number(event.key) - 1].name}?run=${report.state.run ?? 0}`;
  } else if (!typing && (event.key === "n" || event.key === "p")) {
    report.stepEpisode?.(event.key === "n" ? 1 : -1);
  }
};

/** Take over what changed in a live run: whole keys of each run, and the calls that are new. */
report.refresh = async function (changed) {
  const runs = report.index.runs;
  const before = report.index;
  const credit = report.creditOfOpen();
  const tables = changed.filter((key) => key === "episodes" || key === "calls");
  const parts = changed.filter((key) => !tables.includes(key));
  if (parts.length) {
    const answer = await report.fetchJson(`index?parts=${parts.join(",")}`);
    answer.runs.forEach((run, i) => Object.assign(runs[i], run));
  }
  if (tables.length) {
    // Earlier episodes change as well: why one was left out is known after its step.
    const [run] = runs;
    const from = report.count(run.calls);
    const [answer] = (await report.fetchJson(`index?parts=episodes,calls&after=0,${from}`)).runs;
    run.episodes = answer.episodes;
    report.extend(run.calls, answer.calls, from);
    report.chunks?.clear();
    const last = report.count(run.episodes) - 1;
    const end = report.value(run.episodes, "first_call", last) + report.value(run.episodes, "calls", last);
    // The folder has another run: nothing of the old one holds.
    if (end !== report.count(run.calls)) report.index = await report.fetchJson("index");
  }
  report.index.built = Date.now() / 1000;
  report.drawFoot();
  // What pages have computed of the runs before.
  for (const run of report.index.runs)
    for (const name of ["silent", "flat", "paths", "searched"]) delete run[name];
  // Of the episode that is open only its credit comes later; drawn anew, it would fold what its reader has opened.
  const isSame = before === report.index && report.creditOfOpen() === credit;
  report.isStale = !isSame;
  report.draw();
  report.isStale = false;
};

/** Whether the step of the episode that is open has credit. */
report.creditOfOpen = function () {
  const { credit, episodes } = report.run();
  return Boolean(credit?.[report.value(episodes, "step", Number(report.state.episode))]);
};

report.follow = function () {
  const everything = [
    "state",
    "metrics",
    "steps",
    "alarms",
    "accuracy",
    "spans",
    "credit",
    "episodes",
    "calls",
  ];
  let waiting = Promise.resolve();
  const queue = (changed) => {
    waiting = waiting.then(() => report.refresh(changed)).catch(report.drawError);
  };
  const events = new EventSource(`events?since=${report.index.version ?? 0}`);
  events.addEventListener("open", report.drawFoot);
  events.addEventListener("message", (event) => queue(JSON.parse(event.data).changed));
  events.addEventListener("error", () => {
    report.drawError("the server no longer answers; what is shown stays");
    if (events.readyState === EventSource.CLOSED) setInterval(() => queue(everything), 5000);
  });
  setInterval(() => report.drawHeader(report.run()), 10000);
};

report.drawError = function (error) {
  const foot = document.getElementById("foot");
  foot.replaceChildren(report.el("p", { class: "bad", role: "alert" }, String(error)));
};

/**
 * Milliseconds from a request until its result is in the document and laid out, for benchmarks. It is painted with
 * the next frame of the screen, for which a browser waits up to 17 ms whatever the page does.
 */
report.bench = {
  timed: async function (change, isDone) {
    const begin = performance.now();
    change();
    while (!isDone()) await new Promise((resolve) => setTimeout(resolve));
    document.getElementById("main").getBoundingClientRect(); // a browser lays out when it is asked for a place
    return performance.now() - begin;
  },
  filter: (text) =>
    report.bench.timed(
      () => report.go({ page: "episodes", text, episode: null }, true),
      () => document.getElementById("episodes") !== null,
    ),
  open: (episode) =>
    report.bench.timed(
      () => report.go({ page: "episodes", episode }, true),
      () =>
        document.querySelector("#detail [aria-busy]") === null &&
        document.querySelector("#detail h2") !== null,
    ),
};

report.start = async function () {
  addEventListener("hashchange", () => {
    delete report.drawnAddress;
    report.draw();
  });
  document.addEventListener("keydown", report.onKey);
  document.getElementById("skip").addEventListener("click", () => document.getElementById("main").focus());
  // Without an icon a browser asks the server of `watch` for one, which the policy of the page refuses.
  document.head.append(report.el("link", { rel: "icon", href: "data:," }));
  try {
    await report.load();
    report.draw();
    report.drawFoot();
    requestAnimationFrame(() => performance.mark("report:painted"));
    if (report.run()) report.prepareSearch(report.run());
    if (report.index.live) report.follow();
  } catch (error) {
    document
      .getElementById("main")
      .replaceChildren(
        report.el(
          "p",
          { class: "bad", role: "alert" },
          `The report could not be read: ${error}. It needs a browser of 2023 or newer.`,
        ),
      );
    throw error;
  }
};

if (globalThis.document) report.start();
