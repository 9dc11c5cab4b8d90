"""Validation counts tasks, and an episode that failed is no success."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from verl.trainer.ppo.validation import ValidationResult, rows_before_after, validation_result


@dataclass
class Episode:
    task_id: str
    info: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None
    team_reward: float = 1.0
    data_source: str = "d"


def result(episodes: list[Episode], n: int) -> ValidationResult:
    return validation_result(SimpleNamespace(episodes=episodes, metrics={"env/x": 2.0}), n)


def test_a_failed_episode_counts_as_zero_and_names_stay_the_same() -> None:
    """Five tasks all right; one with a timeout and three wrong answers."""
    right = [Episode(f"t{i}", {"success": 1.0}) for i in range(5) for _ in range(4)]
    wrong = [Episode("t5", {"success": 0.0}, team_reward=0.0) for _ in range(3)]
    found = result([*right, *wrong, Episode("t5", failure="timeout")], 4)
    assert found.metrics["val-core/d/acc/mean@4"] == pytest.approx(5 / 6)
    assert found.metrics["val-aux/d/team_reward/mean@4"] == pytest.approx(5 / 6)
    assert [k for k in found.metrics if "/acc/mean@" in k] == ["val-core/d/acc/mean@4"]
    assert found.metrics["val/failed_episodes"] == 1
    assert found.table["team", "accuracy avg@4"].value == pytest.approx(5 / 6)
    assert found.table["team", "accuracy pass@4"].value == pytest.approx(5 / 6)


def test_a_roles_rate_is_over_the_episodes_that_have_it() -> None:
    found = result(
        [Episode("a", {"success": 1.0, "verifier/precision": 1.0}), Episode("b", {"success": 0.0})], 1
    )
    assert found.table["verifier", "precision"].value == 1.0
    assert found.metrics["val-aux/d/verifier/precision/mean@1"] == 1.0
    assert found.metrics["val/env/x"] == 2.0


def test_an_agents_accuracy_has_avg_and_pass_as_the_teams() -> None:
    """Three tasks of two episodes; of the third, one episode failed: it says nothing of the agent."""
    solver = {"t0": (1.0, 0.0), "t1": (0.0, 0.5), "t2": (1.0,)}
    episodes = [
        Episode(t, {"success": 0.0, "solver/accuracy": v}) for t, values in solver.items() for v in values
    ]
    table = result([*episodes, Episode("t2", failure="timeout")], 2).table
    assert table["solver", "accuracy avg@2"].value == pytest.approx((0.5 + 0.25 + 1.0) / 3)
    once = table["solver", "accuracy pass@2"]
    assert (once.value, once.num_tasks) == (0.5, 2)
    assert once.low < 0.5 < once.high
    assert ("solver", "accuracy") not in table


def test_an_environment_that_knows_no_success_gets_no_accuracy() -> None:
    found = result([Episode("a", {}), Episode("b", failure="x")], 1)
    assert not any("acc" in k for k in found.metrics)
    assert found.table == {}


def test_without_a_successful_episode_no_accuracy_is_reported() -> None:
    assert result([Episode("a", failure="x")], 1).metrics == {"val/episodes": 1.0, "val/failed_episodes": 1.0}


def test_a_result_survives_a_checkpoint_and_stands_beside_the_next() -> None:
    before = result([Episode("a", {"success": 0.0})], 1)
    again = ValidationResult.from_json(before.to_json())
    assert again == before
    (row,) = rows_before_after(again, result([Episode("a", {"success": 1.0})], 1))
    assert (row["name"], row["before"].value, row["after"].value) == ("team", 0.0, 1.0)
