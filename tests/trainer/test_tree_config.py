"""Keys of tree sampling that cannot be used, or contradict others, stop the run before anything is loaded."""

from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from agent_system import AgentSystemError, BaseEnv, EnvRegistry
from agent_system.rollout.tree_call import check_tree_env
from verl.trainer.config import RunConfig
from verl.trainer.config.spec import ConfigError, IneffectiveKeyError
from verl.trainer.plan.checks import resolve
from verl.trainer.plan.command_line import compose_config
from verl.trainer.plan.derived_values import resolve_defaults
from verl.trainer.plan.presets import apply_preset
from verl.trainer.plan.run import candidates_of


def check(tiny_model_dir: Path, changes: dict[str, Any], preset: str | None = "at_grpo") -> RunConfig:
    config = RunConfig()
    config.actor_rollout_ref.model.path = str(tiny_model_dir)
    config.data.train_files = "tasks.jsonl"
    if preset is not None:
        apply_preset(config, preset)
    for key, value in changes.items():
        *sections, name = key.split(".")
        setattr(reduce(getattr, sections, config), name, value)
    resolve_defaults(config)
    resolve(config)
    return config


COMMITTED = {"rollout.tree.returns": "committed"}
BY_AGENT = {"algorithm.group_by": ["uid", "agent_id"]}


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm.adv_estimator": "gigpo"} | BY_AGENT,
        {
            "algorithm.adv_estimator": "m_grpo",
            "algorithm.m_grpo.main_agent": "Solver Agent",
            "algorithm.group_by": ["uid"],
        },
        {
            "algorithm.adv_estimator": "gae",
            "algorithm.gae.level": "turn",
            "algorithm.group_by": ["uid", "agent_id"],
        },
        {
            "algorithm.adv_estimator": "remax",
            "algorithm.group_by": ["uid", "agent_id"],
            "algorithm.norm_adv_by_std_in_grpo": False,
        },
        {"algorithm.adv_estimator": "reinforce_plus_plus", "algorithm.group_by": ["uid", "agent_id"]},
        {"algorithm.adv_estimator": "rae", "algorithm.group_by": ["uid", "agent_id"]},
        {"reward.team_scope": "episode", "reward.propagation.mode": "threshold"} | BY_AGENT,
        {
            "algorithm.statistics_over": "trajectories",
            "algorithm.group_by": ["uid"],
            "reward.team_scope": "turn",
        },
    ],
)
def test_committed_replies_are_an_episode_for_every_estimator(
    tiny_model_dir: Path, changes: dict[str, Any]
) -> None:
    check(tiny_model_dir, COMMITTED | changes)


@pytest.mark.parametrize("estimator", ["gae", "remax", "reinforce_plus_plus", "rae"])
def test_baselines_of_single_replies_fit_single_steps(tiny_model_dir: Path, estimator: str) -> None:
    over = {"algorithm.statistics_over": "samples"} if estimator == "rae" else {}
    check(
        tiny_model_dir,
        {"algorithm.adv_estimator": estimator, "algorithm.group_by": ["uid", "agent_id"]} | over,
    )


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "opo", "gpg", "reinforce_plus_plus_baseline"])
def test_the_preset_fits_every_estimator_with_a_group_baseline(tiny_model_dir: Path, estimator: str) -> None:
    check(tiny_model_dir, {"algorithm.adv_estimator": estimator})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"rollout.sampling": "trees"},
            "rollout.sampling='trees': expected one of parallel, tree; did you mean 'tree'",
        ),
        (
            {"rollout.tree.select": "best"},
            "rollout.tree.select='best': expected one of greedy, first, random, softmax",
        ),
        ({"rollout.tree.k": 1}, "rollout.tree.k=1: expected at least 2"),
        ({"rollout.tree.temperature": 0.0}, "rollout.tree.temperature=0.0: expected above 0"),
        ({"rollout.tree.epsilon": 1.5}, "rollout.tree.epsilon=1.5: expected at least 0 and at most 1"),
        ({"reward.team_scope": "episode"}, "set reward.team_scope=call and reward.propagation.mode=none"),
        (
            {"algorithm.adv_estimator": "gae", "algorithm.gae.level": "turn"},
            "adv_estimator=gae with algorithm.gae.level=turn reads values",
        ),
        (
            {"algorithm.adv_estimator": "gigpo"},
            "algorithm.adv_estimator=gigpo follows the rewards of an episode's steps",
        ),
        (
            {"algorithm.adv_estimator": "m_grpo", "algorithm.m_grpo.main_agent": "Solver Agent"},
            "adv_estimator=m_grpo counts the calls of an episode; set rollout.tree.returns=committed",
        ),
        (
            {"reward.team_scope": "episode", "reward.propagation.mode": "threshold"},
            "or rollout.tree.returns=committed",
        ),
        (
            {"rollout.tree.returns": "episode"},
            "rollout.tree.returns='episode': expected one of step, committed",
        ),
        (
            COMMITTED,
            "rollout.tree.returns=committed, so every advantage of the estimator is 0; set "
            "rollout.tree.returns=step",
        ),
        (
            COMMITTED | BY_AGENT | {"algorithm.filter_groups.metric": "seq_reward"},
            "filter_groups.metric=seq_reward drops rows of groups",
        ),
        (
            COMMITTED | BY_AGENT | {"rollout.tree.candidate_weight": -1.0},
            "rollout.tree.candidate_weight=-1.0: expected at least 0",
        ),
        (
            {"rollout.tree.candidate_weight": 0.5},
            "rollout.tree.candidate_weight=0.5 has no effect; it needs rollout.tree.returns=committed",
        ),
        (
            {"algorithm.adv_estimator": "rae", "algorithm.group_by": ["uid", "agent_id"]},
            "averaged first with algorithm.statistics_over=auto",
        ),
        (
            {"algorithm.statistics_over": "trajectories"},
            "averaged first with algorithm.statistics_over=trajectories",
        ),
        ({"algorithm.group_by": ["uid"]}, "groups ['uid']"),
        ({"rollout.sampling": "parallel"}, "holds one sample per group with rollout.sampling=parallel"),
        (
            {"rollout.tree.k_per_agent": {"solver_agent": 0}},
            "rollout.tree.k_per_agent.solver_agent=0: expected at least 1",
        ),
        (
            {"rollout.tree.k_per_agent": {"solver_agent": 1}},
            "holds one sample per group with rollout.tree.k_per_agent.solver_agent=1",
        ),
        (
            {"rollout.tree.k_per_agent": {"Solver Agent": 8, "solver_agent": 8}},
            "names agent 'Solver Agent' twice",
        ),
        (
            {"rollout.tree.k_per_agent": {"solver": 8}},
            "rollout.tree.k_per_agent: no agent 'solver'; did you mean 'solver_agent'?",
        ),
    ],
)
def test_contradicting_keys_are_refused(tiny_model_dir: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        check(tiny_model_dir, changes)
    assert words in str(error.value)


def test_groups_that_do_not_know_the_turn_can_be_compared_with(tiny_model_dir: Path) -> None:
    check(tiny_model_dir, {"algorithm.group_by": ["uid", "agent_id"]})


def test_agents_have_candidates_of_their_own_under_their_names(tiny_model_dir: Path) -> None:
    own = {"rollout.tree.k_per_agent": {"solver_agent": 8, "Verifier Agent": 1}}
    config = check(tiny_model_dir, own | {"agent.frozen": ["Verifier Agent"], "agent.specialization": "full"})
    assert candidates_of(config.agent, config.rollout) == {"Solver Agent": 8, "Verifier Agent": 1}
    check(
        tiny_model_dir,
        {"rollout.tree.k_per_agent": {"solver_agent": 1}, "algorithm.group_by": ["uid", "agent_id"]},
    )


@pytest.mark.parametrize(
    "given", ["rollout.tree.k_per_agent={Solver Agent: 8}", "rollout.tree.k_per_agent.solver_agent=8"]
)
def test_the_command_line_gives_an_agent_candidates_of_its_own(given: str) -> None:
    config = compose_config([given])
    assert candidates_of(config.agent, config.rollout) == {"Solver Agent": 8}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rollout.tree.k", 8),
        ("rollout.tree.k_per_agent", {"Solver Agent": 8}),
        ("rollout.tree.select", "first"),
        ("rollout.tree.epsilon", 0.5),
        ("rollout.tree.returns", "committed"),
    ],
)
def test_keys_of_the_tree_without_a_tree_are_refused(tiny_model_dir: Path, key: str, value: Any) -> None:
    with pytest.raises(IneffectiveKeyError, match=r"rollout\.sampling=tree"):
        check(tiny_model_dir, {key: value}, preset=None)


def test_a_temperature_without_softmax_is_refused(tiny_model_dir: Path) -> None:
    with pytest.raises(IneffectiveKeyError, match=r"rollout\.tree\.select=softmax"):
        check(tiny_model_dir, {"rollout.tree.temperature": 0.5})


def test_epsilon_is_refused_with_random_selection(tiny_model_dir: Path) -> None:
    with pytest.raises(
        IneffectiveKeyError, match=r"rollout\.tree\.epsilon=0\.5 has no effect; it needs .*other than random"
    ):
        check(tiny_model_dir, {"rollout.tree.epsilon": 0.5, "rollout.tree.select": "random"})


def test_a_world_without_fork_is_refused_with_its_name() -> None:
    config = RunConfig()
    config.agent.agent_ids = ["Solver Agent", "Verifier Agent"]
    apply_preset(config, "at_grpo")
    check_tree_env(EnvRegistry.get(config.env.env_name), config.reward)

    @EnvRegistry.register("without_fork")
    class WithoutFork(BaseEnv):
        def reset(self, task: Any) -> Any: ...

        def step(self, action: Any) -> Any: ...

    config.env.env_name = "without_fork"
    try:
        with pytest.raises(AgentSystemError, match=r"WithoutFork has no fork\(\)"):
            check_tree_env(EnvRegistry.get(config.env.env_name), config.reward)
    finally:
        EnvRegistry.remove("without_fork")
