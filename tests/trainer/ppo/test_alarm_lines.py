"""Alarms in the console of a run."""

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.report.alarms.made_runs import AGENTS, IDS, MadeRun
from verl.report.alarms import AlarmWatch
from verl.trainer.config import RunConfig
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.alarm_lines import OF_STEP, AlarmLines, dotted

PLAN = cast(
    RunPlan,
    SimpleNamespace(
        agents=[
            SimpleNamespace(agent_id=agent["agent"], policy_id=agent["policy"], frozen=False)
            for agent in AGENTS
        ]
    ),
)
SKIPPED = {f"wg/{name}/actor/skipped_steps": lambda step: float(20 < step <= 40) for name in IDS}


def play(lines: AlarmLines, made: MadeRun) -> list[list[dict[str, Any]]]:
    """Log the steps of a made run as the trainer does; returns the episodes that were written."""
    run = made.build()
    written = []
    for place, step in enumerate(run["steps"][1:], 1):
        written.append(list(lines.note(made.played(step), f"train_{step:06d}")))
        metrics = {name: values[place] for name, values in run["metrics"].items()}
        lines.judge(step, metrics | {OF_STEP: float(step)})
        lines.judge(step, {"val-core/x/acc/mean@1": 0.5})
    return written


def texts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "verl.trainer.ppo.alarm_lines"]


def test_a_line_when_an_alarm_is_raised_and_one_when_it_is_cleared(caplog: pytest.LogCaptureFixture) -> None:
    made = MadeRun(series=SKIPPED)
    written = play(AlarmLines(dict(dotted(RunConfig())), PLAN, 60), made)
    said = texts(caplog)
    assert len(said) == 2
    assert said[0].startswith(
        "step 24: alarm: learning rate is spent (it does not learn). 1 updates of policy"
    )
    assert "Try a lower actor_rollout_ref.actor.optim.lr" in said[0]
    assert said[1] == "step 45: alarm cleared: learning rate is spent (raised at step 24)"
    assert written[3] == made.played(4), "what is written is what was read"


def test_a_healthy_run_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    play(AlarmLines(dict(dotted(RunConfig())), PLAN, 60), MadeRun())
    assert texts(caplog) == []


def test_an_error_of_a_rule_is_logged_once_and_ends_the_alarms_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any, **named: Any) -> list[str]:
        raise ZeroDivisionError("a rule")

    monkeypatch.setattr(AlarmWatch, "add_step", broken)
    written = play(AlarmLines(dict(dotted(RunConfig())), PLAN, 60), MadeRun(steps=3))
    assert [len(episodes) for episodes in written] == [64, 64, 64]
    assert texts(caplog) == ["there are no alarms for the rest of the run, because of an error in a rule"]
    assert caplog.records[0].levelno == logging.WARNING and caplog.records[0].exc_info


def test_a_run_without_a_plan_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    lines = AlarmLines(dict(dotted(RunConfig())), cast(RunPlan, None), 60)
    lines.judge(1, {OF_STEP: 1.0})
    assert len(texts(caplog)) == 1


def test_keys_of_the_configuration_are_dotted() -> None:
    keys = dict(dotted(RunConfig()))
    assert keys["rollout.max_failure_rate"] == 0.1
    assert keys["actor_rollout_ref.actor.optim.lr"] > 0
    assert keys["reward.agent_functions"] == {}
