"""Items of `/v1/responses` that a later request names by their ids, as the Vercel AI SDK's default provider
does.
"""

from __future__ import annotations

from typing import Any

import pytest

from agent_system import Task
from agent_system.gateway import responses
from agent_system.gateway.session import Session

from .conftest import Answer, send
from .templates import tokenizer_of
from .test_served import serving

PATH = "/v1/responses"
TOOL = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
CALL = 'I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
USER = {"role": "user", "content": "2+2?"}


async def respond(session: Any, items: list[Any], agent: str = "Writer", **more: Any) -> Answer:
    """The answer to items."""
    return await send(session, {"model": agent, "input": items, "tools": [TOOL], **more}, path=PATH)


def references(answer: Answer, **fields: Any) -> list[dict[str, Any]]:
    """References to all items of an answer."""
    return [{"id": item["id"], **fields} for item in answer.body["output"]]


async def test_items_by_reference_are_those_items_and_continue_the_tokens(play: Any) -> None:
    async def team(task: Task, session: Session) -> str:
        first = await respond(session, [USER])
        assert [item["type"] for item in first.body["output"]] == ["message", "function_call"]
        result = {
            "type": "function_call_output",
            "call_id": first.body["output"][1]["call_id"],
            "output": "4",
        }
        asked = [USER, *references(first, type="item_reference"), result]
        second = await respond(session, asked, stream=False)
        third = await respond(session, [*asked, *references(second), {"role": "user", "content": "sure?"}])
        other = await respond(session, [USER, *references(second, type="item_reference"), USER], "Editor")
        assert (third.status, other.status) == (200, 200), (third.body, other.body)
        return "4"

    def replies(prompt: str, request: Any) -> str:
        return "It is 4." if "<tool_response>" in prompt or "It is" in prompt else CALL

    episode, metrics, _ = await play(team, replies, chat=tokenizer_of("qwen2.5"))
    assert episode.failure is None, episode.failure
    first, second, third, other = episode.samples
    for before, after in ((first, second), (second, third)):
        whole = before.request.prompt_ids + before.generation.token_ids
        assert after.request.prompt_ids[: len(whole)] == whole
    assert "It is 4." in other.request.prompt_text, "another agent of the episode may read what was said"
    assert not any(count for name, count in metrics.items() if name.startswith("gateway/rewritten"))


async def test_an_unknown_item_is_one_error(make_team: Any) -> None:
    from .conftest import TASK

    given: list[str] = []
    wrong = ("msg_x", "", None, 3, ["msg_x"], {"id": "x"}, "x" * (1 << 20))

    async def team(task: Task, session: Session) -> str:
        for name in (*wrong, *given):
            for reference in ({"type": "item_reference", "id": name}, {"id": name}):
                answer = await respond(session, [USER, reference])
                error = answer.body["error"]
                assert (answer.status, error["param"]) == (400, "input"), error
                assert "input[1] refers to the item" in error["message"] and len(error["message"]) < 300
        answer = await respond(session, [USER])
        given.append(answer.body["output"][0]["id"])
        for odd in (
            {},
            {"type": "item_reference"},
            {"type": None},
            {"type": "item_reference", "id": given[-1], "role": 3},
        ):
            assert (await respond(session, [odd])).status in (200, 400)
        return "4"

    collector, _ = make_team(team, chat=tokenizer_of("qwen2.5"))
    for step in (1, 2):  # the second episode names an item of the first
        (episode,) = (await collector.collect([TASK], 1, step=step)).episodes
        assert episode.failure is None, episode.failure
    assert len(set(given)) == 2


async def test_only_the_last_items_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "MOST_ITEMS", 2)
    async with serving() as (client, _, team):
        answers = [await respond(client, [USER]) for _ in range(3)]
        assert len(team.responses.items) == 2
        found = [await respond(client, [USER, *references(answer), USER]) for answer in answers]
        assert [answer.status for answer in found] == [400, 200, 200]
