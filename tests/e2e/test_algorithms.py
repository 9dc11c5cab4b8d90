"""Every advantage estimator and every policy loss trains the tiny math team, and a user's own beside them.

Names come from the registries, so that a new one joins by itself; `NEEDS` says what some of them cannot do
without.
"""

import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from yaml import safe_load

from agent_system.launch import train
from tests.e2e.conftest import Run, read_metrics
from verl.trainer.plan.presets import PRESETS
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY


def built_in(registry: Mapping[str, Callable[..., Any]]) -> list[str]:
    """One name of every function of the project."""
    names = {
        fn: name for name, fn in sorted(registry.items(), reverse=True) if fn.__module__.startswith("verl.")
    }
    return sorted(names.values())


LOSS = "actor_rollout_ref.actor.policy_loss"
NEEDS: Mapping[str, Mapping[str, Any]] = {
    "bypass_mode": {"algorithm.rollout_correction.bypass_mode": True},
    "dro": {f"{LOSS}.dro_beta": 0.1},
    "gdpo": {"algorithm.gdpo_reward_keys": "[team_reward,local_reward]"},
    "m_grpo": {"algorithm.m_grpo.main_agent": "Solver Agent"},
}
# The Solver and Verifier of the project; rewards are drawn, for a model of random weights earns nothing that
# differs.
TEAM: Mapping[str, Any] = {
    "agent.orchestra_type": "math",
    "agent.agent_ids": "[Solver Agent,Verifier Agent]",
    "agent.orchestra.math.prompt_style": "short",
    "agent.plugins": "[lottery_package]",
    "env.env_name": "lottery",
    "env.rollout.n": 2,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 1,
    "data.val_files": "[]",
    "data.max_prompt_length": 160,
    "data.max_response_length": 4,
    "trainer.total_training_steps": 3,
    "trainer.save_hf_model": False,
}
PLUGIN = """
import itertools
import zlib

from agent_system.environment import Observation, Outcome
from agent_system.registry import EnvRegistry
from agent_system.workflows.math import MathEnv
from verl.trainer.ppo.core_algos import agg_loss, register_adv_est, register_policy_loss


def drawn(numbers=itertools.count()):
    return zlib.crc32(str(next(numbers)).encode()) % 100 / 100


@EnvRegistry.register("lottery")
class Lottery(MathEnv):
    def reset(self, task):
        return Observation(task.prompt)

    def act(self, agent_id, action):
        return Outcome(local=drawn())

    def score(self, agent_id, action):
        return Outcome()

    def fork(self):
        return Lottery(self.config, seed=self.seed)

    def step(self, action):
        return Outcome(team=drawn(), done=True, info={"success": 0.0})


@register_adv_est("mine")
def my_estimator(token_level_rewards, response_mask, index, agent_index, config=None, **kwargs):
    assert config.adv_estimator == "mine" and len(index) == len(agent_index) == len(response_mask)
    advantages = (token_level_rewards.sum(-1, keepdim=True) - 0.5) * response_mask
    return advantages, advantages


@register_policy_loss("mine")
def my_loss(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config=None, rollout_is_weights=None):
    loss = agg_loss(-log_prob * advantages, response_mask, loss_agg_mode, **config.global_batch_info)
    return loss, {"actor/mine": 7.0}
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lottery")
    (folder / "lottery_package.py").write_text(PLUGIN)
    return folder


@pytest.fixture
def steps(
    train: Run, tmp_path: Path, plugin: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[dict[str, Any]]]:
    """Train the team with changes; returns the metrics of each step."""
    monkeypatch.syspath_prepend(str(plugin))

    def go(changes: Mapping[str, Any]) -> list[dict[str, Any]]:
        train(dict(TEAM) | dict(changes))
        return [line for line in read_metrics(tmp_path / "run") if line["step"] > 0]

    return go


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("estimator", name) for name in built_in(ADV_ESTIMATOR_REGISTRY)),
        *(("loss", name) for name in built_in(POLICY_LOSS_REGISTRY)),
    ],
    ids=lambda value: value,
)
def test_the_math_team_trains_three_steps(
    steps: Callable[..., list[dict[str, Any]]], kind: str, name: str
) -> None:
    key = "algorithm.adv_estimator" if kind == "estimator" else f"{LOSS}.loss_mode"
    lines = steps({key: name} | dict(NEEDS.get(name, {})))
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert [metric for metric, value in line.items() if not math.isfinite(value)] == []
        assert line["wg/solver_agent/actor/grad_norm"] > 0
        assert line["wg/verifier_agent/actor/grad_norm"] > 0
        assert line["actor/skipped_steps"] == 0


def test_a_users_estimator_and_loss_train_by_their_names(steps: Callable[..., list[dict[str, Any]]]) -> None:
    lines = steps({"algorithm.adv_estimator": "mine", f"{LOSS}.loss_mode": "mine"})
    assert all(line["wg/solver_agent/actor/mine"] == pytest.approx(7.0) for line in lines)
    assert all(line["wg/solver_agent/actor/grad_norm"] > 0 for line in lines)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_trains_from_the_command_line_and_is_in_the_config_of_the_run(
    overrides: Callable[..., list[str]],
    plugin: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.syspath_prepend(str(plugin))
    given = {"trainer.total_training_steps": 1, "algorithm.preset": name, "algorithm.adv_estimator": "grpo"}
    monkeypatch.setattr(sys, "argv", ["main_ppo", *overrides(dict(TEAM) | given)])
    train.cli()
    (line,) = [line for line in read_metrics(tmp_path / "run") if line["step"] == 1]
    assert line["wg/solver_agent/actor/grad_norm"] > 0
    written = OmegaConf.load(tmp_path / "run" / "config.yaml")
    assert {key: OmegaConf.select(written, key) for key in PRESETS[name]} == {
        key: safe_load(text) for key, text in PRESETS[name].items()
    }


@pytest.mark.parametrize("key", ["algorithm.adv_estimator", f"{LOSS}.loss_mode"])
def test_an_unknown_name_lists_a_users_own(steps: Callable[..., list[dict[str, Any]]], key: str) -> None:
    with pytest.raises(train.USER_ERRORS, match=r"'mien'.*\bmine\b"):
        steps({key: "mien"})
