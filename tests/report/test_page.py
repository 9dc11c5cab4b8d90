"""The HTML file loads nothing, has hostile texts as they are, and says what was left out."""

from __future__ import annotations

import base64
import json
import re
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.report.reading import column, data_of, episodes_in, rewrite, small_run, texts_of
from verl.report import page as page_module
from verl.report.choose import tiers
from verl.report.index import read_report
from verl.report.page import MEGABYTE, report_page, scripts

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)> <!-- "
    "\u202e\u2066evil\u2069 \ud800 \udfff \x00\x07\x1b[31m\r\n\u2028\u2029 @@SCRIPT@@ \ufeff&lt;"
)


class Elements(HTMLParser):
    """Names and attributes of all elements, and what is in styles and scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] in ("script", "style") and data.strip():
            self.texts.append(data)


def page_of(folder: Path, max_mb: float = 8) -> str:
    return report_page(read_report([folder]), max_mb)


def test_the_page_is_one_file_that_loads_nothing(tmp_path: Path) -> None:
    page = page_of(small_run(tmp_path / "run"))
    found = Elements(page)
    assert not [attrs for _, attrs in found.elements if {"src", "href", "srcset", "style"} & set(attrs)]
    assert not [attrs for _, attrs in found.elements if any(name.startswith("on") for name in attrs)]
    (policy,) = [
        attrs["content"] or ""
        for _, attrs in found.elements
        if attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    style, script = found.texts[0], found.texts[-1]
    for text, rule in ((style, rules.pop("style-src")), (script, rules.pop("script-src"))):
        assert rule == f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"
    assert script == scripts()
    assert rules == {
        "default-src": "'none'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
    }


def test_scripts_write_text_only() -> None:
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|setTimeout\(\""
    )
    assert not re.search(forbidden, scripts())
    assert not re.search(r"https?://(?!www\.w3\.org/)", scripts())


def test_texts_come_back_as_they_are_in_the_files(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")
    file = folder / "trajectories" / "train_000002.jsonl"
    megabyte = (HOSTILE * 15_000)[:1_000_000]

    def change(row: dict[str, Any]) -> None:
        row["calls"][0] |= {
            "prompt": HOSTILE,
            "reply": megabyte,
            "action": megabyte,
            "fields": {HOSTILE: HOSTILE},
        }
        row["calls"][1] |= {"prompt": f"{HOSTILE}\n\n", "reply": "", "tools": {"calls": 1}, "anchor": HOSTILE}
        row["info"] |= {"password": HOSTILE, HOSTILE: [1.5]}
        row["unheard"] = [row["calls"][0] | {"reply": "unheard"}]
        row["answer"] = HOSTILE * 9
        row["states"] = [HOSTILE, {"cells": ["ab"]}]

    rewrite(file, change)
    folder = folder.rename(folder.parent / "<img src=y>")
    page = page_of(folder)
    assert [tag for tag, _ in Elements(page).elements].count("script") == page.count("<script")
    assert "<img" not in page and "alert(1)" not in page
    data = data_of(page)
    for text, episode in zip(texts_of(data), episodes_in(folder), strict=True):
        assert text is not None
        calls = [*episode["calls"], *episode.get("unheard", ())]
        assert [(call["prompt"], call["reply"]) for call in text["calls"]] == [
            (call["prompt"], call["reply"]) for call in calls
        ]
    text, episode = next(
        pair for pair in zip(texts_of(data), episodes_in(folder), strict=True) if "states" in pair[1]
    )
    assert text["info"] == episode["info"] | {"password": "***"}
    assert (text["states"], text["answer"]) == (episode["states"], episode["answer"])
    assert text["calls"][0]["fields"] == {HOSTILE: HOSTILE} and text["calls"][1]["tools"] == {"calls": 1}
    assert max(len(action) for action in column(data["index"]["runs"][0]["calls"], "action")) == 200


def test_equal_lines_are_stored_once(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run", steps=1, tasks=1, episodes=1, calls=4, characters=2000)
    data = data_of(page_of(folder))
    strings = [string for name, chunk in data.items() if name != "index" for string in chunk["strings"]]
    train = [json.loads(line) for line in (folder / "trajectories" / "train_000001.jsonl").open()]
    question = train[0]["calls"][0]["prompt"].split("\n")[1]
    assert sum(question in string for string in strings if string.endswith("\n")) == 1


def test_the_same_run_makes_the_same_texts(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run", steps=4, tasks=8)
    first, second = (data_of(page_of(folder, 0.03)) for _ in range(2))
    assert [first[name] for name in first if name != "index"] == [
        second[name] for name in second if name != "index"
    ]


def test_a_page_that_is_full_says_what_it_leaves_out(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run", steps=6, tasks=8, episodes=4, characters=2000)
    whole = page_of(folder)
    limit = round(len(whole) / MEGABYTE * 0.6, 3)
    page = page_of(folder, limit)
    assert len(page) <= limit * MEGABYTE
    run = data_of(page)["index"]["runs"][0]
    left_out = column(run["episodes"], "chunk").count(-1)
    total = run["episodes"]["length"]
    assert 0 < left_out == run["left_out_texts"] < total
    assert any(
        note.startswith(f"the texts of {left_out} of {total} episodes are left out") for note in run["notes"]
    )
    # whole groups, the first of which are of the first and the last step
    groups: dict[Any, set[bool]] = {}
    for step, split, uid, chunk in zip(
        *(column(run["episodes"], name) for name in ("step", "split", "uid", "chunk")), strict=True
    ):
        groups.setdefault((step, split, uid), set()).add(chunk >= 0)
    assert all(len(states) == 1 for states in groups.values())
    assert {step for (step, split, _), states in groups.items() if split == "train" and True in states} >= {
        1,
        6,
    }
    assert data_of(whole)["index"]["runs"][0]["left_out_texts"] == 0


def test_a_page_of_any_size_has_the_index(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run")
    data = data_of(page_of(folder, 0.001))
    run = data["index"]["runs"][0]
    assert list(data) == ["index"] and run["left_out_texts"] == run["episodes"]["length"] > 0


def test_what_a_reader_looks_for_comes_before_the_rest(tmp_path: Path) -> None:
    folder = small_run(tmp_path / "run", steps=3, tasks=12, episodes=2, val_every=1)
    file = folder / "trajectories" / "train_000002.jsonl"
    rows = [json.loads(line) for line in file.open()]
    for at, row in enumerate(rows):
        row["team_reward"] = 0.5 + at / 100
    uids = [row["uid"] for row in rows[::2]]
    rows[4]["team_reward"] = 9.0
    rows[8]["team_reward"] = -9.0
    rows[12]["failure"] = "timeout"
    rows[16]["team_reward"] = rows[17]["team_reward"]
    rows[21]["calls"][0]["reply"] = "x" * 5000
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    parts = [groups for _, groups in tiers(read_report([folder]).episodes)]
    assert {(group.step, group.split) for group in parts[0]} == {(1, "train"), (3, "train")}
    assert {(group.step, group.split) for group in parts[1]} == {(0, "val"), (3, "val")}
    picks = {group.uid for group in parts[2] if group.split == "train"}
    assert picks == {uids[2], uids[4], uids[6], uids[8], uids[10]}
    assert {(group.step, group.split) for group in parts[3]} <= {(1, "val"), (2, "val")}
    assert {group.uid for group in parts[4]} == set(uids) - picks
    assert sum(map(len, parts[:5])) == len(parts[5]) == len(set(parts[5]))


def test_a_script_cannot_end_its_element(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    for name, text in {"core.js": "a", "b.js": "'</SCRIPT>'", "main.js": "c"}.items():
        (tmp_path / "page" / name).write_text(text)
    monkeypatch.setattr(page_module, "files", lambda package: tmp_path)
    with pytest.raises(ValueError, match="contains '</script'"):
        scripts.__wrapped__()
    (tmp_path / "page" / "b.js").write_text("b")
    (tmp_path / "page" / "a.test.js").write_text("no")
    assert scripts.__wrapped__() == "a\nb\nc"


def test_titles_are_escaped(tmp_path: Path) -> None:
    page = page_of(small_run(tmp_path / "<b>run&"))
    (title,) = re.findall(r"<title>(.*)</title>", page)
    assert unescape(title).startswith("<b>run&") and "<b>" not in page


def test_an_index_above_the_limit_is_said(tmp_path: Path) -> None:
    report = read_report([small_run(tmp_path / "run")])
    assert len(report_page(report, 0.01)) > 10_000
    assert "since figures and index alone need more than 0.01 MB (--max-mb)" in report.runs[0]["notes"][-1]
