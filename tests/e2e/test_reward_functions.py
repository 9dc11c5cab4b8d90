"""Reward functions of the user in training, through the keys of the command line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Run, read_metrics, weights
from verl.trainer.config.spec import ConfigError, IneffectiveKeyError

REWARDS = '''
from agent_system import Reward


def compute_score(data_source, solution_str, ground_truth, extra_info, scale=1.0):
    return {"score": scale * (len(solution_str) % 3), "truth": float(ground_truth)}


async def format_reward(episode, call):
    return [(at, at + 1, 0.25) for at, character in enumerate(call.text) if character.isalnum()] or 0.0


def style(episode, call):
    return {"long": float(len(call.text) > 10), "even": len(call.text) % 2}
'''


@pytest.fixture
def rewards(tmp_path: Path) -> Path:
    path = tmp_path / "my_rewards.py"
    path.write_text(REWARDS)
    return path


def keys(path: Path, **changes: Any) -> dict[str, Any]:
    return {
        "reward.custom_reward_function.path": path,
        "reward.custom_reward_function.reward_kwargs": "{scale: 0.5}",
        "reward.agent_functions": f"{{ask.*|solver: {path}:format_reward, verifier_agent: {path}:style}}",
        "reward.granularity": "token",
        **changes,
    }


def calls(folder: Path) -> list[tuple[str, float, float]]:
    lines = [json.loads(line) for file in sorted((folder / "trajectories").glob("*.jsonl")) for line in file.read_text().splitlines()]
    return [(line["traj_uid"], line["team_reward"], call["reward"]) for line in lines for call in line["calls"]]


@pytest.mark.parametrize("estimator", ["gae", "reinforce_plus_plus"])
def test_a_run_with_rewards_of_its_own_learns_from_tokens_and_goes_on_after_a_stop_to_the_bit(
    train: Run, tmp_path: Path, rewards: Path, estimator: str
) -> None:
    changes = keys(rewards, **{"algorithm.adv_estimator": estimator, "trainer.save_freq": 1})
    train(changes)
    steps = [line for line in read_metrics(tmp_path / "run") if line["step"] > 0]
    for line in steps:
        assert line["wg/asker/actor/grad_norm"] > 0
        assert {"reward/truth/mean", "reward/long/std", "agent/verifier_agent/reward/even/mean"} <= set(line)
    assert any("val/reward/truth/mean" in line or "val/episode/success_rate" in line for line in read_metrics(tmp_path / "run"))
    assert {team for _, team, _ in calls(tmp_path / "run")} <= {0.0, 0.5, 1.0}
    again = tmp_path / "again"
    train(changes | {"trainer.default_local_dir": again, "trainer.total_training_steps": 1})
    train(changes | {"trainer.default_local_dir": again})
    assert weights(again, 2) == weights(tmp_path / "run", 2)
    assert calls(again) == calls(tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"reward.shaping": "binary"}, ConfigError, "reward.granularity=token places rewards on tokens as they are"),
        ({"reward.propagation.mode": "uniform"}, ConfigError, "reward.propagation.mode=uniform change the reward of a whole reply"),
        ({"reward.agent_functions": "{ask: my_rewards.py}"}, ConfigError, "expected file_or_module:function for the agents 'ask'"),
        ({"reward.agent_functions": "{ask*+*: a:b}"}, ConfigError, "is not a regular expression"),
        ({"rollout.sampling": "tree"}, ConfigError, "score finished episodes"),
    ],
)
def test_keys_that_cannot_be_combined_are_refused(
    compose: Callable[..., Any], rewards: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    from verl.trainer.config.cross_checks import check_settings
    from verl.trainer.derived import resolve_defaults

    with pytest.raises(error, match=message):
        config = compose(keys(rewards, **changes))
        resolve_defaults(config)
        check_settings(config)


@pytest.mark.parametrize("key", ["reward.granularity=token", "reward.timeout_s=5", "reward.custom_reward_function.name=f"])
def test_a_key_without_a_function_has_no_effect(compose: Callable[..., Any], key: str) -> None:
    from verl.trainer.config.cross_checks import check_settings
    from verl.trainer.derived import resolve_defaults

    config = compose(dict([key.split("=")]))
    resolve_defaults(config)
    with pytest.raises(IneffectiveKeyError, match="has no effect; it needs reward.custom_reward_function.path"):
        check_settings(config)
