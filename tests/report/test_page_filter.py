"""The filter of the Episodes page in a real Chromium: what it finds, and what of the page it draws anew."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.shared.browser import Browser, chromium
from tests.report.pages import needs_chromium, write_page
from tests.report.sample_report import sample_index

pytestmark = needs_chromium
# Two of them have other lengths or other letters in lower case; one has a line break.
TASKS = ("trip/\u0130STANBUL", "\u039f\u0394\u039f\u03a3 one", "a\nb", "<b>Task</b>\u202e", "", "trip/oslo")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


def index_of(tasks: tuple[str, ...] = TASKS) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A report whose first episodes have these tasks, and the next ones these actions."""
    index, chunks = sample_index(runs=1)
    run = index["runs"][0]
    run["episodes"]["task_id"][: len(tasks)] = tasks
    first = run["episodes"]["first_call"][2 * len(tasks)]
    run["calls"]["action"][first : first + len(tasks)] = tasks
    run["episodes"]["failure"][4 * len(tasks)] = "ERROR: no answer from \u0130zmir"
    return index, chunks


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(tmp_path_factory.mktemp("report") / "report.html", *index_of())


def texts_of(run: dict[str, Any]) -> list[list[str]]:
    """Task, answer, failure and actions of each episode."""
    episodes = run["episodes"]
    return [
        [
            *(episodes[name][i] or "" for name in ("task_id", "answer", "failure")),
            *(action or "" for action in run["calls"]["action"][first : first + episodes["calls"][i]]),
        ]
        for i, first in enumerate(episodes["first_call"])
    ]


@pytest.mark.parametrize("constant", [False, True], ids=["columns", "one task"])
def test_a_text_is_found_in_task_answer_failure_and_actions_in_any_case(
    browser: Browser, report: Path, tmp_path: Path, constant: bool
) -> None:
    index, chunks = index_of()
    run = index["runs"][0]
    if constant:
        run["episodes"]["task_id"] = ["trip/Oslo"] * run["episodes"]["length"]
        report = write_page(tmp_path / "report.html", index, chunks)
    browser.open(report, "/episodes")
    if constant:
        browser.evaluate("report.run().episodes.task_id = {all: 'trip/Oslo'}; 0")
    pieces = {text for texts in texts_of(run) for text in texts}
    wanted = {
        *(
            "7",
            "17",
            "TRIP",
            "istanbul",
            "i\u0307stanbul",
            "\u03bf\u03b4\u03bf",
            "b>t",
            "\u202e",
            "a\nb",
            "izmir",
        ),
        *(text.lower() for text in pieces if text),
        *(text[1:] + "\n" for text in pieces if len(text) > 1),
    }
    order = sorted(wanted)
    shown = browser.evaluate(
        f"{json.dumps(order)}.map((text) => report.filterEpisodes(report.run(), {{text}}))"
    )
    texts = [[part.lower() for part in parts] for parts in texts_of(run)]
    for text, numbers in zip(order, shown, strict=True):
        assert numbers == [
            i for i, parts in enumerate(texts) if any(text.lower() in part for part in parts)
        ], text


def test_what_is_searched_in_is_joined_once(browser: Browser, report: Path) -> None:
    browser.open(report, "/episodes?text=17")
    browser.evaluate("window.joined = report.run().searched.action.text; report.joinedTexts = null; 0")
    browser.evaluate("report.go({text: 'approve'}, true)")
    assert browser.evaluate("report.listed.length") > 0
    assert browser.evaluate("report.run().searched.action.text === joined")


def test_typing_keeps_field_caret_and_list(browser: Browser, report: Path) -> None:
    browser.open(report, "/episodes?text=1")
    browser.evaluate("document.getElementById('text').focus()")
    browser.evaluate("document.getElementById('episodes').dataset.list = 'first'; 0")
    browser.press("ArrowLeft")
    browser.evaluate("document.getElementById('text').setSelectionRange(0, 0)")
    browser.press("9")
    browser.wait("report.state.text === '91'")
    browser.press("1")
    browser.wait("report.state.text === '911'")
    assert browser.evaluate("document.activeElement.selectionStart") == 2
    assert browser.evaluate("document.getElementById('episodes').dataset.list") == "first"
    assert browser.evaluate("document.querySelectorAll('#episodes .row').length") == 0
    browser.wait("location.hash === '#/episodes?text=911'")


def test_a_filter_asks_for_no_layout(browser: Browser, report: Path) -> None:
    """A place or a size that is asked for after each of many changes would lay the page out as often."""

    def layouts() -> int:
        metrics = browser.command("Performance.getMetrics")["metrics"]
        return int(next(entry["value"] for entry in metrics if entry["name"] == "LayoutCount"))

    browser.open(report, "/episodes")
    before = layouts()
    browser.evaluate("for (let i = 0; i < 30; i++) report.go({text: String(i)}, true)")
    assert layouts() - before < 10
    browser.evaluate("document.getElementById('episodes').scrollTop = 400; 0")
    before = layouts()
    browser.evaluate("for (let i = 0; i < 30; i++) report.go({text: String(i % 2)}, true)")
    assert layouts() - before < 10, "beside the one that brings the first row into view"


def test_rows_are_drawn_as_they_come_into_view_in_their_order(browser: Browser, tmp_path: Path) -> None:
    index, chunks = sample_index(runs=1)
    browser.open(write_page(tmp_path / "report.html", index, chunks), "/episodes?sort=low")
    numbers = (
        "[...document.querySelectorAll('#episodes .row')].map((e) => Number(e.getAttribute('aria-posinset')))"
    )
    last = browser.evaluate("report.listed.length")
    for top, edge in ((1e9, -1), (0, 0), (800, None), (600, None), (1e9, -1)):
        browser.evaluate(f"document.getElementById('episodes').scrollTop = {top}; 0")
        browser.evaluate("new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)))")
        rows = browser.evaluate(numbers)
        assert rows == list(range(rows[0], rows[0] + len(rows))) and len(rows) < 80
        if edge is not None:
            assert rows[edge] == (last if edge else 1)
    browser.evaluate("report.go({sort: 'high'}, true)")
    assert browser.evaluate(numbers)[0] == 1, "other rows are shown from the first one on"
    assert browser.evaluate("document.getElementById('episodes').scrollTop") == 0


def test_steps_can_be_chosen_by_keyboard(browser: Browser, report: Path) -> None:
    browser.open(report, "/episodes?step=4")
    chosen = "(() => { const e = document.getElementById('step'); return [e.value, e.length]; })()"
    assert browser.evaluate(chosen) == ["4", 2]
    browser.evaluate("document.getElementById('step').focus()")
    assert browser.evaluate(chosen) == ["4", 14]
    browser.press("ArrowDown")
    browser.wait("report.state.step === '5'")
    assert browser.evaluate("report.listed.every((i) => report.run().episodes.step[i] === 5)")
    assert browser.evaluate("document.activeElement.id") == "step"


def test_an_address_that_is_not_written_yet_gives_way_to_the_next(browser: Browser, report: Path) -> None:
    browser.open(report, "/overview")
    browser.evaluate("report.go({page: 'episodes', text: '17'}, true); report.go({episode: 3}); 0")
    browser.wait("document.querySelector('#detail h2') !== null")
    assert browser.evaluate("location.hash") == "#/episodes?text=17&episode=3"
    browser.evaluate("history.back()")
    browser.wait("location.hash === '#/episodes?text=17'")
    browser.wait("report.state.episode === undefined")
    browser.evaluate("report.go({text: '9'}, true); location.hash = '#/time'; 0")
    browser.wait("report.state.page === 'time'")
    browser.evaluate("new Promise((resolve) => setTimeout(resolve, 20))")
    assert browser.evaluate("location.hash") == "#/time"
