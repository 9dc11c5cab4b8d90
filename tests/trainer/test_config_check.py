"""Names of a key: what is accepted, and what is refused with the names that are."""

import pytest

from verl.trainer.config import RunConfig
from verl.trainer.config_check import ConfigError, check_config
from verl.trainer.placement import build_placement
from verl.trainer.ppo.core_algos.kl import KL_ESTIMATORS


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
