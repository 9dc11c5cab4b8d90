"""Reward functions of the user in training, through the keys of the command line."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import blocks
from tests.e2e.conftest import Run, read_metrics, weights
from verl.trainer.config.spec import ConfigError, IneffectiveKeyError

PAGE = "docs/rewards.md"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The keys of the example in docs/rewards.md, and its file in the present folder."""
    [code] = [b.text for b in blocks("python") if b.page == PAGE and b.marker == "file: my_rewards.py"]
    [command] = [b.text for b in blocks("bash") if b.page == PAGE and "reward.agent_functions" in b.text]
    (tmp_path / "my_rewards.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    return dict(word.split("=", 1) for word in shlex.split(command.replace("\\\n", " ")) if "=" in word)


def calls(folder: Path) -> list[tuple[str, float, float]]:
    """Episode, team reward and reward of every call of training."""
    files = sorted((folder / "trajectories").glob("*.jsonl"))
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [
        (e["traj_uid"], e["team_reward"], c["reward"])
        for e in lines
        if e["traj_uid"].startswith("step")
        for c in e["calls"]
    ]


def test_the_example_of_the_page_trains_and_goes_on_after_a_stop_to_the_bit(
    train: Run, tmp_path: Path, example: dict[str, Any]
) -> None:
    changes = example | {
        "algorithm.adv_estimator": "reinforce_plus_plus",
        "trainer.save_freq": 1,
        "trainer.val_before_train": False,
    }
    train(changes)
    for line in read_metrics(tmp_path / "run"):
        assert line["wg/asker/actor/grad_norm"] > 0
        assert line["agent/asker/reward/mean"] == pytest.approx(
            0.5 * line["reward/brief/mean"] + line["agent/asker/local_reward/mean"]
        )
        assert line["agent/verifier_agent/reward/short/mean"] == 1.0
        assert "agent/asker/reward/short/mean" not in line
    again = tmp_path / "again"
    train(changes | {"trainer.default_local_dir": again, "trainer.total_training_steps": 1})
    train(changes | {"trainer.default_local_dir": again})
    assert weights(again, 2) == weights(tmp_path / "run", 2)
    assert calls(again) == calls(tmp_path / "run")
    assert {team for _, team, _ in calls(again)} == {0.5}, "the world's 0 and half of the term"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"reward.shaping": "binary"},
            ConfigError,
            "reward.granularity=token places rewards on tokens as they are",
        ),
        (
            {"reward.propagation.mode": "uniform"},
            ConfigError,
            "reward.propagation.mode=uniform change the reward of a whole reply",
        ),
        (
            {"reward.agent_functions": "{ask: my_rewards.py}"},
            ConfigError,
            "expected file_or_module:function for the agents 'ask'",
        ),
        ({"reward.agent_functions": "{ask*+*: a:b}"}, ConfigError, "is not a regular expression"),
        ({"rollout.sampling": "tree"}, ConfigError, "score finished episodes"),
    ],
)
def test_keys_that_cannot_be_combined_are_refused(
    compose: Callable[..., Any],
    example: dict[str, Any],
    changes: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    from verl.trainer.plan.checks import resolve
    from verl.trainer.plan.derived_values import resolve_defaults

    with pytest.raises(error, match=message):
        config = compose(example | changes)
        resolve_defaults(config)
        resolve(config)


@pytest.mark.parametrize("key", ["reward.granularity=token", "reward.timeout_s=5"])
def test_a_key_without_a_function_has_no_effect(compose: Callable[..., Any], key: str) -> None:
    from verl.trainer.plan.checks import resolve
    from verl.trainer.plan.derived_values import resolve_defaults

    config = compose(dict([key.split("=")]))
    resolve_defaults(config)
    with pytest.raises(
        IneffectiveKeyError, match=r"has no effect; it needs reward.custom_reward_function.path"
    ):
        resolve(config)
