"""Tables and texts of a page come back as they were, in Python and in the page's script."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.house.source import ROOT
from tests.report.expanding import expanded_chunk, expanded_index, expanded_table
from tests.report.reading import small_run
from tests.report.sample_report import sample_index
from verl.report.compact import compact_table
from verl.report.compact_index import UNREAD, compact_index
from verl.report.compact_texts import compact_chunk
from verl.report.index import read_report
from verl.report.pack import chunk_of
from verl.utils.plain import to_bytes

PAGE = ROOT / "verl" / "report" / "page"
# Expands what each line has, `[name of the function, value]`.
RUNNER = """
require(process.argv[1]); require(process.argv[2]);
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const [name, value] = JSON.parse(line);
  process.stdout.write(JSON.stringify(report[name](value)) + "\\n");
});
"""
needs_node = pytest.mark.skipif(
    shutil.which("node") is None, reason="the script of the page runs in node, which is not installed"
)
LOG_PROBS = ("log_prob_before", "log_prob_after")


def expanded_by_the_page(values: list[tuple[str, Any]]) -> list[Any]:
    """The values as the script of the page expands them."""
    command = ["node", "-e", RUNNER, str(PAGE / "core.js"), str(PAGE / "expand.js")]
    lines = b"".join(to_bytes(value) + b"\n" for value in values)
    ended = subprocess.run(command, input=lines, capture_output=True, check=True)
    return [json.loads(line) for line in ended.stdout.splitlines()]


def random_table(rng: Random, length: int) -> dict[str, Any]:
    """Columns of every kind, of which some are equal, absolute or made of others."""

    def column(draw: Any) -> list[Any]:
        return [draw() for _ in range(length)]

    def sometimes(draw: Any) -> Any:
        return column(lambda: None if rng.random() < 0.2 else draw())

    words = ["", "a", "b\ud800", '\u2028\\"!\U0001f600', "<script>", "\x00"]
    table: dict[str, Any] = {
        "constant": {"all": rng.choice([None, 0, "x", False])},
        "small": column(lambda: rng.randrange(-3, 4)),
        "flags": column(lambda: rng.random() < 0.5),
        "nulls": sometimes(lambda: rng.randrange(60)),
        "wide": column(lambda: rng.randrange(-(10 ** rng.randrange(8)), 10**7)),
        "codes": [at % 130_000 - 65_000 for at in rng.choices(range(130_000), k=length)],
        "rising": sorted(column(lambda: rng.randrange(10**6))),
        "time": sorted(round(1.79e9 + rng.random() * 1e4, 3) for _ in range(length)),
        "hundredths": sometimes(lambda: round(rng.random() * 50, 2)),
        "floats": column(lambda: rng.choice([0.0, rng.gauss(0, 1), 1e300, -1e-300])),
        "few": column(lambda: rng.choice([0.1, -0.7071067, 1.5, None])),
        "words": column(lambda: rng.choice(words)),
        "lists": column(lambda: rng.choice([[], [1], [None, "a"], [[0]]])),
        "objects": sometimes(lambda: {"n": rng.randrange(500), "text": rng.choice(words)}),
        "others": column(lambda: rng.choice([{"n": 1}, {"m": 2}, {}])),
        "advantage": column(lambda: rng.choice([0.0, rng.gauss(0, 1)])),
        "uid": column(lambda: f"step1/{rng.randrange(4)}"),
        "index": column(lambda: rng.randrange(8)),
        "length": length,
    }
    table["again"] = list(table["few"])
    table["abs"] = [abs(value) for value in table["advantage"]]
    table["traj_uid"] = [f"{uid}#{index}" for uid, index in zip(table["uid"], table["index"], strict=True)]
    return table


def indexes_and_chunks(folder: Path) -> tuple[list[Any], list[Any]]:
    """Of a run with token log-probs, one whose credit is damaged, and the sample of the browser's tests."""
    run = small_run(folder / "run", steps=3, tasks=8)
    file = run / "credit" / "step_000002.json"
    content = json.loads(file.read_text())
    rng = Random(0)
    count = len(content["columns"]["turn"])
    for name in (*LOG_PROBS, "token_advantages"):
        content["columns"][name] = [
            None if row % 3 else [-0.001 * rng.random() * 10 ** (row % 5), None, -rng.random(), 0.0]
            for row in range(count)
        ]
    for name in LOG_PROBS:
        content["columns"][name][0] = [1e-320, -1e-320, 0.0]
    file.write_text(json.dumps(content))
    damaged = small_run(folder / "damaged", steps=2)
    file = damaged / "credit" / "step_000002.json"
    content = json.loads(file.read_text())
    content["columns"]["turn"].pop()
    content["columns"]["traj_uid"][0] = ["no", "text"]
    file.write_text(json.dumps(content))
    file = damaged / "credit" / "step_000001.json"
    content = json.loads(file.read_text())
    content["columns"]["call"][0] = 99
    # of tokens of which one number is missing nothing is rounded
    for name, number in zip(LOG_PROBS, (-0.123456789, None), strict=True):
        content["columns"][name] = [[number]] * len(content["columns"]["call"])
    file.write_text(json.dumps(content))
    report = read_report([run, damaged])
    index, chunks = sample_index()
    own = [chunk_of(episodes.whole(list(range(12)))).to_json() for episodes in report.episodes]
    return [json.loads(to_bytes(each)) for each in (report.to_json(), index)], [*chunks, *own]


def rows(table: dict[str, Any]) -> dict[str, Any]:
    """A table with all values of each column."""
    return {
        name: [column["all"]] * table["length"] if isinstance(column, dict) else column
        for name, column in table.items()
    }


def check_index(index: dict[str, Any], again: dict[str, Any]) -> None:
    """What was expanded is the index, but for unread columns of credit and digits of log-probs."""
    assert set(index) == set(again)
    for run, same in zip(index["runs"], again["runs"], strict=True):
        for name in ("episodes", "calls", "spans"):
            read = {key: column for key, column in run[name].items() if key not in UNREAD.get(name, ())}
            assert rows(same[name]) == rows(read)
        assert {
            name: same[name] for name in same if name not in ("episodes", "calls", "spans", "credit")
        } == {name: run[name] for name in run if name not in ("episodes", "calls", "spans", "credit")}
        assert set(same["credit"]) == set(run["credit"])
        for step, columns in run["credit"].items():
            read = {name: column for name, column in columns.items() if name not in UNREAD["credit"]}
            found = same["credit"][step]
            assert {name: found[name] for name in found if name not in LOG_PROBS} == {
                name: read[name] for name in read if name not in LOG_PROBS
            }


def check_log_probs(columns: dict[str, Any], again: dict[str, Any]) -> None:
    """A number is that of the record but for the third digit of the largest, and their sum for less."""
    pairs = [zip(each["log_prob_before"], each["log_prob_after"], strict=True) for each in (columns, again)]
    for (before, after), (rounded, later) in zip(*pairs, strict=True):
        if before is None or (before, after) == (rounded, later):
            assert (before, after) == (rounded, later)
            continue
        for one, other in ((before, rounded), (after, later)):
            assert [value is None for value in one] == [value is None for value in other]
        whole = [
            (b, a - b, r, e - r)
            for b, a, r, e in zip(before, after, rounded, later, strict=True)
            if b is not None
        ]
        for exact, near in (
            ([w[0] for w in whole], [w[2] for w in whole]),
            ([w[1] for w in whole], [w[3] for w in whole]),
        ):
            unit = max(*map(abs, exact), 1e-13) / 100
            assert max(abs(x - y) for x, y in zip(exact, near, strict=True)) <= unit
            assert abs(sum(exact) - sum(near)) <= 0.51 * unit


@needs_node
def test_the_page_and_its_reader_in_python_expand_alike(tmp_path: Path) -> None:
    """Random tables, whole indexes and chunks of texts; Python's reader is that of the other tests."""
    rng = Random(1)
    tables = [random_table(rng, length) for length in (0, 1, 7, 8, 40, 300, 3000)]
    indexes, chunks = indexes_and_chunks(tmp_path)
    values: list[tuple[str, Any]] = [("expandTable", compact_table(table)) for table in tables]
    values += [("expandIndex", compact_index(index)) for index in indexes]
    values += [("expandChunk", compact_chunk(chunk)) for chunk in chunks]
    values += [("expandIndex", index) for index in indexes] + [("expandChunk", chunk) for chunk in chunks]
    found = iter(expanded_by_the_page(values))
    for table in tables:
        again = next(found)
        assert rows(again) == rows(table) == rows(expanded_table(compact_table(table)))
    for index in indexes:
        check_index(index, again := next(found))
        check_index(index, expanded_index(compact_index(index)))
        for run, same in zip(index["runs"], again["runs"], strict=True):
            for step, columns in run["credit"].items():
                if "log_prob_after" in columns:
                    check_log_probs(columns, same["credit"][step])
        if index is indexes[0]:
            assert again["runs"][1]["credit"]["1"]["log_prob_before"][0] == [-0.123456789]
    for chunk in chunks:
        assert next(found) == chunk == expanded_chunk(compact_chunk(chunk))
    for plain in (*indexes, *chunks):
        assert next(found) == plain, "what a server sends is not compact"


def test_forms_are_smaller_than_lists() -> None:
    table = random_table(Random(0), 3000)
    short = compact_table(table)
    assert short["again"] == {"same": "few"} and short["abs"] == {"abs": "advantage"}
    assert short["traj_uid"] == {"joined": ["uid", "index"], "by": "#"}
    for name, part in (("rising", "sum"), ("time", "from"), ("hundredths", "per"), ("few", "set"),
                       ("objects", "fields")):  # fmt: skip
        assert part in short[name], name
    assert len(to_bytes(short)) < 0.7 * len(to_bytes(table))


def test_no_page_reads_what_is_left_out() -> None:
    scripts = "".join(path.read_text(encoding="utf-8") for path in PAGE.glob("*.js"))
    for table, names in UNREAD.items():
        # texts and rounds of a call have a `reply` of their own
        found = [
            name for name in names if re.search(rf"(?:row|{table})\.{name}\b|\"{name}\"(?! \}})", scripts)
        ]
        assert found == [], table
