"""Tests of the environment and of the team, with scripted replies: no model, no GPU."""

import asyncio

from agent_system import Task
from agent_system.testing import check_env, scripted_team

from .env import MyFlowEnv
from .team import EDITOR, WRITER

TASK = Task("t0", "Describe rain in exactly 4 characters.", ground_truth="4")


def test_the_environment_conforms() -> None:
    check_env(
        lambda seed: MyFlowEnv(seed=seed),
        TASK,
        [(WRITER, "wet"), (EDITOR, "drop"), "drop"],
        team_range=(0, 1),
        local_range=(0, 0.5),
    )


def test_the_last_text_is_the_teams_action_and_the_draft_gives_the_writer_a_local_reward() -> None:
    team = scripted_team("my_flow", {WRITER: ["wet"], EDITOR: ["drop"]})
    (episode,) = asyncio.run(team.collect([TASK], n=1, step=1)).episodes
    assert episode.info["success"] == 1.0 and episode.team_reward == 1.0
    assert [(sample.agent_id, sample.rewards.local_reward) for sample in episode.samples] == [
        (WRITER, 0.375),
        (EDITOR, 0.0),
    ]
    assert "Writer: wet" in episode.samples[1].request.prompt_text
