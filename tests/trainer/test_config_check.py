"""Names of a key: what is accepted, and what is refused with the names that are."""

import math
from functools import reduce

import pytest

from verl.trainer.config import RunConfig
from verl.trainer.config.spec import describe
from verl.trainer.config_check import REWARD_FIELDS, ConfigError, check_config
from verl.trainer.placement import build_placement
from verl.trainer.ppo.core_algos.kl import KL_ESTIMATORS
from verl.trainer.ppo.correction_check import check_rollout_correction


def check(config: RunConfig) -> None:
    check_config(config, build_placement(config.agent, config.actor_rollout_ref))


@pytest.mark.parametrize("name", [f"{name}{plus}" for name in KL_ESTIMATORS for plus in ("", "+")])
def test_the_kl_of_the_loss_may_be_straight_through(config: RunConfig, name: str) -> None:
    config.actor_rollout_ref.actor.kl_loss_type = name
    check(config)


@pytest.mark.parametrize("name", ["k9+", "+", "k1++"])
def test_another_kl_of_the_loss_is_refused(config: RunConfig, name: str) -> None:
    config.actor_rollout_ref.actor.kl_loss_type = name
    with pytest.raises(ConfigError, match=r"actor_rollout_ref\.actor\.kl_loss_type='.*': expected one of kl, .*k3\+"):
        check(config)


def test_the_kl_of_the_reward_has_no_gradient_to_pass_through(config: RunConfig) -> None:
    config.algorithm.kl_penalty = "k3+"
    with pytest.raises(ConfigError, match=r"algorithm\.kl_penalty='k3\+': expected one of kl"):
        check(config)


def test_an_empty_text_ends_no_reply(config: RunConfig) -> None:
    config.actor_rollout_ref.rollout.stop = ["</a>", ""]
    with pytest.raises(ConfigError, match=r"rollout\.stop=\['</a>', ''\].*: an empty text would end every reply"):
        check_config(config, build_placement(config.agent, config.actor_rollout_ref))
    config.actor_rollout_ref.rollout.stop = []
    config.actor_rollout_ref.rollout.val_kwargs.stop = [""]
    with pytest.raises(ConfigError, match=r"rollout\.val_kwargs\.stop=\[''\].*: an empty text would end every reply"):
        check_config(config, build_placement(config.agent, config.actor_rollout_ref))


OF_THE_SANDBOX = ("sandbox.limits.cpu_s", "sandbox.limits.wall_s")  # looked at where one is started
NUMBERS = [key for key, hint, *_ in describe(RunConfig) if hint in ("float", "typing.Optional[float]") and key not in OF_THE_SANDBOX]


@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize("key", NUMBERS)
def test_no_number_of_a_run_may_be_infinite(config: RunConfig, key: str, value: float) -> None:
    *sections, name = key.split(".")
    setattr(reduce(getattr, sections, config), name, value)
    with pytest.raises(ConfigError, match=rf"{key}={value}.*: expected"):
        check(config)
        check_rollout_correction(config, build_placement(config.agent, config.actor_rollout_ref))


def test_an_infinite_number_is_told_what_is_wrong_with_it(config: RunConfig) -> None:
    config.actor_rollout_ref.actor.optim.lr = math.inf
    with pytest.raises(ConfigError, match=r"actor\.optim\.lr=inf: expected at least 0 and finite$"):
        check(config)
    config.actor_rollout_ref.actor.optim.lr = -1.0
    with pytest.raises(ConfigError, match=r"actor\.optim\.lr=-1\.0: expected at least 0$"):
        check(config)


def test_rewards_of_gdpo_are_the_columns_of_a_batch_that_are_numbers() -> None:
    from unittest.mock import MagicMock

    from agent_system.rollout.batch import _columns

    columns = _columns([(MagicMock(), MagicMock(dropped_context=0))])
    names = {"uid", "traj_uid", "task_id", "data_source", "agent_id", "policy_id", "wg_id", "anchor"}
    assert {*REWARD_FIELDS} == columns.keys() - names
