from collections.abc import Callable
from textwrap import dedent

import pytest

from agent_system import Task
from agent_system.rollout import CollectResult
from agent_system.testing import make_tokenizer, scripted_team
from agent_system.workflows.sokoban import EXECUTOR, TOOL

UP = """\
######
#-.--#
#-$--#
#-@--#
#----#
######"""

TWO = """\
#######
#--.--#
#--$--#
#-----#
#--$.-#
#--@--#
#######"""

UNSOLVABLE = """\
######
#$---#
#--.-#
#-@--#
#----#
######"""

TOO_WIDE = dedent(UP).replace("#-.--#", "#-.--##")

Play = Callable[..., CollectResult]


@pytest.fixture(scope="session")
def tokenizer():
    return make_tokenizer()


@pytest.fixture
def play(tokenizer) -> Play:
    """Play one episode with scripted replies: play(tool=..., executor=..., room=..., turns=..., options=...,
    env=...).
    """

    async def run(*, tool, executor, room=UP, turns=4, options=None, env=None) -> CollectResult:
        limits = {
            "tokenizer": tokenizer,
            "max_tokens": 200,
            "max_prompt_length": 2000,
            "max_failure_rate": 0.0,
            "max_steps": turns,
        }
        team = scripted_team(
            "sokoban", {TOOL: tool, EXECUTOR: executor}, options=options, env_params=env, **limits
        )
        return await team.collect([Task("t", room, "demo")], 1, step=0)

    return run
