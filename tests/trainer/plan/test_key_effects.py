"""A common key is accepted if and only if a change of its value changes what a trained agent learns from: the
advantages of a batch, the number of steps, or the steps after which weights are sent.
"""

from __future__ import annotations

from copy import deepcopy
from functools import reduce
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from tests.plans import plan_of
from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig, RunConfig
from verl.trainer.config.spec import IneffectiveKeyError
from verl.trainer.plan.derived_values import steps_of_run
from verl.trainer.plan.effects import check_effect
from verl.trainer.plan.unused_keys import without_effect
from verl.trainer.ppo.credit.advantage import compute_advantage

AGENTS = ("Solver Agent", "Verifier Agent")
# The changed value of a key, an estimator that reads it, and one that does not.
CHANGES: dict[str, tuple[Any, str, str]] = {
    "gamma": (0.5, "gae", "grpo"),
    "lam": (0.5, "gae", "grpo"),
    "gae.level": ("turn", "gae", "grpo"),
    "norm_adv_by_std_in_grpo": (False, "grpo", "rloo"),
    "singleton": ("raw", "grpo", "gae"),
    "group_by": (["uid", "turn"], "rloo", "rae"),
    "gigpo.step_advantage_w": (0.25, "gigpo", "grpo"),
    "gigpo.mode": ("mean_std_norm", "gigpo", "grpo"),
    "gigpo.enable_similarity": (True, "gigpo", "grpo"),
    "gigpo.similarity_thresh": (0.5, "gigpo", "grpo"),
    "rae.decay": (0.5, "rae", "grpo"),
    "rae.order": ("update_first", "rae", "grpo"),
}
# Other keys that an estimator or another key asks for, as own values of an agent, or common.
BESIDE: dict[str, tuple[dict[str, Any], ...]] = {
    "gigpo.similarity_thresh": ({}, {"gigpo": {"enable_similarity": True}}),
    "gigpo.enable_similarity": ({}, {"gigpo": {"enable_similarity": False}}),
}


def set_key(config: Any, name: str, value: Any) -> None:
    """Set a key by its dotted name."""
    *sections, leaf = name.split(".")
    setattr(reduce(getattr, sections, config), leaf, value)


def batch() -> DataProto:
    """Rows of two agents: two tasks with three episodes of two turns, and one with a single call each."""
    rng = np.random.default_rng(0)
    rows = [
        (f"t{task}", f"t{task}e{episode}", agent, turn, call)
        for task, episodes, turns in ((0, 3, 2), (1, 3, 2), (2, 1, 1))
        for episode in range(episodes)
        for turn in range(1, turns + 1)
        for call, agent in enumerate(AGENTS)
    ]
    uid, episode, agent, turn, call = zip(*rows, strict=True)
    mask = torch.ones(len(rows), 3, dtype=torch.long)
    rewards = torch.from_numpy(rng.normal(1.0, 1.0, (len(rows), 3))).float()
    # two that are almost equal, and one that is similar to both
    hall = "the long hall " * 3
    kinds = [(int(name[-1]) + number) % 3 for name, number in zip(episode, turn, strict=True)]
    places = [f"{hall}{'ab'[kind]}" if kind < 2 else f"{hall}and a way out" for kind in kinds]
    columns = {
        "uid": uid, "traj_uid": episode, "agent_id": agent, "turn": turn, "call": call,
        "policy_id": agent, "wg_id": agent, "data_source": ["sums"] * len(rows), "anchor_obs": places,
        "team_reward": rewards.sum(1).tolist(), "step_reward": rewards.sum(1).tolist(),
        "step_rewards": rewards.sum(1).tolist(),
    }  # fmt: skip
    values = torch.from_numpy(rng.normal(size=(len(rows), 3))).float()
    return DataProto.from_dict(
        tensors={"response_mask": mask, "token_level_rewards": rewards, "values": values},
        non_tensors={name: np.array(list(column), dtype=object) for name, column in columns.items()},
    )


BATCH = batch()


def advantages(algorithm: AlgorithmConfig, trained: tuple[str, ...]) -> torch.Tensor:
    """Advantages of the rows of the trained agents, in a second step where there is a state (rae)."""
    rows = np.flatnonzero(np.isin(BATCH.non_tensor_batch["agent_id"], trained))
    state: dict[str, Any] = {}
    for _ in range(2):
        out = compute_advantage(
            BATCH.select_idxs(rows), algorithm.adv_estimator, algorithm.gamma, algorithm.lam,
            norm_adv_by_std_in_grpo=algorithm.norm_adv_by_std_in_grpo, config=algorithm, state=state,
        )  # fmt: skip
        if not state:
            break
    return out.batch["advantages"]


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("frozen", [False, True])
def test_a_common_key_is_accepted_if_and_only_if_it_changes_the_advantages_of_a_trained_agent(
    name: str, frozen: bool
) -> None:
    """Every pair of own estimators, with and without own values of the key, and of its conditions."""
    key = f"algorithm.{name}"
    value, *estimators = CHANGES[name]
    trained = AGENTS[:1] if frozen else AGENTS
    section, _, leaf = name.partition(".")
    default = reduce(getattr, name.split("."), AlgorithmConfig())
    own_value: dict[str, Any] = {section: {leaf: default}} if leaf else {section: default}
    beside = (*BESIDE.get(name, ({},)), own_value)
    choices = [
        {**({"adv_estimator": estimator} if estimator else {}), **more}
        for estimator in (None, *estimators)
        for more in beside
    ]
    seen = set()
    for common, solver, verifier in product(estimators, choices, [{}] if frozen else choices):
        config = RunConfig()
        config.agent.frozen = [] if not frozen else [AGENTS[1]]
        algorithm = config.algorithm
        algorithm.adv_estimator = common
        algorithm.per_agent = deepcopy(
            {agent: own for agent, own in zip(AGENTS, (solver, verifier), strict=True) if own}
        )
        before = advantages(algorithm, trained)
        set_key(algorithm, name, value)
        changes = not torch.equal(before, advantages(algorithm, trained))
        refused = key in without_effect(config, plan_of(config))
        assert refused == (not changes), (common, solver, verifier)
        if refused:
            with pytest.raises(IneffectiveKeyError):
                check_effect(config, plan_of(config))
        seen.add(changes)
    assert seen == {True, False}


@pytest.mark.parametrize("epochs", [1, 5])
@pytest.mark.parametrize("steps", [-1, 10])
def test_epochs_are_accepted_if_and_only_if_they_change_the_number_of_steps(epochs: int, steps: int) -> None:
    config = RunConfig()
    config.trainer.total_training_steps = steps
    before = steps_of_run(config.trainer, 7)
    config.trainer.total_epochs = epochs
    changes = steps_of_run(config.trainer, 7) != before
    assert ("trainer.total_epochs" in without_effect(config, plan_of(config))) == (
        epochs != 1 and not changes
    )


@pytest.mark.parametrize("specialization", ["full", "lora", ["lora", "full"]])
@pytest.mark.parametrize("trigger", [1, 3])
@pytest.mark.parametrize("per_policy", [{}, {"solver_agent": {"trigger_parameter_sync_step": 2}}])
@pytest.mark.parametrize("way", ["eager", "adaptive"])
def test_a_way_to_send_weights_is_accepted_if_and_only_if_it_changes_the_steps_that_send_them(
    specialization: Any, trigger: int, per_policy: dict[str, Any], way: str
) -> None:
    config = RunConfig()
    config.agent.specialization = specialization
    settings = config.async_training
    settings.mode, settings.trigger_parameter_sync_step, settings.per_policy = (
        "fully_async",
        trigger,
        per_policy,
    )
    settings.parameter_sync = way
    plan = plan_of(config)
    changes = any(
        pace.sends(way, step, version, ahead) != pace.sends("lazy", step, version, ahead)
        for pace in [policy.pace for policy in plan.policies.values()]
        for step, ahead in product(range(1, 9), (False, True))
        # weights of a step that sent them
        for version in range(step - step % pace.trigger - (step % pace.trigger == 0) * pace.trigger, step)
    )
    assert ("async_training.parameter_sync" in without_effect(config, plan)) == (not changes)


@pytest.mark.parametrize(
    ("key", "value"), [("max_off_policy_threshold", 9), ("max_off_policy_strategy", "drop")]
)
def test_a_bound_of_staleness_needs_samples_of_older_weights(key: str, value: Any) -> None:
    name = f"async_training.{key}"
    for staleness, trigger, timeout, own in product((0.0, 0.5), (1, 2), (0.0, 9.0), (None, 0.5)):
        config = RunConfig()
        settings = config.async_training
        settings.mode, settings.staleness_threshold = "fully_async", staleness
        settings.trigger_parameter_sync_step, settings.batch_timeout_s = trigger, timeout
        if own is not None:
            settings.per_policy = {"solver_agent": {"staleness_threshold": own}}
        setattr(settings, key, value)
        older = bool(staleness or trigger > 1 or timeout or own)
        assert (name in without_effect(config, plan_of(config))) == (not older)
