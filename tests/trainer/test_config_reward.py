"""Reward keys that cannot be used, or contradict each other, stop the run and are named."""

from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from verl.trainer.config import RunConfig
from verl.trainer.config.spec import ConfigError, IneffectiveKeyError
from verl.trainer.plan.checks import resolve
from verl.trainer.plan.derived_values import resolve_defaults


def make(tiny_model_dir: Path, changes: dict[str, Any]) -> RunConfig:
    """A run with these keys, before it is checked."""
    config = RunConfig()
    config.actor_rollout_ref.model.path = str(tiny_model_dir)
    config.data.train_files = "tasks.jsonl"
    for key, value in changes.items():
        *sections, name = key.split(".")
        setattr(reduce(getattr, sections, config), name, value)
    resolve_defaults(config)
    return config


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"reward.alpha": -0.5}, "reward.alpha=-0.5: expected at least 0"),
        ({"reward.alpha": float("inf")}, "reward.alpha=inf: expected at least 0 and finite"),
        (
            {"reward.shaping_by": float("nan")},
            "reward.shaping_by=nan: expected a finite number",
        ),
        (
            {"reward.overlong_buffer.penalty_factor": float("inf")},
            "reward.overlong_buffer.penalty_factor=inf",
        ),
        (
            {"reward.team_scope": "calls"},
            "reward.team_scope='calls': expected one of episode, turn, call; did you mean 'call'",
        ),
        ({"reward.shaping": "hop"}, "reward.shaping='hop': expected one of default, turn_weighted"),
        (
            {"reward.shaping": "discount", "reward.shaping_by": 1.5},
            "reward.shaping_by=1.5: expected at least 0 and at most 1",
        ),
        ({"reward.propagation.mode": "treshold"}, "did you mean 'threshold'"),
        (
            {"reward.propagation.theta": 1.2},
            "reward.propagation.theta=1.2: expected at least 0 and at most 1",
        ),
        ({"reward.propagation.theta": float("nan")}, "reward.propagation.theta=nan"),
        ({"reward.propagation.theta_quantile": -0.1}, "reward.propagation.theta_quantile=-0.1"),
        ({"reward.propagation.theta_step": -0.1}, "reward.propagation.theta_step=-0.1"),
        ({"reward.propagation.gamma": 2.0}, "reward.propagation.gamma=2.0"),
        ({"reward.propagation.min_pass_rate": 7.0}, "reward.propagation.min_pass_rate=7.0"),
        (
            {"reward.propagation.local_range": [1.0, 1.0]},
            "reward.propagation.local_range=[1.0, 1.0]: expected two numbers",
        ),
        (
            {"reward.propagation.local_range": [0.0]},
            "reward.propagation.local_range=[0.0]: expected two numbers",
        ),
        (
            {"reward.propagation.mode": "uniform", "reward.team_scope": "turn"},
            "reward.team_scope=turn contradicts reward.propagation.mode",
        ),
        (
            {
                "reward.model.kind": "judge",
                "reward.model.path": "/j",
                "reward.model.combine": "replace",
                "reward.model.weight": 0.0,
            },
            "reward.model.combine=replace has no effect; it needs reward.model.weight other than 0.0",
        ),
        (
            {"reward.model.unparsable_score": 2.0},
            "reward.model.unparsable_score=2.0: expected at least 0 and at most 1",
        ),
        ({"reward.overlong_buffer.penalty_factor": -1.0}, "reward.overlong_buffer.penalty_factor=-1.0"),
        (
            {
                "reward.overlong_buffer.len": 65,
                "data.max_response_length": 64,
            },
            "reward.overlong_buffer.len=65 is more than the 64 tokens that agent",
        ),
    ],
)
def test_a_value_that_cannot_be_used_is_named(
    tiny_model_dir: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as error:
        resolve(make(tiny_model_dir, changes))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "column"),
    [
        ("actor_rollout_ref.actor.invalid_action_penalty_coef", 0.5, "invalid_penalty"),
        ("reward.overlong_buffer.len", 5, "overlong_penalty"),
        ("algorithm.kl_ctrl.kl_coef", 0.5, ""),
    ],
)
def test_a_part_of_the_reward_that_gdpo_does_not_read_is_refused(
    tiny_model_dir: Path, key: str, value: float, column: str
) -> None:
    gdpo = {"algorithm.adv_estimator": "gdpo", "env.rollout.n": 2, key: value}

    def check(*keys: str, **others: Any) -> None:
        resolve(make(tiny_model_dir, gdpo | {"algorithm.gdpo_reward_keys": list(keys)} | others))

    with pytest.raises(
        IneffectiveKeyError,
        match=rf"{key}={str(value).lower()}.* has no effect: gdpo learns from .*team_reward",
    ):
        check("team_reward", "mixed_reward")
    for read in ("reward", "step_reward", column) if column else ():
        check("team_reward", read)
    check("team_reward", **{"algorithm.filter_groups.metric": "seq_reward"})
