from collections.abc import Callable
from textwrap import dedent

import pytest

from agent_system import Task
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.collector import Collector, CollectResult
from agent_system.rollout.settings import CollectorSettings
from agent_system.testing import ScriptedEngine, make_tokenizer
from agent_system.workflows.sokoban import EXECUTOR, TOOL
from verl.protocol.generate import SamplingParams

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
    """Play one episode with scripted replies: play(tool=..., executor=..., room=..., turns=..., options=..., env=...)."""

    async def run(*, tool, executor, room=UP, turns=4, options=None, env=None) -> CollectResult:
        sampling = SamplingParams(max_tokens=200)

        def binding(agent: str, replies: object) -> AgentBinding:
            engine = ScriptedEngine(tokenizer, replies)  # type: ignore[arg-type]
            return AgentBinding(agent, "policy", "wg", engine, tokenizer, sampling, sampling, 2000)

        collector = Collector.from_names(
            orchestra_type="sokoban",
            env_name="sokoban",
            bindings={TOOL: binding(TOOL, tool), EXECUTOR: binding(EXECUTOR, executor)},
            settings=CollectorSettings(max_failure_rate=0.0, max_steps=turns),
            orchestra_options=options,
            env_params=env,
        )
        return await collector.collect([Task("t", room, "demo")], 1, step=0)

    return run
