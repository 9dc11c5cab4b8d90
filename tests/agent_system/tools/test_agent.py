"""The tool calls of one reply: they run at the same time, and neither arguments nor results may be larger
than a prompt can hold.
"""

import asyncio
import threading
import time
from typing import Any

import pytest

from agent_system.tools import ToolAgent
from agent_system.tools.formats import ToolRequest

PARTIES = 2


class Busy(ToolAgent):
    tools = ("meet", "meet_in_a_thread", "large", "large_table")
    max_tool_chars = 1000

    def __init__(self) -> None:
        super().__init__("Busy")
        self.loops, self.threads = asyncio.Barrier(PARTIES), threading.Barrier(PARTIES)

    async def meet(self, name: str) -> str:
        """Wait for the other call.

        Args:
            name: returned.
        """
        await self.loops.wait()
        return name

    def meet_in_a_thread(self, name: str) -> str:
        """Wait for the other call.

        Args:
            name: returned.
        """
        self.threads.wait(10.0)
        return name

    def large(self, size: int) -> str:
        """Return a text.

        Args:
            size: its length.
        """
        return "x" * size

    def large_table(self, size: int) -> Any:
        """Return a list.

        Args:
            size: number of its texts of a million characters.
        """
        return ["x" * 10**6] * size


def answers(*requests: ToolRequest) -> tuple[list[str], Any]:
    messages, use = asyncio.run(Busy().answer(requests, 0))
    return [message["content"] for message in messages], use


@pytest.mark.parametrize("tool", ["meet", "meet_in_a_thread"])
def test_the_calls_of_a_reply_run_at_the_same_time_and_are_answered_in_order(tool: str) -> None:
    """Each call waits for the other one, so calls that ran one after the other would time out."""
    texts, use = answers(*(ToolRequest(tool, {"name": name}) for name in ("first", "second")))
    assert texts == ["first", "second"] and (use.calls, use.timeouts, use.errors) == (2, 0, 0)


def test_what_is_larger_than_any_prompt_is_cut_at_little_cost() -> None:
    begin = time.process_time()
    many = {f"a{i}": i for i in range(10**5)}
    texts, use = answers(
        ToolRequest("large", many),
        ToolRequest("large", {"size": 1} | many),
        ToolRequest("large", {"size": "9" * 10**5}),
    )
    assert (
        all(len(text) < 400 for text in texts)
        and "large has no argument 'a0'" in texts[0]
        and use.malformed == 3
    )
    texts, use = answers(ToolRequest("large", {"size": 10**8}), ToolRequest("large_table", {"size": 10}))
    assert [
        len(text) < 1100 and text.startswith(start)
        for text, start in zip(texts, ["xxx", '["xxx'], strict=True)
    ] == [True, True]
    assert f"({10**8 - 1000} more characters)" in texts[0] and use.malformed == use.errors == 0
    texts, use = answers(*[ToolRequest("large", {"size": 1})] * 10**5)
    assert len(texts) == Busy.max_calls + 1 and use.malformed == 10**5 - Busy.max_calls
    assert time.process_time() - begin < 10.0
