"""The table agent -> policy -> worker group, and what it refuses."""

from pathlib import Path

import pytest

from verl.trainer.config import ActorRolloutRefConfig, AgentConfig
from verl.trainer.placement import PlacementError, build_placement, slug

TEAM = ["Solver Agent", "Verifier Agent", "Critic"]


def team(**changes) -> AgentConfig:
    return AgentConfig(**({"agent_ids": TEAM, "model_ids": ["org/a", "org/a", "org/b"]} | changes))


def groups(config: AgentConfig) -> list[tuple[str, tuple[str, ...], str]]:
    return [(g.wg_id, g.agent_ids, g.model_path) for g in build_placement(config, ActorRolloutRefConfig()).groups]


def test_sharing_puts_agents_with_the_same_model_on_one_policy() -> None:
    assert groups(team(model_sharing=True)) == [("a", ("Solver Agent", "Verifier Agent"), "org/a"), ("critic", ("Critic",), "org/b")]


def test_without_sharing_every_agent_has_its_own_worker_group() -> None:
    assert [g[0] for g in groups(team())] == ["solver_agent", "verifier_agent", "critic"]


def test_names_that_look_alike_get_different_worker_groups() -> None:
    config = AgentConfig(agent_ids=["A", "B", "C", "D"], model_ids=["one/x", "two/x", "one/x", "two/x"], model_sharing=True)
    assert [g[0] for g in groups(config)] == ["x", "x_2"]
    assert slug(" Solver  Agent! ") == "solver_agent"


def test_each_agent_gets_its_own_overrides_and_the_base_is_not_touched() -> None:
    base = ActorRolloutRefConfig()
    overrides = {"actor": {"optim": {"lr": [1e-3, 2e-3, 1]}}, "rollout": {"response_length": [8, None, 16]}}
    placement = build_placement(team(agent_specific_parameters=overrides), base)
    assert [a.config.actor.optim.lr for a in placement.agents] == [1e-3, 2e-3, 1.0]
    assert [a.config.rollout.response_length for a in placement.agents] == [8, None, 16]
    assert base.actor.optim.lr == 1e-6


def test_agents_on_one_policy_may_differ_in_a_request_but_not_in_training() -> None:
    build_placement(
        team(model_sharing=True, agent_specific_parameters={"rollout": {"response_length": [8, 9, 10]}}), ActorRolloutRefConfig()
    )
    with pytest.raises(PlacementError, match=r"actor\.optim"):
        build_placement(
            team(model_sharing=True, agent_specific_parameters={"actor": {"optim": {"lr": [1.0, 2.0, 3.0]}}}), ActorRolloutRefConfig()
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"agent_ids": []}, "empty"),
        ({"agent_ids": ["A", "A", "B"]}, "twice"),
        ({"agent_ids": ["Solver A", "B", "Solver-A"]}, "'Solver A' and 'Solver-A' both become 'solver_a'"),
        ({"agent_ids": ["求解", "验证", "B"]}, "agent '求解' becomes an empty name"),
        ({"model_ids": ["org/a"]}, "1 entries.*3"),
        ({"model_ids": []}, "no model"),
        ({"model_ids": ["/no/such/model", "org/a", "org/a"]}, "no/such/model"),
        ({"agent_specific_parameters": {"actor": {"optim": {"lr": [1.0]}}}}, "list of 3"),
        ({"agent_specific_parameters": {"actor": {"optim": {"lr": 1.0}}}}, "list of 3"),
        ({"agent_specific_parameters": {"actor": {"optim": {"learning_rate": [1, 2, 3]}}}}, "no such key"),
        ({"agent_specific_parameters": {"actor": {"optim": [1, 2, 3]}}}, "is a section"),
        ({"agent_specific_parameters": {"actor": {"grad_clip": ["a", "b", "c"]}}}, "expected float"),
    ],
)
def test_teams_that_cannot_be_placed_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        build_placement(team(**changes), ActorRolloutRefConfig())


def test_a_local_model_is_found(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert build_placement(AgentConfig(agent_ids=["A"], model_ids=[str(tmp_path)]), ActorRolloutRefConfig()).groups[0].model_path == str(
        tmp_path
    )
