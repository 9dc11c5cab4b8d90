"""When an alarm is raised and cleared, which are shown, and what the console says."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.report.alarms.made_runs import AGENTS, IDS, MadeRun, math_episode
from verl.report.alarms import AlarmWatch, raised_alarms
from verl.report.alarms.base import AlarmBoard, Reading, Rule, worst_first
from verl.report.alarms.history import History


def board(ratios: Iterable[float], *, first_step: int = 1, at_once: bool = False) -> AlarmBoard:
    """A board of one rule whose ratio at each step is given, after all steps."""
    made = AlarmBoard([rule(1, "now", ratios, first_step=first_step, at_once=at_once)], History({}))
    return made


def rule(
    number: int, level: str, ratios: Iterable[float], *, first_step: int = 1, at_once: bool = False
) -> Rule:
    values = list(ratios)

    def judge(history: History) -> Iterator[Reading]:
        yield Reading(values[len(history.steps) - 1], f"text {number}", at_once=at_once)

    return Rule(number, f"rule {number}", level, judge, first_step)


def play(made: AlarmBoard, steps: int) -> list[list[str]]:
    lines = []
    for step in range(1, steps + 1):
        made.history.add(step, {})
        made.judge()
        lines.append(made.lines())
    return lines


@pytest.mark.parametrize(
    ("ratios", "raised"),
    [
        ([1, 1, 1, 1], 4),
        ([1, 0, 1, 1, 1], 5),
        ([1, 1, 1, 0, 0.9, 1, 1, 1], None),
        ([1, 1, 1, 0.99, 0.99, 1, 1, 1, 1], 9),
    ],
)
def test_an_alarm_is_raised_when_its_rule_holds_in_4_of_5_steps(
    ratios: list[float], raised: int | None
) -> None:
    made = board(ratios)
    play(made, len(ratios))
    assert made.alarms[0].raised == raised


def test_it_is_cleared_after_5_steps_at_08_of_the_threshold() -> None:
    ratios = [1.0] * 4 + [0.9] * 10 + [0.8] * 4 + [0.81] + [0.8] * 5
    made = board(ratios)
    lines = play(made, len(ratios))
    assert [place + 1 for place, said in enumerate(lines) if said] == [4, 24]
    assert lines[3] == ["alarm: rule 1 (now). text 1 See docs/alarms.md"]
    assert lines[23] == ["alarm cleared: rule 1 (raised at step 4)"]
    assert made.alarms[0].cleared == 24 and not made.alarms[0].active


def test_a_cleared_alarm_can_be_raised_again() -> None:
    ratios = [1.0] * 4 + [0.0] * 5 + [1.0] * 4
    made = board(ratios)
    lines = play(made, len(ratios))
    assert [place + 1 for place, said in enumerate(lines) if said] == [4, 9, 13]
    assert (made.alarms[0].raised, made.alarms[0].cleared) == (13, None)


def test_one_step_is_enough_where_the_rule_says_so() -> None:
    made = board([0, 1, 0], at_once=True)
    play(made, 2)
    assert made.alarms[0].raised == 2


def test_a_rule_is_not_asked_before_its_first_step() -> None:
    made = board([1.0] * 14, first_step=10)
    play(made, 14)
    assert made.alarms[0].raised == 13


def test_at_most_five_are_shown_the_most_urgent_first_and_hints_only_without_them() -> None:
    levels = ("hint", "stuck", "stuck", "worse", "worse", "untrusted", "now")
    rules = [rule(number, level, [1.0] * 4) for number, level in enumerate(levels)]
    made = AlarmBoard(rules, History({}))
    lines = play(made, 4)
    assert [alarm.rule.number for alarm in worst_first(made.alarms)] == [6, 5, 3, 4, 1]
    assert len(lines[-1]) == 5
    calm = AlarmBoard(rules[:3], History({}))
    play(calm, 4)
    assert [alarm.rule.number for alarm in worst_first(calm.alarms)] == [1, 2, 0]


BAD = {f"wg/{name}/actor/skipped_steps": lambda step: float(step > 20) for name in IDS}


def test_no_alarm_before_step_10_but_those_of_health() -> None:
    run = MadeRun(
        steps=9,
        series=BAD
        | {f"agent/{name}/truncated_replies": lambda step: 1.0 for name in IDS}
        | {"episode/failed": lambda step: 30.0},
    ).build()
    assert [alarm["number"] for alarm in raised_alarms(run)] == [2]


@pytest.mark.parametrize("from_step", [0, 30])
def test_only_the_last_attempt_counts(from_step: int) -> None:
    """The first attempt had updates that were left out; the resumed one has none."""
    run = MadeRun(
        series={f"wg/{name}/actor/skipped_steps": lambda step: float(step <= 30) for name in IDS},
        state={"state": "done", "attempt": {"started": 1.0, "from_step": from_step}},
    ).build()
    alarms = raised_alarms(run)
    assert [alarm["number"] for alarm in alarms] == ([] if from_step else [12])
    assert all(alarm["cleared"] == 35 for alarm in alarms)


def test_the_start_of_a_resumed_run_is_its_own() -> None:
    """The length of 40 after step 30 is its start, and no drift."""
    series = {f"agent/{name}/response_length/mean": lambda step: 15.0 if step <= 30 else 40.0 for name in IDS}
    state = {"state": "done", "attempt": {"started": 1.0, "from_step": 30}}
    changes: dict[str, Any] = {"series": series, "success": lambda step: 0.5, "same": lambda step: 0.4}
    assert 10 in {alarm["number"] for alarm in raised_alarms(MadeRun(**changes).build())}
    resumed = raised_alarms(MadeRun(**changes, state=state).build())
    assert 10 not in {alarm["number"] for alarm in resumed}


def test_step_by_step_gives_the_alarms_of_the_whole_run() -> None:
    made = MadeRun(series=BAD, success=lambda step: 0.9 if step < 40 else 0.3)
    run = made.build()
    watch = AlarmWatch(run["config"], AGENTS, 60)
    number = 0
    lines = []
    for place, step in enumerate(run["steps"][1:], 1):
        for episode in made.played(step):
            watch.facts.add(step, "train", number, episode)
            number += 1
        metrics = {name: values[place] for name, values in run["metrics"].items()}
        lines += watch.add_step(step, metrics, run["credit"][str(step)])
        assert not watch.facts.steps, "facts of a step that was judged are dropped"
    live = [alarm.to_dict() for alarm in worst_first(watch.alarms)]
    assert live == [alarm for alarm in raised_alarms(run) if alarm["cleared"] is None]
    assert {6, 12} <= {alarm["number"] for alarm in live}
    raised = [line for line in lines if line.startswith("alarm: ")]
    assert any(line.startswith("alarm: cliff (it gets worse). Mean success") for line in raised)


def test_an_episode_of_the_console_is_read_as_one_of_a_file() -> None:
    import random

    episode = math_episode(random.Random(1), 1, 1, 1, True, True, 0.5)
    watch = AlarmWatch({})
    watch.facts.add(1, "train", 0, episode)
    facts = watch.facts.take("train", 1)
    assert facts is not None and facts.agents["Solver Agent"].calls == 1
