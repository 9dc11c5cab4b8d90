// The dialogue of an episode: one call is one card, with its prompt, reply, candidates, rounds and credit.
globalThis.report ??= {};

/** Lines of two texts aligned: [{kind: "same" | "added" | "removed", lines}]. */
report.difference = function (before, after) {
  let start = 0;
  while (start < before.length && start < after.length && before[start] === after[start]) start += 1;
  let tail = 0;
  while (
    tail < before.length - start &&
    tail < after.length - start &&
    before[before.length - 1 - tail] === after[after.length - 1 - tail]
  )
    tail += 1;
  const [a, b] = [before.slice(start, before.length - tail), after.slice(start, after.length - tail)];
  const parts = [];
  const add = (kind, lines) => {
    if (!lines.length) return;
    if (parts.at(-1)?.kind === kind) parts.at(-1).lines.push(...lines);
    else parts.push({ kind, lines: [...lines] });
  };
  add("same", after.slice(0, start));
  if (a.length * b.length > 250000) {
    add("removed", a);
    add("added", b);
  } else {
    report.align(a, b, add);
  }
  add("same", after.slice(after.length - tail));
  return parts;
};

/** Longest common subsequence of two short lists of lines; calls add(kind, lines) in order. */
report.align = function (a, b, add) {
  const width = b.length + 1;
  const best = new Int32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      best[i * width + j] =
        a[i] === b[j]
          ? best[(i + 1) * width + j + 1] + 1
          : Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
    }
  }
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      add("same", [a[i]]);
      i += 1;
      j += 1;
    } else if (j >= b.length || (i < a.length && best[(i + 1) * width + j] >= best[i * width + j + 1])) {
      add("removed", [a[i++]]);
    } else {
      add("added", [b[j++]]);
    }
  }
};

report.drawDifference = function (parts) {
  const view = report.el("div", { class: "difference" });
  for (const { kind, lines } of parts) {
    const text = lines.join("");
    if (kind === "same" && lines.length > 2) {
      view.append(
        report.folded(
          `${lines.length} lines as before`,
          () => report.appendText(report.el("pre", {}), text),
          { class: "same" },
        ),
      );
      continue;
    }
    const words = { same: "", added: "new: ", removed: "no longer there: " };
    view.append(
      report.appendText(
        report.el("pre", { class: kind }, report.el("span", { class: "unseen" }, words[kind])),
        text,
      ),
    );
  }
  return view;
};

/** The prompt, folded: what is new since the last prompt of the agent, and the whole of it. */
report.drawPrompt = function (call, earlier) {
  if (!call.lines.length) return null;
  const tokens = `${report.integer(call.prompt_tokens)} tokens`;
  const whole = () => report.appendText(report.el("pre", {}), call.lines.join(""));
  if (!earlier?.lines.length) return report.folded(`Prompt, ${tokens}`, whole, { class: "prompt" });
  const parts = report.difference(earlier.lines, call.lines);
  const count = (kind) =>
    parts.filter((part) => part.kind === kind).reduce((sum, part) => sum + part.lines.length, 0);
  return report.folded(
    `Prompt, ${tokens}: ${report.many(count("added"), "line")} new, ${count("removed")} gone since ` +
      `call ${earlier.call} of turn ${earlier.turn}`,
    () => [report.drawDifference(parts), report.folded("the whole prompt", whole)],
    { class: "prompt" },
  );
};

/** Marks of what is unusual about a call. */
report.tags = function (call) {
  const tags = [];
  const tag = (text, kind = "") => tags.push(report.el("span", { class: `tag ${kind}` }, text));
  if (report.isFalse(call.valid)) tag("not parsed", "bad");
  if (call.stop_reason === "length") tag("cut at the length limit", "bad");
  if (call.unheard) tag("no client got it");
  if (report.isFalse(call.trained) && !call.unheard) tag("not trained");
  if (call.greedy) tag("greedy");
  if (call.summary) tag("summary");
  if (call.chosen) tag("committed");
  if (call.explored) tag("explored");
  if (call.masked) tag("sampled under a mask");
  if (call.repeated) tag("repeated");
  if (call.garbled) tag("garbled", "bad");
  if (call.copied) tag("copies an earlier reply");
  // Nobody can read a candidate that the episode did not go on with.
  if (report.isFalse(call.heard) && !call.acts && !report.isFalse(call.committed)) tag("in no later prompt");
  if (call.depth) tag(`sub-agent, depth ${call.depth}`);
  if (call.dropped_context) tag(`${call.dropped_context} entries left out of the prompt`);
  if (call.request?.rewritten) tag(`rendered anew: ${call.request.rewritten}`, "bad");
  if (call.request?.overridden) tag("sampling overridden");
  if (call.joins) tag(`one row with call ${call.joins.call} of turn ${call.joins.turn} (by text)`);
  return tags;
};

/** Parts of a reply by the version of the weights that sampled them. */
report.drawVersions = function (call) {
  const parts = call.versions;
  if (!Array.isArray(parts) || parts.length < 2) return null;
  return report.el(
    "div",
    {
      class: "bar",
      role: "img",
      "aria-label": `Sampled by ${parts
        .map(([version, tokens]) => `version ${version}: ${tokens} tokens`)
        .join(", ")}`,
    },
    parts.map(([version, tokens], i) =>
      report.el(
        "span",
        { class: `part v${i % 4}`, css: { "flex-grow": String(tokens) } },
        `version ${version}: ${tokens} tokens`,
      ),
    ),
  );
};

/** Compute the advantages of a step once, and give each call its credit path. */
report.addCredit = function (run, step, calls) {
  if (!report.creditPath) return;
  const cache = (run.paths ??= new Map());
  if (!cache.has(step)) {
    const paths = new Map();
    try {
      const rows = report.stepRows(run, step);
      report.creditPath(run, rows, run.config).forEach((path, i) => path && paths.set(rows[i].row, path));
      report.addLogProbs(run, step, rows, paths);
    } catch (error) {
      paths.failure = error.message;
    }
    cache.set(step, paths);
    if (cache.size > 8) cache.delete(cache.keys().next().value);
  }
  const paths = cache.get(step);
  for (const call of calls) {
    call.path = paths.get(call.number) ?? null;
    if (paths.failure && call.trained) call.path = { terms: [], why: `not computed: ${paths.failure}` };
  }
};

/** Log-probs of the tokens of a reply before and after the update, of calls for which they are recorded. */
report.addLogProbs = function (run, step, rows, paths) {
  const credit = run.credit?.[String(step)];
  if (!credit?.log_prob_after) return;
  const key = (values) => values.join("|");
  const names = ["traj_uid", "turn", "call", "candidate"];
  const places = new Map(rows.map((row) => [key(names.map((name) => row[name])), row.row]));
  credit.log_prob_after.forEach((after, i) => {
    const path = paths.get(places.get(key(names.map((name) => credit[name][i]))));
    const before = credit.log_prob_before?.[i];
    if (path && Array.isArray(after) && Array.isArray(before)) path.logProbs = { before, after };
  });
};

/** What the update did to the log-prob of a reply: the sum, and token by token. */
report.drawLogProbs = function (path) {
  if (!path?.logProbs) return null;
  const { before, after } = path.logProbs;
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const change = sum(after) - sum(before);
  const title =
    `The update moved its log-prob by ${report.signed(change)} ` +
    `(${report.number(sum(before))} \u2192 ${report.number(sum(after))})`;
  return report.folded(title, () =>
    report.lineChart({
      title: "Change of the log-prob of each token",
      x: after.map((_, i) => i),
      series: [{ name: "change", values: after.map((value, i) => value - before[i]) }],
      bounds: [0],
      unit: "token",
      height: 140,
    }),
  );
};

/** One line of arithmetic: terms, reward, baseline and spread of the group, advantage; red where it fails. */
report.drawCredit = function (path) {
  if (!path) return null;
  const bold = (value, signed = false) =>
    report.el(
      "b",
      { class: signed && value < 0 ? "minus" : signed && value > 0 ? "plus" : null },
      signed ? report.signed(value) : report.number(value),
    );
  const quiet = (...parts) => report.el("span", { class: "quiet" }, ...parts);
  // A term of 0, and a sum that equals its first part, say nothing.
  const terms = (path.terms ?? []).filter(
    ({ name, value }, i, all) =>
      i === 0 ||
      i === all.length - 1 ||
      (value !== 0 && !(name === "team + local" && value === all[0].value)),
  );
  const line = terms.map((term, i) => [i ? quiet(" \u2192 ") : "", `${term.name} `, bold(term.value)]);
  if (report.isNumber(path.reward) && terms.at(-1)?.name !== "reward")
    line.push(" = reward ", bold(path.reward));
  if (path.kl) line.push(" \u2212 KL ", bold(path.kl));
  const group = [];
  if (path.groupSize) group.push(`${path.groupSize} in the group`);
  if (report.isNumber(path.baseline)) group.push(`baseline ${report.number(path.baseline)}`);
  if (report.isNumber(path.spread)) group.push(`spread ${report.number(path.spread)}`);
  for (const part of path.parts ?? []) group.push(`${part.name} ${report.signed(part.value)}`);
  if (path.whitening)
    group.push(`whitened by ${report.number(path.whitening.mean)} and ${report.number(path.whitening.std)}`);
  if (group.length) line.push(quiet(`; ${group.join(", ")}`));
  if (report.isNumber(path.advantage)) line.push(" \u2192 advantage ", bold(path.advantage, true));
  if (report.isNumber(path.weight) && path.weight !== 1)
    line.push(` \u00d7 weight ${report.number(path.weight)}`);
  if (report.isNumber(path.tokens)) line.push(quiet(` on ${report.integer(path.tokens)} tokens`));
  const fails = path.marked ?? path.error > 1e-5;
  if (fails)
    line.push(
      report.el(
        "strong",
        { class: "bad" },
        " does not hold: " +
          (path.error > 1e-5
            ? `recorded ${report.signed(path.recorded)}, difference ${report.number(path.error)}`
            : `the terms give another reward, difference ${report.number(path.rewardError)}`),
      ),
    );
  else if (report.isNumber(path.recorded) && report.isNumber(path.error)) line.push(quiet(", as recorded"));
  if (path.why) line.push(quiet(` (advantage not computed again: ${path.why})`));
  return report.el("p", { class: fails ? "credit fails" : "credit" }, quiet("Credit: "), line);
};

report.drawRounds = function (call, inner) {
  const rounds = call.rounds ?? [];
  const used = call.tools
    ? Object.entries(call.tools)
        .filter(([, n]) => n)
        .map(([name, n]) => `${name} ${n}`)
        .join(", ")
    : "";
  if (!rounds.length && !inner.length)
    return used ? report.el("p", { class: "quiet small" }, `Tools: ${used}`) : null;
  const count = report.many(rounds.length || inner.length, "earlier generation");
  const title = `${count} of this call${used ? ` (tools: ${used})` : ""}`;
  return report.folded(title, () => [
    ...rounds.map((round, i) =>
      report.el(
        "div",
        { class: "round" },
        report.el(
          "p",
          { class: "quiet small" },
          `generation ${i + 1}, ${report.integer(round.response_tokens)} tokens`,
        ),
        report.appendText(report.el("pre", { class: "reply" }), String(round.reply ?? "")),
      ),
    ),
    ...inner.map((other) => report.drawCall(other, null, [])),
  ]);
};

/** One reply as a card; `earlier` is the agent's last call, `inner` the generations folded inside. */
report.drawCall = function (call, earlier, inner) {
  const classes = [
    "call",
    `a${call.agent % 8}`,
    call.unheard ? "unheard" : "",
    report.isFalse(call.committed) ? "aside" : "",
    call.joins ? "joined" : "",
  ]
    .filter(Boolean)
    .join(" ");
  const fields = Object.entries(call.fields ?? {});
  const details = [`${report.integer(call.response_tokens)} tokens`];
  if (report.isNumber(call.version)) details.push(`version ${call.version}`);
  if (report.isNumber(call.began)) details.push(report.duration(call.ended - call.began));
  if (call.waited > 0.001) details.push(`waited ${report.duration(call.waited)}`);
  const reply =
    call.text === null
      ? report.el(
          "p",
          { class: "quiet" },
          call.action ? `action: ${call.action}` : "The text is not in this file.",
        )
      : report.appendText(report.el("pre", { class: "reply" }), call.text);
  const tokens = (call.token_rewards ?? []).length
    ? report.folded("Rewards of single tokens", () =>
        report.el("p", { class: "small" }, call.token_rewards.map((x) => report.number(x)).join(" ")),
      )
    : null;
  return report.el(
    "article",
    {
      class: classes,
      id: `call-${call.place}`,
      tabindex: "0",
      "data-call": call.place,
      "aria-label": `${call.name}, turn ${call.turn}, call ${call.call}`,
    },
    report.el(
      "header",
      {},
      report.el("b", { class: "agent" }, call.name),
      report.el(
        "span",
        { class: "quiet" },
        ` call ${call.call}${call.candidate ? `, candidate ${call.candidate}` : ""}, `,
        details.join(", "),
      ),
      report.tags(call),
    ),
    report.drawPrompt(call, earlier),
    reply,
    report.drawVersions(call),
    report.drawRounds(call, inner),
    call.text !== null && call.action && call.action !== call.text.trim()
      ? report.el("p", { class: "small" }, "Action: ", report.el("code", {}, call.action))
      : null,
    fields.length
      ? report.el(
          "p",
          { class: "small quiet" },
          fields.map(([name, value]) => `${name}: ${JSON.stringify(value)}`).join(", "),
        )
      : null,
    tokens,
    report.drawCredit(call.path),
    report.drawLogProbs(call.path),
  );
};

/** Mark calls whose prompt begins with an earlier prompt of the agent and its reply: they are one row. */
report.findJoined = function (calls) {
  for (let i = 0; i < calls.length; i++) {
    const whole = calls[i].lines.join("");
    for (let j = i - 1; j >= 0 && whole; j--) {
      const other = calls[j];
      if (other.agent !== calls[i].agent || !other.lines.length || !other.text) continue;
      if (whole.startsWith(other.lines.join("") + other.text)) calls[i].joins = other;
      break;
    }
  }
};

/** All calls by turn: candidates of a call side by side, the committed one first. */
report.drawDialogue = function (run, calls, texts) {
  report.findJoined(calls.filter((call) => !call.unheard && !report.isFalse(call.committed)));
  const nested = new Map();
  const shown = [];
  for (const call of calls) {
    if (call.final_call === null || call.final_call === undefined) shown.push(call);
    else
      nested.set(`${call.turn}|${call.final_call}`, [
        ...(nested.get(`${call.turn}|${call.final_call}`) ?? []),
        call,
      ]);
  }
  const turns = new Map();
  for (const call of shown) {
    const turn = turns.get(call.turn) ?? new Map();
    turns.set(call.turn, turn);
    const key = call.unheard ? `unheard ${call.place}` : call.call;
    turn.set(key, [...(turn.get(key) ?? []), call]);
  }
  const last = new Map();
  const sections = [];
  for (const [number, turn] of turns) {
    const reward = texts?.turn_rewards?.[number - 1];
    const section = report.el("section", { class: "turn", "aria-label": `Turn ${number}` });
    if (turns.size > 1)
      section.append(
        report.el(
          "h3",
          {},
          `Turn ${number}`,
          report.isNumber(reward)
            ? report.el("span", { class: "quiet" }, ` reward ${report.number(reward)}`)
            : "",
        ),
      );
    for (const candidates of turn.values()) {
      candidates.sort(
        (a, b) =>
          Boolean(b.committed) - Boolean(a.committed) ||
          Boolean(a.greedy) - Boolean(b.greedy) ||
          a.candidate - b.candidate,
      );
      // of equal boxes a reader cannot see with which of them the episode went on
      for (const call of candidates)
        call.chosen = call.committed && candidates.some((other) => report.isFalse(other.committed));
      const cards = candidates.map((call) =>
        report.drawCall(call, last.get(call.agent), nested.get(`${call.turn}|${call.call}`) ?? []),
      );
      last.set(candidates[0].agent, candidates[0]);
      section.append(
        cards.length === 1
          ? cards[0]
          : report.el(
              "div",
              {
                class: "candidates",
                role: "group",
                "aria-label": `${cards.length} candidates, the committed one first`,
              },
              cards,
            ),
      );
    }
    sections.push(section);
  }
  const view = report.el(
    "div",
    { class: "dialogue" },
    report.el("h3", { class: "unseen" }, "Dialogue"),
    sections,
  );
  view.addEventListener("keydown", (event) => {
    if (!event.target.classList?.contains("call")) return;
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const cards = [...view.querySelectorAll("article.call")];
    const next = cards[cards.indexOf(event.target) + (event.key === "ArrowDown" ? 1 : -1)];
    next?.focus();
    event.preventDefault();
  });
  return view;
};
