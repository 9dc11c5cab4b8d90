"""What a program sets for its replies is never dropped in silence: the run's holds, and it is told, counted, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from agent_system import Task
from agent_system.gateway.session import Session
from agent_system.gateway.wire import SAMPLING

from .conftest import TASK, USER, say, send
from .test_served import serving

ROUTES: dict[str, dict[str, Any]] = {"/v1/chat/completions": {"messages": USER}, "/v1/responses": {"input": "2+2?"}}
CHANGED: dict[str, Any] = {
    "temperature": 0.5, "top_p": 0.5, "top_k": 3, "min_p": 0.5, "typical_p": 0.5, "presence_penalty": 1, "frequency_penalty": 1,
    "repetition_penalty": 2, "length_penalty": 2, "logit_bias": {"1": 1}, "min_tokens": 3, "ignore_eos": True, "stop_token_ids": [1],
    "use_beam_search": True, "thinking_token_budget": 3, "chat_template": "x", "chat_template_kwargs": {"x": 2}, "documents": [{}],
    "add_generation_prompt": False, "continue_final_message": True, "truncate_prompt_tokens": 3,
}  # fmt: skip
MASKING = (
    "guided_json", "guided_choice", "guided_regex", "guided_grammar", "structured_outputs", "structural_tag", "regex", "ebnf", "grammar",
    "json_schema", "allowed_token_ids", "bad_words", "logits_processors",
)  # fmt: skip


@pytest.mark.parametrize("path", ROUTES)
async def test_every_field_is_counted_and_named_once_or_refused(play: Any, path: str, caplog: pytest.LogCaptureFixture) -> None:
    plain = {"model": "Writer", **ROUTES[path]}

    async def team(task: Task, session: Session) -> str:
        for more in [{name: value} for name, value in CHANGED.items()] * 2 + [dict(SAMPLING), {"chat_template_kwargs": {"x": 1}}]:
            answer = await send(session, plain | more, path=path)
            assert answer.status == 200, answer.body
        for name in MASKING:
            answer = await send(session, plain | {name: ["a"]}, path=path)
            assert (answer.status, answer.body["error"]["param"]) == (400, name), answer.body
            assert "use response_format" in answer.body["error"]["message"]
        return "4"

    episode, metrics, _ = await play(team, template_kwargs={"x": 1})
    assert (episode.failure, metrics["gateway/overridden"]) == (None, 2 * len(CHANGED))
    told = [record.message.split(";")[0] for record in caplog.records if "client_sampling" in record.message]
    assert told == [f"a request sets {name}" for name in CHANGED]

    async def refused(task: Task, session: Session) -> str:
        for name, value in CHANGED.items():
            answer = await send(session, plain | {name: value}, path=path)
            assert (answer.status, answer.body["error"]["param"]) == (400, name), answer.body
        return "4"

    episode, _, engine = await play(refused, client_sampling="refuse")
    assert (episode.failure, engine.requests) == (None, [])


async def test_a_response_ends_at_a_stop_and_is_one_reply(play: Any) -> None:
    async def team(task: Task, session: Session) -> str:
        body = {"model": "Writer", "input": "2+2?", "n": 1, "stop": "END"}
        answer = await send(session, body, path="/v1/responses")
        several = await send(session, body | {"n": 2}, path="/v1/responses")
        assert (several.status, several.body["error"]["param"]) == (400, "n")
        return str(answer.body["output"][0]["content"][0]["text"])

    episode, _, engine = await play(team, lambda prompt, request: "4END5")
    assert (episode.failure, episode.answer, [request.sampling.stop for request in engine.requests]) == (None, "4", [("END",)])


@pytest.mark.parametrize(("validate", "masked"), [(True, 1), (False, 0)])
async def test_a_form_is_honoured_where_nothing_is_trained(make_team: Any, validate: bool, masked: int) -> None:
    async def team(task: Task, session: Session) -> str:
        body = {"messages": USER, "response_format": {"type": "json_object"}}
        answers = [await send(session, body | {"model": name}) for name in ("Writer", "Editor")]
        assert [answer.status for answer in answers] == [200 if validate else 400, 400]
        said = "structured_outputs=true" if validate else "gateway.structured=mask"
        assert said in answers[1].body["error"]["message"]
        return "4"

    collector, engine = make_team(team, able=["Writer"])
    (episode,) = (await collector.collect([TASK], 1, step=1, validate=validate)).episodes
    assert (episode.failure, len([request for request in engine.requests if request.sampling.structure])) == (None, masked)


async def test_a_served_agent_refuses_what_it_does_not_honour() -> None:
    async with serving(able=["Writer"], template_kwargs={"x": 1}) as (client, _, _):
        for name in [*MASKING, *(name for name in CHANGED if name not in ("temperature", "top_p", "top_k"))]:
            answer = await send(client, {"model": "Writer", "messages": USER, name: CHANGED.get(name, "a")})
            assert (answer.status, answer.body["error"]["param"]) == (400, name), answer.body
        await say(client, "Writer", chat_template_kwargs={"x": 1}, ignore_eos=False)
