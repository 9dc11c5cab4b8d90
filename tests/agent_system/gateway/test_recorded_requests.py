"""What trajectories say of the requests of a program: which conversation they go on with, and why tokens were
rendered anew.
"""

import asyncio
from typing import Any

from agent_system import Task
from agent_system.gateway.session import Session
from tests.agent_system.gateway.conftest import USER, requests_of, say, send
from tests.agent_system.gateway.templates import tokenizer_of
from tests.waiting import until

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def answered(messages: list[Any], content: str, question: str) -> list[Any]:
    return [
        *messages,
        {"role": "assistant", "content": content},
        {"role": "user", "content": question},
    ]


async def test_requests_are_a_tree_of_conversations(play: Any) -> None:
    async def team(task: Task, session: Session) -> str:
        first = await say(session, "Writer", temperature=0.1)
        on = answered(USER, first.text, "Sure?")
        second = await say(session, "Writer", on)
        await say(session, "Writer", on, tools=[TOOL])
        await say(session, "Writer", answered(USER, "5", "Sure?"))
        await say(session, "Writer", answered(on, f"{second.text}, edited", "Then?"))
        return first.text

    episode, metrics, _ = await play(team, recorded=1.0, chat=tokenizer_of("qwen2.5"))
    calls = episode.to_json()["calls"]
    first, second, with_tools, invented, edited = [call["request"] for call in calls]
    assert first == {"api": "chat", "overridden": ["temperature"]}
    whole = calls[0]["prompt_tokens"] + calls[0]["response_tokens"]
    assert second == {"api": "chat", "parent": [1, 0], "shared": whole}
    assert with_tools["rewritten"] == "tools" and with_tools["parent"] == [1, 0]
    assert 0 <= with_tools["shared"] <= whole
    assert invented == {"api": "chat", "rewritten": "client"} | {
        name: invented[name] for name in ("parent", "shared") if name in invented
    }
    assert edited["rewritten"] == "client" and edited["parent"] == [1, 0]
    assert metrics["gateway/rewritten/client"] == 2


async def test_replies_of_one_request_have_numbers_and_other_routes_their_names(play: Any) -> None:
    async def team(task: Task, session: Session) -> str:
        await say(session, "Writer", n=2)
        await send(session, {"model": "Writer", "prompt": "2+2="}, path="/v1/completions")
        await send(session, {"model": "Writer", "input": "2+2?"}, path="/v1/responses")
        return "4"

    episode, _, _ = await play(team, recorded=1.0)
    requests = [call["request"] for call in episode.to_json()["calls"]]
    assert requests == [
        {"api": "chat", "choice": 0},
        {"api": "chat", "choice": 1},
        {"api": "completions"},
        {"api": "responses"},
    ]
    first, second = episode.to_json()["calls"][:2]
    assert first["began"] == second["began"] and first["ended"] == second["ended"]


async def test_the_wait_for_a_slot_is_part_of_the_call(play: Any) -> None:
    sessions: list[Session] = []

    async def slow(request: Any) -> None:
        await until(lambda: len(requests_of(sessions[0])) == 2)
        await asyncio.sleep(0.2)

    async def team(task: Task, session: Session) -> str:
        sessions.append(session)
        await asyncio.gather(say(session, "Writer"), say(session, "Editor"))
        return "4"

    episode, _, _ = await play(team, recorded=1.0, delay=slow, max_open_calls=1)
    first, second = sorted(episode.to_json()["calls"], key=lambda call: call["ended"])
    assert first.get("waited", 0.0) < second["waited"] / 2
    assert 0.15 < second["waited"] < second["ended"] - second["began"]
