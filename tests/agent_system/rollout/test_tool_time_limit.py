"""Tools that never return: they cost their time limit, and the episode goes on without them."""

import asyncio
import threading
from contextlib import suppress
from typing import Any

from agent_system import Task, boxed_answer
from agent_system.tools import ToolAgent
from agent_system.workflows.single import SINGLE, SingleOrchestra

OVER = threading.Event()


def waits() -> str:
    """Wait in a thread."""
    return str(OVER.wait())


async def refuses() -> str:
    """Go on when it is cancelled."""
    while not OVER.is_set():
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.01)
    return ""


class Solver(ToolAgent):
    prompt = "Q: {env_prompt}"
    projection = boxed_answer
    tools = (waits, refuses)
    tool_timeout_s = 0.1


async def test_a_tool_that_never_returns_costs_its_time_limit(make_collector: Any, scripted: Any) -> None:
    calls = [
        f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>' for name in ("waits", "refuses")
    ]
    replies = scripted(["".join(calls), "\\boxed{4}"])
    collector = make_collector(
        replies, orchestra=SingleOrchestra(), agents={SINGLE: Solver(SINGLE)}, max_prompt_length=8000
    )
    playing = asyncio.create_task(collector.collect([Task("t", "2+2?", "sums", "4")], 1, step=1))
    await asyncio.wait({playing}, timeout=20)
    in_time = playing.done()
    OVER.set()
    result = await playing
    (episode,) = result.episodes
    assert in_time and episode.team_reward == 1.0 and [s.valid for s in episode.samples] == [True, True]
    answers = "".join(
        f"<tool_response>\nerror: {name} gave no result within 0.1 s\n</tool_response>\n"
        for name in ("waits", "refuses")
    )
    assert answers.rstrip() in episode.samples[1].request.prompt_text
    assert [
        result.metrics[f"agent/single_agent/tools/{kind}"] for kind in ("timeouts", "errors", "malformed")
    ] == [2, 0, 0]
