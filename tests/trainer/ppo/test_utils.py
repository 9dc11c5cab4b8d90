"""Roles and needs under verl's names; a call written for verl's trainer is told what to pass."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from verl.trainer.config import RunConfig
from verl.trainer.ppo.ray_trainer import (
    RayPPOTrainer,
    ResourcePoolManager,
    Role,
    WorkerType,
    need_critic,
    need_reference_policy,
)


def test_roles_have_verls_values_and_read_what_they_write() -> None:
    assert (Role.ActorRollout.value, Role.RefPolicy.value, Role.ActorRolloutRef.value) == (2, 4, 6)
    assert [str(role) for role in (Role.ActorRollout, Role.RefPolicy, Role.RewardModel, Role.Critic)] == [
        "actor_rollout",
        "ref",
        "rm",
        "critic",
    ]
    assert all(Role.from_string(str(role).upper()) is role for role in Role)
    with pytest.raises(ValueError, match=r"No Role found for string: poet; the roles are \['actor'"):
        Role.from_string("poet")
    assert WorkerType.__name__ == "type"


def test_the_configuration_says_whether_a_critic_and_a_reference_are_needed() -> None:
    config = RunConfig()
    assert not need_critic(config) and not need_reference_policy(config)
    config.algorithm.adv_estimator = "gae"
    assert need_critic(config)
    config.critic.enable = False
    assert not need_critic(config)
    config.actor_rollout_ref.actor.kl_loss_coef = 0.001
    assert need_reference_policy(config)
    config = replace(RunConfig())
    config.algorithm.kl_ctrl.kl_coef = 0.001
    assert need_reference_policy(config)


def by_keyword() -> RayPPOTrainer:
    return RayPPOTrainer(
        config=RunConfig(),
        tokenizer=None,
        role_worker_mapping={},
        resource_pool_manager=ResourcePoolManager({}, {}),
    )  # type: ignore[call-arg]


def by_position() -> RayPPOTrainer:
    return RayPPOTrainer(RunConfig(), None, {}, ResourcePoolManager({}, {}))  # type: ignore[call-arg,arg-type]


@pytest.mark.parametrize("call", [by_keyword, by_position])
def test_verls_trainer_arguments_are_one_error_that_names_ours(call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    message = str(caught.value)
    assert (
        "RayPPOTrainer(config, plan, team, collector, train_dataset, val_dataset, tracking, run_dir)"
        in message
    )
    for theirs, ours in (
        ("tokenizer", "collector"),
        ("role_worker_mapping", "TeamWorkers"),
        ("resource_pool_manager", "resolve"),
    ):
        assert f"instead of {theirs}: " in message and ours in message.split(f"instead of {theirs}: ")[1]
    assert "docs/upstream_map.md" in message
