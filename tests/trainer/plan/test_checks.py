"""Names of a key: what is accepted, and what is refused with the names that are."""

import math
from functools import reduce
from typing import Optional

import pytest

from verl.trainer.config import RunConfig
from verl.trainer.config.algorithm import REWARD_FIELDS
from verl.trainer.config.spec import ConfigError, keys
from verl.trainer.plan.checks import resolve
from verl.trainer.ppo.core_algos.kl import KL_ESTIMATORS


@pytest.mark.parametrize("name", [f"{name}{plus}" for name in KL_ESTIMATORS for plus in ("", "+")])
def test_the_kl_of_the_loss_may_be_straight_through(config: RunConfig, name: str) -> None:
    config.actor_rollout_ref.actor.kl_loss_coef, config.actor_rollout_ref.actor.kl_loss_type = 0.001, name
    resolve(config)


@pytest.mark.parametrize("name", ["k9+", "+", "k1++"])
def test_another_kl_of_the_loss_is_refused(config: RunConfig, name: str) -> None:
    config.actor_rollout_ref.actor.kl_loss_type = name
    with pytest.raises(
        ConfigError, match=r"actor_rollout_ref\.actor\.kl_loss_type='.*': expected one of kl, .*k3\+"
    ):
        resolve(config)


def test_the_kl_of_the_reward_has_no_gradient_to_pass_through(config: RunConfig) -> None:
    config.algorithm.kl_penalty = "k3+"
    with pytest.raises(ConfigError, match=r"algorithm\.kl_penalty='k3\+': expected one of kl"):
        resolve(config)


def test_an_empty_text_ends_no_reply(config: RunConfig) -> None:
    config.actor_rollout_ref.rollout.stop = ["</a>", ""]
    with pytest.raises(
        ConfigError, match=r"rollout\.stop=\['</a>', ''\].*: an empty string would end every reply"
    ):
        resolve(config)
    config.actor_rollout_ref.rollout.stop = []
    config.actor_rollout_ref.rollout.val_kwargs.stop = [""]
    with pytest.raises(
        ConfigError, match=r"rollout\.val_kwargs\.stop=\[''\].*: an empty string would end every reply"
    ):
        resolve(config)


def test_masks_need_a_gateway_an_engine_that_can_and_a_pass_that_measures_them(config: RunConfig) -> None:
    config.gateway.structured = "mask"
    rollout, said = config.actor_rollout_ref.rollout, r"gateway\.structured=mask has no effect; it needs "
    with pytest.raises(ConfigError, match=said + r"agent\.orchestra_type=gateway"):
        resolve(config)
    config.agent.orchestra_type = "gateway"
    for rollout.name in ("hf", "vllm"):
        with pytest.raises(
            ConfigError, match=said + r"an agent with actor_rollout_ref\.rollout\.structured_outputs=true"
        ):
            resolve(config)
    rollout.structured_outputs = True
    resolve(config)
    config.algorithm.rollout_correction.bypass_mode = True
    with pytest.raises(
        ConfigError, match=r"gateway\.structured=mask needs the pass for old log-probs.*set bypass_mode=false"
    ):
        resolve(config)
    config.gateway.structured = "masks"
    with pytest.raises(ConfigError, match=r"gateway\.structured='masks': expected one of refuse, mask"):
        resolve(config)


NUMBERS = [name for name, key in keys(RunConfig).items() if key.type in (float, Optional[float])]


@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize("key", NUMBERS)
def test_no_number_of_a_run_may_be_infinite(config: RunConfig, key: str, value: float) -> None:
    *sections, name = key.split(".")
    setattr(reduce(getattr, sections, config), name, value)
    with pytest.raises(ConfigError, match=rf"{key}={value}.*: expected"):
        resolve(config)


def test_the_error_for_an_infinite_number_names_the_bound(config: RunConfig) -> None:
    config.actor_rollout_ref.actor.optim.lr = math.inf
    with pytest.raises(ConfigError, match=r"actor\.optim\.lr=inf: expected at least 0 and finite$"):
        resolve(config)
    config.actor_rollout_ref.actor.optim.lr = -1.0
    with pytest.raises(ConfigError, match=r"actor\.optim\.lr=-1\.0: expected at least 0$"):
        resolve(config)


def test_rewards_of_gdpo_are_the_columns_of_a_batch_that_are_numbers() -> None:
    from unittest.mock import MagicMock

    from agent_system.rollout.batch import _columns

    columns = _columns([(MagicMock(), MagicMock(**{"request.dropped_context": 0}))])
    names = {"uid", "traj_uid", "task_id", "data_source", "agent_id", "policy_id", "wg_id", "anchor"}
    names |= {"design"}
    assert {*REWARD_FIELDS} == columns.keys() - names
