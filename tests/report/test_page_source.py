"""The files of the page: nothing in them makes markup or code out of text, and they stay small."""

from __future__ import annotations

import re

import pytest

from tests.house.source import ROOT
from verl.report.page import html_page

FOLDER = ROOT / "verl" / "report" / "page"
SCRIPTS = sorted(FOLDER.glob("*.js"))
# What would make markup or code of a text, or load something. Text goes in by textContent and text nodes.
SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|srcdoc"
    r"|setHTML"
    r"|\beval\b|\bFunction\b|\bimport\s*\(|javascript:|\.setAttribute\(\s*[\"']on|XMLHttpRequest|sendBeacon"
    r"|https?://(?!www\.w3\.org/2000/svg)"
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_no_script_makes_markup_or_code_of_text(script: object) -> None:
    assert SINKS.findall(script.read_text(encoding="utf-8")) == []  # type: ignore[attr-defined]


def test_the_search_for_sinks_finds_them() -> None:
    for line in (
        "e.innerHTML = x",
        "eval(x)",
        "new Function(x)",
        "e.insertAdjacentHTML('x', y)",
        "import(x)",
    ):
        assert SINKS.search(line), line


def test_the_template_and_the_style_stay_short() -> None:
    assert len((FOLDER / "template.html").read_text().splitlines()) <= 40
    assert len((FOLDER / "style.css").read_text().splitlines()) <= 150


def test_the_page_has_no_attribute_that_runs_code_and_no_inline_style() -> None:
    page = html_page("a <title> & more", {})
    head = page.split("<script>")[0]
    assert not re.search(r"\son\w+=|\sstyle=", head)
    assert "<title>a &lt;title&gt; &amp; more</title>" in page


def test_every_file_adds_to_one_object_only() -> None:
    """A name at the top of a script would be one of the whole page, where another file could have it."""
    for script in SCRIPTS:
        names = re.findall(r"^(?:const|let|var|function|class) +(\w+)", script.read_text(), re.MULTILINE)
        assert names == [], script.name
