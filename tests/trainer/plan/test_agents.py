"""Which settings of `algorithm` an agent may have for itself, and what is found wrong with them before
anything starts.
"""

import numpy as np
import pytest

from verl.trainer.config import AlgorithmConfig, RunConfig
from verl.trainer.config.algorithm import MGRPOConfig
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.agents import agent_settings, split_by_settings
from verl.trainer.plan.checks import resolve

TEAM = ["Solver Agent", "Verifier Agent"]


def test_an_agent_is_found_by_name_or_slug_and_keeps_the_rest_of_the_runs_settings() -> None:
    for name in ("Solver Agent", "solver_agent"):
        config = AlgorithmConfig(
            gamma=0.5,
            per_agent={name: {"adv_estimator": "rloo", "lam": 0, "gigpo": {"mode": "mean_std_norm"}}},
        )
        solver, verifier = (agent_settings(config, agent) for agent in TEAM)
        assert (solver.adv_estimator, solver.gamma, solver.lam, solver.gigpo.mode) == (
            "rloo",
            0.5,
            0.0,
            "mean_std_norm",
        )
        assert isinstance(solver.lam, float)
        assert (verifier.adv_estimator, verifier.lam, verifier.gigpo.mode) == ("grpo", 1.0, "mean_norm")
        assert config.gigpo.mode == "mean_norm", "the run's own settings are left alone"


def test_agents_with_equal_settings_stay_in_one_part() -> None:
    config = AlgorithmConfig(
        per_agent={"a": {"adv_estimator": "rloo"}, "b": {"gamma": 1.0}, "c": {"adv_estimator": "rloo"}}
    )
    parts = split_by_settings(config, np.array(["b", "a", "c", "d", "a"], dtype=object))
    assert [(settings.adv_estimator, rows.tolist()) for settings, rows in parts] == [
        ("grpo", [0, 3]),
        ("rloo", [1, 2, 4]),
    ]


@pytest.mark.parametrize(
    ("per_agent", "message"),
    [
        ({"solver_agnt": {}}, "algorithm.per_agent.solver_agnt: no such agent; did you mean 'solver_agent'"),
        (
            {"solver_agent": {"adv_estimatr": "rloo"}},
            "per_agent.solver_agent.adv_estimatr: .* did you mean 'adv_estimator'",
        ),
        ({"solver_agent": {"kl_penalty": "k1"}}, "kl_penalty: no such key"),
        (
            {"solver_agent": {"adv_estimator": "rlo"}},
            "solver_agent.adv_estimator='rlo': expected one of .*; did you mean 'rloo'",
        ),
        ({"solver_agent": {"gamma": "high"}}, "gamma=high: expected float, at least 0 and at most 1"),
        ({"solver_agent": {"gamma": 1.5}}, "solver_agent.gamma=1.5: expected at least 0 and at most 1"),
        ({"solver_agent": {"norm_adv_by_std_in_grpo": 1}}, "norm_adv_by_std_in_grpo=1: expected bool"),
        ({"solver_agent": {"group_by": "uid"}}, "group_by=uid: expected list"),
        ({"solver_agent": {"gigpo": {"modes": 1}}}, "solver_agent.gigpo.modes"),
        ({"solver_agent": {"gigpo": 1}}, "solver_agent.gigpo=1: expected keys such as"),
        ({"solver_agent": "rloo"}, r"algorithm.per_agent.solver_agent=rloo: expected dict"),
        ({"solver_agent": {"lam": 0.5}, "Solver Agent": {"lam": 0.5}}, "'Solver Agent' twice"),
        (
            {"solver_agent": {"call_weighting": "call"}},
            "call_weighting='call': expected one of sample, trajectory",
        ),
        (
            {"solver_agent": {"adv_estimator": "gae", "statistics_over": "trajectories"}},
            "solver_agent.statistics_over=trajectories: estimator 'gae' cannot average trajectories first; "
            "use auto or samples",
        ),
        (
            {"solver_agent": {"adv_estimator": "m_grpo", "call_weighting": "trajectory"}},
            "call_weighting=trajectory has no effect: m_grpo weighs calls by "
            "algorithm.per_agent.solver_agent.m_grpo.sub_calls",
        ),
        (
            {"solver_agent": {"adv_estimator": "grpo_passk", "call_weighting": "trajectory"}},
            "call_weighting=trajectory: grpo_passk compares the two best calls",
        ),
        ({"solver_agent": {"adv_estimator": "m_grpo"}}, "m_grpo.main_agent=None: expected one of"),
    ],
)
def test_what_cannot_take_effect_is_named(config: RunConfig, per_agent: dict, message: str) -> None:
    config.algorithm = AlgorithmConfig(per_agent=per_agent)
    with pytest.raises(ConfigError, match=message):
        resolve(config)


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize(
    ("run", "own", "differing"),
    [
        ({"adv_estimator": "gae"}, {"lam": 0.5}, "lam, while gae"),
        (
            {"adv_estimator": "reinforce_plus_plus", "gamma": 0.9},
            {"gamma": 0.5},
            "gamma, while reinforce_plus_plus",
        ),
        ({"adv_estimator": "gpg"}, {"group_by": ["uid", "turn"]}, "group_by, while gpg"),
        ({"adv_estimator": "rloo"}, {"group_by": ["uid", "turn"]}, ""),
        ({"adv_estimator": "gae"}, {"adv_estimator": "grpo"}, ""),
        (
            {"adv_estimator": "gdpo", "gdpo_reward_keys": ["team_reward"]},
            {"gdpo_reward_keys": ["local_reward"]},
            "",
        ),
    ],
)
def test_agents_of_a_policy_have_one_whitening(
    config: RunConfig, sharing: bool, run: dict, own: dict, differing: str
) -> None:
    config.algorithm = AlgorithmConfig(**run, per_agent={"verifier_agent": own})
    config.agent.specialization = "prompt" if sharing else "full"
    config.env.rollout.n = 2
    if differing and sharing:
        with pytest.raises(
            ConfigError,
            match=f"agents 'Solver Agent' and 'Verifier Agent' share policy .* but differ in {differing}",
        ):
            resolve(config)
    else:
        resolve(config)


def test_the_runs_own_settings_are_looked_at_as_well(config: RunConfig) -> None:
    config.algorithm = AlgorithmConfig(statistics_over="rows")
    with pytest.raises(ConfigError, match=r"algorithm\.statistics_over='rows'"):
        resolve(config)
    config.algorithm = AlgorithmConfig(
        adv_estimator="m_grpo", m_grpo=MGRPOConfig(main_agent=TEAM[0], sub_calls=0)
    )
    with pytest.raises(ConfigError, match=r"algorithm\.m_grpo\.sub_calls=0"):
        resolve(config)
