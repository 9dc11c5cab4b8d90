"""Who speaks with which policy when roles are swapped, where that is written, and mappings that make no
sense.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.plans import plan_of
from verl.trainer.config import RunConfig
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.agents import AgentPlan
from verl.trainer.plan.role_policies import output_dir
from verl.trainer.plan.run import RunPlan

TEAM = ["Tool Agent", "Executor Agent", "Critic"]
SWAP = {"Tool Agent": "executor_agent", "Executor Agent": "tool_agent"}
OWN_RANGE = {"rollout": {"val_kwargs": {"temperature": [0.5, 0.6, 0.7]}, "response_length": [8, 9, 10]}}


def team(roles: dict[str, Any], **changes: Any) -> tuple[RunConfig, RunPlan]:
    """A config in which `roles` are swapped and its table; `changes` are keys of `agent` and of `trainer`."""
    config = RunConfig()
    config.agent.agent_ids, config.agent.model_ids = TEAM, ["org/a", "org/a", "org/b"]
    config.agent.role_policies = roles
    config.trainer.val_only = True
    for key, value in changes.items():
        setattr(config.agent if hasattr(config.agent, key) else config.trainer, key, value)
    return config, plan_of(config)


def rows_of(config: RunConfig, plan: RunPlan) -> dict[str, AgentPlan]:
    assert list(plan.speakers) == [row.agent_id for row in plan.agents]
    return dict(plan.speakers)


def folder_of(config: RunConfig, plan: RunPlan, run_dir: Path, checkpoint: Path | None) -> Path:
    return output_dir(config.agent, config.trainer, plan.agents, plan.speakers, run_dir, checkpoint)


def policies(roles: dict[str, Any], **changes: Any) -> list[str]:
    rows = rows_of(*team(roles, **changes))
    assert list(rows) == TEAM
    return [row.policy_id for row in rows.values()]


def test_an_agent_that_is_not_named_keeps_its_policy() -> None:
    assert policies({}, val_only=False) == ["tool_agent", "executor_agent", "critic"]
    assert policies(SWAP) == ["executor_agent", "tool_agent", "critic"]
    assert policies({"Tool Agent": "critic"}) == ["critic", "executor_agent", "critic"]


def test_agents_may_be_named_by_their_slug() -> None:
    assert policies({"tool_agent": "executor_agent", "executor_agent": "tool_agent"}) == policies(SWAP)


def test_agents_of_a_shared_policy_can_take_another_one() -> None:
    assert policies({"Executor Agent": "critic"}, specialization="prompt") == ["a", "critic", "critic"]
    assert policies({"Critic": "a"}, specialization="prompt") == ["a", "a", "a"]


def test_model_sampling_and_lengths_come_with_the_policy_and_the_table_stays() -> None:
    config, plan = team({"Tool Agent": "critic"}, agent_specific_parameters=OWN_RANGE)
    before = plan.signature()
    row = rows_of(config, plan)["Tool Agent"]
    assert (row.wg_id, row.config.model.path) == ("critic", "org/b")
    assert (row.config.rollout.val_kwargs.temperature, row.config.rollout.response_length) == (0.7, 10)
    assert plan.signature() == before


@pytest.mark.parametrize(
    ("roles", "changes", "words"),
    [
        (
            SWAP,
            {"val_only": False},
            [
                "{Tool Agent: executor_agent, Executor Agent: tool_agent}",
                "trainer.val_only=true",
                "in training",
            ],
        ),
        (
            {"Critic": "a"},
            {"model_ids": ["org/a"] * 3, "specialization": "prompt"},
            ["have one policy, 'a'", "agent.specialization=full"],
        ),
        (
            {"Critc": "tool_agent"},
            {},
            [
                "no agent 'Critc'; did you mean 'Critic'?",
                "agents are ['Tool Agent', 'Executor Agent', 'Critic']",
            ],
        ),
        (
            {"Critic": "tool_agnt"},
            {},
            [
                "no policy 'tool_agnt'; did you mean 'tool_agent'?",
                "['tool_agent', 'executor_agent', 'critic']",
            ],
        ),
        ({"X": "Y", "Critic": "Z"}, {}, ["no agent 'X'; no policy 'Y'; no policy 'Z'; agents are"]),
        ({"Critic": ["tool_agent"]}, {}, ["no policy ['tool_agent']"]),
        ({"Critic": "tool_agent", "critic": "critic"}, {}, ["names agent 'Critic' twice"]),
        ({"Critic": "critic"}, {}, ["{Critic: critic}", "swaps nothing"]),
        (
            {"Critic": "a"},
            {"specialization": "prompt", "agent_specific_parameters": OWN_RANGE},
            [
                "'Tool Agent' and 'Executor Agent' of policy 'a'",
                "rollout.response_length",
                "rollout.val_kwargs",
            ],
        ),
    ],
)
def test_an_invalid_mapping_is_refused(
    roles: dict[str, Any], changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        rows_of(*team(roles, **changes))
    assert [word for word in words if word not in str(refused.value)] == [], str(refused.value)


def test_adapters_can_be_swapped_too(tmp_path: Path) -> None:
    changes = {"specialization": "lora", "model_ids": ["org/a"] * 3}
    rows = rows_of(*team(SWAP, **changes))
    assert [(row.policy_id, row.wg_id, row.adapter) for row in rows.values()] == [
        ("executor_agent", "a_lora", "executor_agent"), ("tool_agent", "a_lora", "tool_agent"),
        ("critic", "a_lora", "critic"),
    ]  # fmt: skip
    own = {"agent_specific_parameters": {"model": {"lora_rank": [2, 4, 8]}}}
    with pytest.raises(ConfigError, match="swaps nothing with"):
        folder_of(*team(SWAP, resume_mode="disable", **changes, **own), tmp_path, None)


def test_a_difference_that_an_evaluation_does_not_read_is_no_obstacle() -> None:
    training = {"rollout": {"top_p": [0.8, 0.9, 1.0]}}
    assert policies({"Critic": "a"}, specialization="prompt", agent_specific_parameters=training) == [
        "a",
        "a",
        "a",
    ]


def test_swapped_roles_write_in_a_folder_of_their_own_that_names_the_checkpoint(tmp_path: Path) -> None:
    config, plan = team(SWAP)
    checkpoint = tmp_path / "checkpoints" / "global_step_3"
    folder = folder_of(config, plan, tmp_path, checkpoint)
    assert folder == tmp_path / "swapped" / "tool_agent-executor_agent+executor_agent-tool_agent"
    assert config.trainer.resume_mode == str(checkpoint)
    turned = dict(reversed(SWAP.items())) | {"Critic": "critic"}
    assert folder_of(*team(turned), tmp_path, checkpoint) == folder
    config, plan = team({})
    assert folder_of(config, plan, tmp_path, checkpoint) == tmp_path
    assert config.trainer.resume_mode == "auto"


def test_the_folders_of_a_large_team_have_names_of_limited_length(tmp_path: Path) -> None:
    names = [f"Agent number {i} of the team" for i in range(20)]
    folders = set()
    for shift in (1, 2):
        ids = [f"agent_number_{(i + shift) % 20}_of_the_team" for i in range(20)]
        large = team(dict(zip(names, ids, strict=True)), agent_ids=names, model_ids=["org/a"] * 20)
        folders.add(folder_of(*large, tmp_path, tmp_path).name)
        changed_last = team(
            dict(zip(names[:-1], ids[:-1], strict=True)), agent_ids=names, model_ids=["org/a"] * 20
        )
        folders.add(folder_of(*changed_last, tmp_path, tmp_path).name)
    assert len(folders) == 4
    assert all(len(name.encode()) <= 255 for name in folders)


def test_without_a_checkpoint_only_different_models_or_sampling_can_be_swapped(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"swaps nothing with trainer\.resume_mode=disable.*'org/a'.*agent\.model_ids"
    ):
        folder_of(*team(SWAP, resume_mode="disable"), tmp_path, None)
    config, plan = team({"Critic": "tool_agent"}, resume_mode="disable")
    assert folder_of(config, plan, tmp_path, None).parent == tmp_path / "swapped"
    assert config.trainer.resume_mode == "disable"
    folder_of(*team(SWAP, agent_specific_parameters=OWN_RANGE), tmp_path, None)
