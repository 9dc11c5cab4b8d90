"""The recipe of the alarms: what the team is paid for, and what the committed runs show."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from agent_system.environment import Task
from agent_system.testing import scripted_team
from recipe.alarms.measure import FAULTS, half_step
from recipe.alarms.prepare import SOUNDS, generate_split, to_row
from recipe.alarms.team import CHECKER, NAME, SPEAKER, last_word, paid_for_length, paid_for_yes
from tests.house.source import ROOT

ROW = to_row(generate_split(10, 5, 0)[0][0], 0, "train")
TASK = Task("t", ROW["prompt"][0]["content"], ground_truth=ROW["reward_model"]["ground_truth"])
WRONG = next(sound for sound in SOUNDS.values() if sound != TASK.ground_truth)


@pytest.mark.parametrize(
    ("said", "verdict", "again", "success", "right_verdict"),
    [
        (f"{TASK.ground_truth}.", "yes.", [], 1, 1),
        (f"well well {TASK.ground_truth}.", "no.", [f"{WRONG}."], 0, 0),
        (f"{WRONG}.", "no.", [f"{TASK.ground_truth}."], 1, 1),
        (f"{WRONG}.", "yes.", [], 0, 0),
        ("well well", "yes.", [], 0, 0),
    ],
)
async def test_the_answer_is_the_last_one_and_the_checker_is_paid_for_right_verdicts(
    said: str, verdict: str, again: list[str], success: int, right_verdict: int
) -> None:
    team = scripted_team(NAME, {SPEAKER: [said, *again], CHECKER: [verdict]})
    result = await team.collect([TASK], n=1, step=1)
    assert result.metrics["episode/success_rate"] == success
    assert result.metrics["agent/checker/local_reward/mean"] == right_verdict


def test_tasks_of_training_and_validation_are_apart() -> None:
    train, test = generate_split(2000, 200, 0)
    assert not {question.text for question in train} & {question.text for question in test}


@pytest.mark.parametrize(
    ("text", "action", "valid"),
    [("meow.", "meow", True), ("well meow.", "meow", True), ("well", "", False), ("meow", "", False)],
)
def test_what_the_speaker_says_is_read(text: str, action: str, valid: bool) -> None:
    assert (last_word(text).action, last_word(text).valid) == (action, valid)


def test_the_faulty_rewards_pay_for_what_they_say() -> None:
    def call(**fields: Any) -> Any:
        return SimpleNamespace(**fields)

    assert paid_for_length(None, call(text="well well meow.")) == {"length": 1.0}
    assert [paid_for_yes(None, call(action=word))["approval"] for word in ("yes", "no")] == [1.0, 0.0]


def test_half_of_the_best_is_found() -> None:
    assert half_step([0.2, 0.8, 0.9, 0.5, 0.44, 0.3]) == 9
    assert half_step([0.2, 0.8]) is None


def test_the_first_alarm_of_the_committed_runs_comes_when_the_readme_says() -> None:
    """Six steps before success has halved with the learning rate, at that step with the reward for length."""
    rows = json.loads((ROOT / "recipe" / "alarms" / "results.json").read_text())
    readme = (ROOT / "recipe" / "alarms" / "README.md").read_text(encoding="utf-8")
    assert {row["fault"] for row in rows} == set(FAULTS)
    for row in rows:
        if row["fault"] == "none":
            assert row["first"] is None
        else:
            assert row["first_step"] <= (row["half_step"] or 60)
        alarms = ", ".join(f"{number} at {step}" for number, step in row["alarms"].items()) or "none"
        half = row["half_step"] or "never"
        shares = f"{row['before']:.0%} → {row['best']:.0%} → {row['final']:.0%}"
        assert f"| `{row['fault']}` | {row['seed']} | {shares} | {alarms} | {half} |" in readme
