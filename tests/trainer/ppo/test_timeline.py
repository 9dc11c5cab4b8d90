"""Spans are kept by start, and overlap counts the seconds in which two groups were at work."""

import json
from pathlib import Path

import pytest

from verl.trainer.ppo.timeline import (
    Span,
    Timeline,
    append_spans,
    idle_by_group,
    overlap_seconds,
    seconds_by_group,
)


def spans(*parts: tuple[str, float, float]) -> list[Span]:
    return [Span(wg_id, "update_actor", start, end) for wg_id, start, end in parts]


@pytest.mark.parametrize(
    ("parts", "seconds"),
    [
        ([], 0.0),
        ([("a", 0, 5), ("a", 5, 9)], 0.0),
        ([("a", 0, 5), ("a", 2, 4)], 0.0),
        ([("a", 0, 5), ("b", 3, 9)], 2.0),
        ([("a", 0, 5), ("b", 5, 9)], 0.0),
        ([("a", 0, 9), ("b", 1, 3), ("c", 2, 4), ("b", 6, 7)], 4.0),
    ],
)
def test_overlap_is_of_different_groups(parts: list[tuple[str, float, float]], seconds: float) -> None:
    assert overlap_seconds(spans(*parts)) == pytest.approx(seconds)


def test_a_group_is_idle_when_none_of_its_calls_is_in_progress() -> None:
    calls = spans(
        ("a", 100, 105),
        ("a", 102, 104),
        ("a", 104, 106),
        ("a", 108, 109),
        ("b", 100, 110),
        ("frozen", 100, 101),
    )
    assert idle_by_group(calls, ["a", "b", "c"], 10.0) == {
        "wg/a/idle": pytest.approx(0.3),
        "wg/b/idle": 0,
        "wg/c/idle": 1,
    }


def test_seconds_are_of_a_group_and_a_phase_of_the_step() -> None:
    calls = [
        Span("a", "compute_log_prob", 0, 2),
        Span("a", "compute_log_prob", 5, 6),
        Span("a", "sync_weights", 2, 3),
    ]
    assert seconds_by_group([*calls, Span("b", "sync_weights", 2, 6)]) == {
        "wg/a/timing_s/old_log_prob": 3,
        "wg/a/timing_s/sync_weights": 1,
        "wg/b/timing_s/sync_weights": 4,
    }


def test_a_call_that_raises_is_noted_and_every_span_is_written_once(tmp_path: Path) -> None:
    timeline, path = Timeline(), tmp_path / "timeline.jsonl"
    with pytest.raises(OSError, match="full"), timeline.span("a", "save_checkpoint"):
        raise OSError("full")
    with timeline.span("b", "update_actor"):
        pass
    for step in (1, 2):
        append_spans(path, step, timeline.take())
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["step"], line["wg_id"], line["call"]) for line in lines] == [
        (1, "a", "save_checkpoint"),
        (1, "b", "update_actor"),
    ]
    assert all(line["start"] <= line["end"] for line in lines)
