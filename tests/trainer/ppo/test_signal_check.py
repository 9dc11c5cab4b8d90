"""Runs that can learn nothing are refused or warned of, once."""

from __future__ import annotations

import logging
from functools import reduce
from typing import Any

import pytest

from tests.plans import plan_of
from verl.trainer.config import RunConfig
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.group_checks import check_signal, warn_of_warmup

GAE_TURN = {"algorithm.adv_estimator": "gae", "algorithm.gae.level": "turn"}
ONE = {"env.rollout.n": 1, "data.val_files": "tasks.jsonl"}


def warnings(config: RunConfig, caplog: pytest.LogCaptureFixture, changes: dict[str, Any]) -> list[str]:
    """What a run with these keys is warned of."""
    for key, value in changes.items():
        *sections, name = key.split(".")
        setattr(reduce(getattr, sections, config), name, value)
    caplog.set_level(logging.WARNING)
    check_signal(config, plan_of(config))
    return caplog.messages


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (ONE, ["env.rollout.n=1", "adv_estimator=grpo", "Solver Agent, Verifier Agent"]),
        (ONE | {"algorithm.adv_estimator": "rloo", "algorithm.group_by": ["uid"]}, ["adv_estimator=rloo"]),
        (
            ONE
            | {
                "algorithm.adv_estimator": "rae",
                "algorithm.per_agent": {"solver_agent": {"adv_estimator": "opo"}},
            },
            ["=opo"],
        ),
        ({"actor_rollout_ref.actor.optim.lr": 0.0}, ["actor.optim.lr=0", "Solver Agent, Verifier Agent"]),
        (
            {"agent.agent_specific_parameters": {"actor": {"optim": {"lr": [0, 1e-6]}}}},
            ["the policies of Solver Agent do not change"],
        ),
        ({"algorithm.adv_estimator": "gae", "critic.optim.lr": 0.0}, ["critic.optim.lr=0", "do not change"]),
        (
            GAE_TURN,
            ["gae.level=turn adds up", "Solver Agent, Verifier Agent", "set reward.team_scope=turn or call"],
        ),
        (
            {"data.val_max_samples": 5, "actor_rollout_ref.rollout.val_kwargs.temperature": 0.0},
            [
                "data.val_max_samples, actor_rollout_ref.rollout.val_kwargs.temperature: no effect without "
                "data.val_files"
            ],
        ),
    ],
)
def test_what_keeps_a_policy_as_it_is_is_one_warning(
    config: RunConfig, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], words: list[str]
) -> None:
    (line,) = warnings(config, caplog, changes)
    assert [word for word in words if word not in line] == [], line


@pytest.mark.parametrize(
    "changes",
    [
        {},
        ONE | {"algorithm.adv_estimator": "reinforce_plus_plus"},
        ONE | {"algorithm.adv_estimator": "gae"},
        ONE | {"algorithm.singleton": "raw"},
        ONE | {"algorithm.group_by": ["policy_id"]},
        ONE | {"rollout.sampling": "tree", "algorithm.group_by": ["traj_uid", "agent_id", "turn", "call"]},
        ONE | {"trainer.val_only": True, "actor_rollout_ref.actor.optim.lr": 0.0},
        {"data.val_files": ["a"], "data.val_max_samples": 5},
        {"critic.optim.lr": 0.0},
        GAE_TURN | {"reward.team_scope": "turn"},
    ],
    ids=str,
)
def test_a_run_that_learns_is_not_warned_of(
    config: RunConfig, caplog: pytest.LogCaptureFixture, changes: dict[str, Any]
) -> None:
    assert warnings(config, caplog, changes) == []


@pytest.mark.parametrize("fields", [["traj_uid"], ["traj_uid", "agent_id"]])
def test_groups_of_one_trajectory_are_refused(
    config: RunConfig, caplog: pytest.LogCaptureFixture, fields: list[str]
) -> None:
    changes = {"algorithm.group_by": fields, "algorithm.statistics_over": "trajectories"}
    with pytest.raises(ConfigError, match=r"holds one trajectory per group, .*statistics_over=trajectories"):
        warnings(config, caplog, changes)
    assert warnings(config, caplog, changes | {"algorithm.statistics_over": "samples"}) == []


@pytest.mark.parametrize(("warmup", "said"), [(4, 0), (5, 1), (6, 1)])
def test_a_warm_up_as_long_as_the_run_is_warned_of(
    config: RunConfig, caplog: pytest.LogCaptureFixture, warmup: int, said: int
) -> None:
    config.trainer.critic_warmup = warmup
    warn_of_warmup(config.trainer, 5)
    assert len(caplog.messages) == said
    assert not said or f"trainer.critic_warmup={warmup}: the run has 5 steps" in caplog.text
