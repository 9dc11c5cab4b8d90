"""The page in a real Chromium without a network: it loads, filters and opens by keyboard, and shows
hostile text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.shared.browser import Browser, chromium
from tests.report.pages import PAGES, needs_chromium, write_page
from tests.report.sample_report import HOSTILE, sample_index

pytestmark = needs_chromium
SIZES = {"phone": (390, 844), "desk": (1280, 900)}
# Texts of a chart that cover each other or end outside it: "chart: text, text".
BAD_TEXTS = """[...document.querySelectorAll('.frame svg, svg.lanes')].flatMap((svg) => {
  const edge = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll('text')].filter((e) => e.textContent.trim())
    .map((e) => [e.textContent, e.getBoundingClientRect()]).filter(([, box]) => box.width > 0);
  const title = svg.getAttribute('aria-label')?.slice(0, 40);
  const out = texts.filter(([, b]) => b.left < edge.left - 1 || b.right > edge.right + 1)
    .map(([text]) => `${title}: ${text} ends outside`);
  const covers = texts.flatMap(([text, a], i) => texts.slice(i + 1)
    .filter(([, b]) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2)
    .map(([other]) => `${title}: ${text}, ${other}`));
  return [...out, ...covers];
})"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    index, chunks = sample_index()
    return write_page(tmp_path_factory.mktemp("report") / "report.html", index, chunks)


def text_of(browser: Browser, selector: str) -> str:
    return str(browser.evaluate(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"))


def episode_of(task: str) -> int:
    """Number of the first episode of a task in the first run."""
    index, _ = sample_index()
    return int(index["runs"][0]["episodes"]["task_id"].index(task))


def open_episode(browser: Browser, report: Path, task: str) -> None:
    browser.open(report, f"/episodes?episode={episode_of(task)}")
    browser.wait("document.querySelector('article.call') !== null")


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_page_loads_alone_and_fits_the_window(
    browser: Browser, report: Path, page: str, size: str, dark: bool
) -> None:
    browser.look(*SIZES[size], dark=dark)
    browser.open(report, f"/{page}")
    assert browser.evaluate("document.querySelector('nav a[aria-current]').id") == f"page-{page}"
    assert len(text_of(browser, "main")) > 100
    assert browser.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    assert browser.evaluate(
        "[...document.querySelectorAll('.frame svg')].every((e) => e.getAttribute('aria-label'))"
    )
    assert browser.evaluate(BAD_TEXTS) == []
    browser.evaluate("new Promise((resolve) => setTimeout(resolve, 50))")
    assert browser.problems == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("size", SIZES)
def test_episodes_are_filtered_opened_and_left_by_keyboard(browser: Browser, report: Path, size: str) -> None:
    browser.look(*SIZES[size])
    browser.open(report)
    browser.press("3")
    browser.wait("document.getElementById('episodes') !== null")
    for _ in range(30):
        if browser.evaluate("document.activeElement.id") == "text":
            break
        browser.press("Tab")
    for letter in "plan/tree":
        browser.press(letter)
    # the field tells the page of the last letters a while after them, which closes an episode
    browser.wait("report.state.text === 'plan/tree'")
    browser.wait("document.querySelector('.side [role=status]').textContent.startsWith('1 of')")
    assert browser.evaluate("document.activeElement.id") == "text", "the field keeps the focus"
    browser.press("Tab", "Enter")
    browser.wait("document.querySelector('.candidates article') !== null")
    assert "plan/tree" in text_of(browser, "#detail h2")
    browser.press("Escape")
    browser.wait("report.state.episode === undefined")
    browser.wait("document.activeElement.id === 'episodes'")
    assert browser.problems == []


def test_arrow_keys_move_in_the_list_and_open_what_they_reach(browser: Browser, report: Path) -> None:
    browser.look(*SIZES["desk"])
    browser.open(report, "/episodes")
    browser.evaluate("document.getElementById('episodes').focus()")
    browser.press("ArrowDown", "ArrowDown", "PageDown", "ArrowUp")
    chosen = browser.evaluate("document.getElementById('episodes').getAttribute('aria-activedescendant')")
    browser.press("Enter")
    browser.wait("report.state.episode !== undefined")
    row = int(chosen.rsplit("-", 1)[1])
    assert browser.evaluate("report.state.episode") == str(browser.evaluate(f"report.listed[{row}]"))
    browser.press("n")
    browser.wait(f"report.state.episode === String(report.listed[{row + 1}])")
    browser.press("End")
    assert browser.evaluate("document.querySelectorAll('#episodes .row').length") < 80, (
        "only rows in view are drawn"
    )


FILTERS: dict[str, Any] = {
    "split=val": lambda e, i: e["split"][i] == "val",
    "step=4": lambda e, i: e["step"][i] == 4,
    "result=success": lambda e, i: e["success"][i] > 0 and not e["failure"][i],
    "result=wrong": lambda e, i: e["success"][i] == 0 and not e["failure"][i],
    "result=failed": lambda e, i: bool(e["failure"][i]),
    "result=left": lambda e, i: bool(e["left_out"][i]),
    "alarm=8": lambda e, i: i in (20, 21),
    "text=TRIP": lambda e, i: "trip" in e["task_id"][i],
}


@pytest.mark.parametrize("query", FILTERS)
def test_a_filter_lets_through_what_it_says(browser: Browser, report: Path, query: str) -> None:
    episodes = sample_index()[0]["runs"][0]["episodes"]
    wanted = [i for i in range(episodes["length"]) if FILTERS[query](episodes, i)]
    browser.open(report, f"/episodes?{query}")
    assert browser.evaluate("report.listed") == wanted != []


def test_planted_markup_is_shown_as_text_and_hidden_characters_as_marks(
    browser: Browser, report: Path
) -> None:
    open_episode(browser, report, "hostile/<b>task</b>\u202e")
    shown = text_of(browser, ".dialogue")
    assert HOSTILE["script"] in shown and HOSTILE["handler"] in shown and HOSTILE["end"] in shown
    for code in ("U+202E", "U+202C", "U+2066", "U+200B", "U+0000", "U+001B", "U+007F", "U+D800", "U+DFFF"):
        assert code in shown, code
    for character in ("\u202e", "\u2066", "\u200b", "\x1b"):
        assert character not in text_of(browser, "body"), repr(character)
    assert "\U0001f600" in shown
    assert "<b>task</b>" in text_of(browser, "#detail h2")
    assert browser.evaluate("window.planted === undefined && document.querySelectorAll('img').length === 0")
    assert browser.problems == []


def test_a_reply_of_a_megabyte_opens_at_once_and_is_there_in_whole(browser: Browser, report: Path) -> None:
    open_episode(browser, report, "hostile/<b>task</b>\u202e")
    assert "980,000 more characters" in text_of(browser, "button.more")
    browser.evaluate("document.querySelectorAll('button.more').forEach((button) => button.click())")
    while browser.evaluate("document.querySelector('.reply button.more') !== null"):
        browser.evaluate("document.querySelector('.reply button.more').click()")
    longest = browser.evaluate(
        "Math.max(...[...document.querySelectorAll('.reply')].map((e) => e.textContent.length))"
    )
    assert longest == len(HOSTILE["long"])


def test_candidates_stand_side_by_side_with_the_committed_one_first(browser: Browser, report: Path) -> None:
    browser.look(*SIZES["desk"])
    open_episode(browser, report, "plan/tree")
    replies = browser.evaluate(
        "[...document.querySelectorAll('.candidates .reply')].map((e) => e.textContent)"
    )
    assert replies == ["move right", "move up", "move down", "move left"]
    tops = browser.evaluate(
        "[...document.querySelectorAll('.candidates article')].map((e) => e.getBoundingClientRect().top)"
    )
    assert len(set(tops)) == 1
    assert "explored" in text_of(browser, ".candidates article:nth-child(4)")


def test_the_world_is_replayed_and_its_cells_are_text(browser: Browser, report: Path) -> None:
    open_episode(browser, report, "plan/tree")
    cells = "[...document.querySelectorAll('.board tr')].map((e) => e.textContent).join('|')"
    assert browser.evaluate(cells) == "####|#a.#|#.g#|####"
    browser.evaluate("document.getElementById('world').focus()")
    browser.press("ArrowRight")
    assert browser.evaluate(cells) == "####|#.a#|#.g#|####"
    assert "goal" in text_of(browser, ".world .legend")


def test_requests_are_a_tree_with_the_cause_where_tokens_were_rendered_anew(
    browser: Browser, report: Path
) -> None:
    open_episode(browser, report, "gateway/trip")
    browser.evaluate("[...document.querySelectorAll('details')].forEach((e) => { e.open = true; })")
    browser.wait("document.querySelector('.tree li') !== null")
    browser.wait("document.querySelector('.difference') !== null")
    assert browser.evaluate("document.querySelectorAll('.tree > ul > li').length") == 2
    nested = text_of(browser, ".tree > ul > li:first-child > ul")
    assert "rendered anew: template" in nested and "no client got it" in nested
    assert browser.evaluate("document.querySelectorAll('article.unheard').length") == 1
    assert "Draft one" in text_of(browser, ".difference .added, .difference")


def test_rounds_are_folded_into_their_call_and_versions_are_parts(browser: Browser, report: Path) -> None:
    open_episode(browser, report, "tools/calculator")
    assert browser.evaluate("document.querySelectorAll('.dialogue article').length") == 1
    browser.evaluate("[...document.querySelectorAll('article details')].forEach((e) => { e.open = true; })")
    browser.wait("document.querySelectorAll('.dialogue article').length === 2")
    assert "calling calculator(11 + 6)" in text_of(browser, ".dialogue")
    open_episode(browser, report, "async/partial")
    assert browser.evaluate("[...document.querySelectorAll('.part')].map((e) => e.textContent)") == [
        "version 3: 30 tokens",
        "version 4: 12 tokens",
    ]


def test_a_text_that_is_not_in_the_file_says_where_it_is(browser: Browser, report: Path) -> None:
    browser.open(report, f"/episodes?episode={episode_of('not/here')}")
    browser.wait("document.querySelector('#detail .box') !== null")
    assert "trajectories/train_000001.jsonl, line" in text_of(browser, "#detail .box")


def test_a_credit_path_that_does_not_hold_is_red(browser: Browser, report: Path) -> None:
    browser.open(report, "/overview")
    terms = [{"name": "team", "value": 1}, {"name": "reward", "value": 1}]
    wrong = {"terms": terms, "reward": 1, "groupSize": 4,
             "baseline": 0.5, "spread": 0.5, "advantage": 1, "recorded": 0.9, "error": 0.1}  # fmt: skip
    for path, fails in ((wrong, True), (wrong | {"recorded": 1, "error": 1e-7}, False)):
        browser.evaluate(
            f"document.getElementById('main').replaceChildren(report.drawCredit({json.dumps(path)}))"
        )
        assert browser.evaluate("document.querySelector('.credit').classList.contains('fails')") is fails
        assert ("does not hold" in text_of(browser, ".credit")) is fails
        assert "baseline 0.500" in text_of(browser, ".credit")


def test_prompts_show_what_is_new_since_the_last_one(browser: Browser, report: Path) -> None:
    browser.open(report)
    before = ["a\n", "b\n", "c\n", "d\n"]
    after = ["a\n", "b\n", "x\n", "d\n", "e\n"]
    parts = browser.evaluate(f"report.difference({json.dumps(before)}, {json.dumps(after)})")
    assert [line for part in parts if part["kind"] != "removed" for line in part["lines"]] == after
    assert [line for part in parts if part["kind"] != "added" for line in part["lines"]] == before
    assert [part["lines"] for part in parts if part["kind"] == "added"] == [["x\n"], ["e\n"]]


def test_the_state_is_in_the_address(browser: Browser, report: Path) -> None:
    browser.open(report, "/overview?alarm=8")
    assert browser.evaluate("document.querySelector('.alarm.chosen').id") == "alarm-8"
    browser.click(".alarm.chosen a[href*=episode]")
    browser.wait("document.querySelector('article.call') !== null")
    assert browser.evaluate("location.hash").startswith("#/episodes?run=0&episode=20") or (
        browser.evaluate("location.hash") == "#/episodes?episode=20"
    )
    browser.evaluate("history.back()")
    browser.wait("document.querySelector('.alarm.chosen') !== null")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_axe_finds_no_serious_violation(browser: Browser, report: Path, page: str, dark: bool) -> None:
    axe = pytest.importorskip("axe_core_python", reason="needs axe-core-python: bash scripts/setup.sh report")
    script = Path(axe.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
    browser.look(*SIZES["desk"], dark=dark)
    if page == "episodes":
        open_episode(browser, report, "plan/tree")
    else:
        browser.open(report, f"/{page}")
    browser.evaluate("new Promise((resolve) => setTimeout(resolve, 100))")
    browser.evaluate(f"{script}; 0")
    found = browser.evaluate(
        "axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations.filter((v) => "
        "['serious', 'critical'].includes(v.impact)).map((v) => `${v.id}: ${v.nodes.slice(0, 3)"
        ".map((n) => n.html.slice(0, 200) + ' ' + n.failureSummary).join(' | ')}`))"
    )
    assert found == []


def emptied(run: dict[str, Any]) -> dict[str, Any]:
    """A run of which nothing is known but its name, as its index is."""
    tables = {name: {"length": 0} for name in ("episodes", "calls", "spans")}
    accuracy = {"measure": "success", "before": None, "after": None, "points": [], "files": {}}
    lists = {name: [] for name in ("steps", "agents", "alarms", "files", "audit", "damaged", "notes")}
    return (
        run
        | tables
        | lists
        | {"accuracy": accuracy, "state": None, "metrics": {}, "config": {}, "credit": {}}
    )


@pytest.mark.parametrize("page", PAGES)
def test_a_run_of_which_nothing_is_known_has_all_pages(browser: Browser, tmp_path: Path, page: str) -> None:
    index, _ = sample_index(runs=1)
    index["runs"] = [emptied(index["runs"][0])]
    browser.open(write_page(tmp_path / "report.html", index, []), f"/{page}")
    assert browser.problems == []
    assert len(text_of(browser, "main")) > 30


def test_a_long_run_with_many_agents_is_drawn_with_few_elements(browser: Browser, tmp_path: Path) -> None:
    index, chunks = sample_index(runs=1)
    run = index["runs"][0]
    run["steps"] = list(range(3000))
    placed = {"policy": "p", "group": "p", "trained": True}
    run["agents"] = [{"agent": f"A very long name of agent number {i}", **placed}
                     for i in range(12)]  # fmt: skip
    run["metrics"] = {
        f"agent/a_very_long_name_of_agent_number_{i}/reward/mean": [i + step % 7 for step in run["steps"]]
        for i in range(12)
    }
    for width, height in SIZES.values():
        browser.look(width, height)
        browser.open(write_page(tmp_path / "report.html", index, chunks), "/agents")
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        assert browser.evaluate("document.querySelectorAll('*').length") < 12_000
        assert browser.problems == []


def test_charts_are_read_by_keyboard(browser: Browser, report: Path) -> None:
    browser.open(report, "/overview")
    browser.evaluate("document.querySelector('.frame svg').focus()")
    browser.press("ArrowLeft", "ArrowLeft")
    assert text_of(browser, ".readout").startswith("step 11: training ")
    assert "training: " in browser.evaluate("document.querySelector('.frame svg').getAttribute('aria-label')")


def test_a_file_of_another_form_is_said_on_its_page_and_the_others_are_shown(
    browser: Browser, tmp_path: Path
) -> None:
    index, chunks = sample_index()
    index["runs"][0]["audit"] = [{"step": 2, "table": "none"}]
    for chunk in chunks:
        for episode in chunk["episodes"]:
            episode["calls"] = [{"prompt": 5}]
    path = write_page(tmp_path / "report.html", index, chunks, compact_texts=False)
    browser.open(path, "/audit")
    assert "not what was expected" in text_of(browser, "main [role=alert]")
    browser.open(path, "/episodes?episode=0")
    browser.wait("document.querySelector('#detail [aria-busy]') === null")
    assert "not what was expected" in text_of(browser, "#detail [role=alert]")
    browser.problems.clear()
    browser.open(path, "/overview")
    assert browser.problems == [] and len(text_of(browser, "main")) > 100


def test_a_damaged_index_is_said_and_nothing_else_is_shown(
    browser: Browser, report: Path, tmp_path: Path
) -> None:
    text = report.read_text().replace('id="index">H4', 'id="index">AA')
    (tmp_path / "report.html").write_text(text)
    browser.leave()
    browser.command("Page.navigate", url=(tmp_path / "report.html").as_uri())
    browser.wait("document.querySelector('main [role=alert]') !== null")
    assert "could not be read" in text_of(browser, "main")


def test_the_first_tab_skips_to_the_content(browser: Browser, report: Path) -> None:
    browser.open(report)
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.id") == "skip"
    assert browser.evaluate("document.activeElement.getBoundingClientRect().left >= 0"), "it is seen"
    browser.press("Enter")
    assert browser.evaluate("document.activeElement.id") == "main"


def test_little_is_not_taken_for_a_result(browser: Browser, tmp_path: Path) -> None:
    """A run of few steps is not called healthy, one that was stopped has no accuracy after training,
    and an effect that may be 0 is nobody's.
    """
    index, chunks = sample_index()
    first, second = index["runs"][:2]
    first["alarms"] = []
    first["solved"] = False
    first["attempt"] = {"started": None, "from_step": first["steps"][-4]}
    for run in (first, second):
        before = run["accuracy"]["before"]
        run["accuracy"] |= {"after": None, "points": [before]}
    for row in first["audit"][0]["table"]:
        row["low"] = 0.0
    path = write_page(tmp_path / "report.html", index, chunks)
    browser.open(path, "/overview")
    assert "judge from the tenth step on: there are 3" in text_of(browser, "main")
    browser.open(path, "/audit")
    assert "No agent's choice is shown to matter" in text_of(browser, "main .verdict")
    assert "matter most" not in text_of(browser, "main")
    browser.open(path, "/compare")
    dots = "document.querySelector('main .frame svg').querySelectorAll('circle').length"
    assert browser.evaluate(dots) == 2


def test_groups_of_the_agents_page_are_those_that_the_run_compares(browser: Browser, tmp_path: Path) -> None:
    """Two tasks of four episodes a step, of which each Solver makes two calls, and special episodes in
    step 4.
    """
    index, chunks = sample_index(runs=1)
    run = index["runs"][0]
    counts = "report.silentGroups(report.run()).get('solver_agent').count.slice(5, 8)"
    for fields, expected in ((None, 2), (["traj_uid", "agent_id", "turn", "call"], 16), (["uid", "call"], 4)):
        run["config"]["algorithm.group_by"] = fields
        browser.open(write_page(tmp_path / "report.html", index, chunks), "/agents")
        assert browser.evaluate(counts) == [
            expected + (step == 5) * (1 if fields is None else 2) for step in (5, 6, 7)
        ]
        shares = "[...document.querySelectorAll('.agent .part')].map((part) => part.title)"
        assert not [text for text in browser.evaluate(shares) if text.endswith(" 0.0 %")]


def test_the_candidate_that_the_episode_went_on_with_is_named(browser: Browser, report: Path) -> None:
    open_episode(browser, report, "plan/tree")
    assert "committed" in text_of(browser, ".candidates article:first-child header")
    assert "committed" not in text_of(browser, ".candidates article:nth-child(2) header")
    open_episode(browser, report, "tools/calculator")
    assert "committed" not in text_of(browser, "#detail")


def test_labels_of_times_have_one_unit(browser: Browser, report: Path) -> None:
    browser.open(report)
    labels = "((low, high) => report.tickLabels(report.ticks(low, high, 8, true).ticks, report.duration))"
    assert browser.evaluate(f"{labels}(0, 146)") == [f"{20 * n} s" for n in range(9)]
    assert browser.evaluate(f"{labels}(0, 290)") == ["0 min", "1 min", "2 min", "3 min", "4 min", "5 min"]
    assert browser.evaluate(f"{labels}(0, 1.4)")[:3] == ["0 s", "0.2 s", "0.4 s"]
    assert browser.evaluate(f"{labels}(0, 0.03)")[-1] == "30 ms"


def test_sampling_is_not_called_idle(browser: Browser, report: Path) -> None:
    browser.open(report, "/time")
    assert "samples or waits for" in text_of(browser, ".verdict")
    assert "idle" not in text_of(browser, "main").lower()


def test_tasks_that_changed_sides_are_counted_among_all(browser: Browser, tmp_path: Path) -> None:
    index, chunks = sample_index()
    index["compare"]["common"] = 200
    browser.open(write_page(tmp_path / "report.html", index, chunks), "/compare")
    assert "Of 200 tasks of the last validation, 4 changed sides: 2 better, 2 worse" in text_of(
        browser, "#main"
    )
    browser.look(*SIZES["phone"])
    width = browser.evaluate("document.querySelector('th code').getBoundingClientRect().right")
    assert width < SIZES["phone"][0] / 2, "values stand beside the names of keys"


def test_a_legend_shows_what_the_chart_shows(browser: Browser, report: Path) -> None:
    """Validations are dots with intervals, training is a line."""
    browser.open(report, "/overview")
    signs = "[...document.querySelector('.legend').children].map((e) => e.querySelectorAll('circle').length)"
    assert browser.evaluate(signs) == [0, 1]
    browser.open(report, "/compare")
    assert browser.evaluate(signs) == [1, 1]


def test_the_last_step_alone_is_no_mean_of_steps(browser: Browser, tmp_path: Path) -> None:
    index, chunks = sample_index(runs=1)
    run = index["runs"][0]
    for steps, name in ((2, "last step"), (4, "last 2 steps")):
        run["steps"] = list(range(steps + 1))
        path = write_page(tmp_path / "report.html", index, chunks)
        browser.open(path, "/agents")
        assert f"Mean absolute advantage of the {name}: " in text_of(browser, ".verdict")
        assert f"Groups of the {name} by their rewards" in text_of(browser, ".agent")
        browser.open(path, "/time")
        assert f"(mean of the {name})" in text_of(browser, ".verdict")


def test_only_a_reply_that_another_agent_could_read_is_said_to_be_in_no_later_prompt(
    browser: Browser, tmp_path: Path
) -> None:
    """The last call of a turn, each of its candidates, acts in the world, and a candidate that was not
    committed has no readers. In a math episode Solver and Verifier speak before the last answer.
    """
    index, chunks = sample_index(runs=1)
    run = index["runs"][0]
    run["calls"]["heard"] = [0] * len(run["calls"]["heard"])
    path = write_page(tmp_path / "report.html", index, chunks)
    open_episode(browser, path, "plan/tree")
    assert "in no later prompt" not in text_of(browser, "#detail")
    open_episode(browser, path, "word_problems:102")
    tags = "[...document.querySelectorAll('article.call')].map((e) => e.textContent.includes('in no later prompt'))"
    assert browser.evaluate(tags) == [True, True, False]
    shares = (
        "report.agentsOf(report.run()).map((agent) => report.callShare(report.run(), agent, 'heard', 12))"
    )
    assert browser.evaluate(shares)[:2] == [0, 0]
    browser.evaluate("report.run().calls.heard = report.run().calls.committed; 0")
    assert browser.evaluate(shares)[:2] == [1, 1], "candidates that were not committed are not counted"


def test_charts_of_times_name_no_other_unit_than_their_axes(browser: Browser, tmp_path: Path) -> None:
    index, chunks = sample_index(runs=1)
    metrics = index["runs"][0]["metrics"]
    metrics |= {
        key: [v and 60 * v for v in row] for key, row in metrics.items() if key.startswith("timing_s/")
    }
    browser.open(write_page(tmp_path / "report.html", index, chunks), "/time")
    chart = browser.evaluate(
        "[...document.querySelectorAll('figure')].find((e) => e.textContent.includes('Where the time')).textContent"
    )
    assert " min" in chart and "seconds" not in chart


def test_groups_of_a_world_without_success_are_not_called_failed(browser: Browser, tmp_path: Path) -> None:
    index, chunks = sample_index(runs=1)
    run = index["runs"][0]
    count = run["episodes"]["length"]
    run["episodes"] |= {"success": [None] * count, "team_reward": [0.5] * count}
    run["calls"]["reward"] = [0.5] * run["calls"]["length"]
    browser.open(write_page(tmp_path / "report.html", index, chunks), "/agents")
    shares = browser.evaluate("[...document.querySelectorAll('.agent .part')].map((part) => part.title)")
    assert shares and set(shares) == {"tied 100.0 %"}
    browser.evaluate("report.go({page: 'episodes'}, true)")
    assert text_of(browser, ".side [role=status]") == f"{count} of {count}"
    browser.evaluate("report.go({result: 'wrong'}, true)")
    assert browser.evaluate("report.listed") == []


def test_no_text_of_a_chart_of_many_steps_covers_another_or_is_cut(browser: Browser, tmp_path: Path) -> None:
    index, chunks = sample_index()
    for run in index["runs"]:
        run["steps"] = [80 * step for step in run["steps"]]
    path = write_page(tmp_path / "report.html", index, chunks)
    browser.look(*SIZES["phone"])
    for page in ("overview", "agents", "time"):
        browser.open(path, f"/{page}")
        assert browser.evaluate(BAD_TEXTS) == [], page


def test_episodes_that_were_not_recorded_are_not_counted_as_none(browser: Browser, tmp_path: Path) -> None:
    index, _ = sample_index(runs=1)
    run = index["runs"][0]
    index["runs"] = [emptied(run) | {"steps": run["steps"], "metrics": run["metrics"]}]
    browser.open(write_page(tmp_path / "report.html", index, []), "/overview")
    facts = browser.evaluate("[...document.querySelectorAll('.fact')].map((fact) => fact.textContent)")
    assert "Episodes\u2013not recorded" in facts


def test_a_critic_and_the_kl_to_a_reference_are_shown_where_a_run_has_them(
    browser: Browser, report: Path, tmp_path: Path
) -> None:
    browser.open(report, "/agents")
    assert "Values" not in text_of(browser, ".agent") and "KL to the reference" not in text_of(
        browser, ".agent"
    )
    index, chunks = sample_index(runs=1)
    run = index["runs"][0]
    policy = run["agents"][0]["policy"]
    for name, value in (("actor/kl_loss", 0.25), ("critic/vf_explained_var", 0.75)):
        run["metrics"][f"wg/{policy}/{name}"] = [None, *(value for _ in run["steps"][1:])]
    browser.open(write_page(tmp_path / "report.html", index, chunks), "/agents")
    rows = browser.evaluate(
        "[...document.querySelector('.agent').querySelectorAll('tr')].map((e) => e.textContent)"
    )
    assert {"KL to the reference0.2500.250", "Values0.7500.750"} <= set(rows)
