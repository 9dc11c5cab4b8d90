"""What a program sets for its replies is never dropped in silence: the run's holds, and it is told, counted,
or refused.
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from agent_system import Task
from agent_system.gateway.chat_request import read_chat_request
from agent_system.gateway.errors import Refusal
from agent_system.gateway.request_fields import RESPONSES, SAMPLING, without_effect
from agent_system.gateway.responses import ResponseStore, chat_body
from agent_system.gateway.session import Session

from .conftest import TASK, USER, say, send
from .test_served import serving

ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/responses": {"input": "2+2?"},
}
CHANGED: dict[str, Any] = {
    "temperature": 0.5, "top_p": 0.5, "top_k": 3, "min_p": 0.5, "typical_p": 0.5, "presence_penalty": 1,
    "frequency_penalty": 1,
    "repetition_penalty": 2, "length_penalty": 2, "logit_bias": {"1": 1}, "min_tokens": 3, "ignore_eos": True,
    "stop_token_ids": [1],
    "use_beam_search": True, "thinking_token_budget": 3, "chat_template": "x",
    "chat_template_kwargs": {"x": 2}, "documents": [{}],
    "add_generation_prompt": False, "continue_final_message": True, "truncate_prompt_tokens": 3, "best_of": 3,
    "add_special_tokens": True, "truncation_side": "left", "repetition_detection": {"x": 1},
    "vllm_xargs": {"x": 1}, "watermarking": True,
}  # fmt: skip
MASKING = (
    "guided_json", "guided_choice", "guided_regex", "guided_grammar", "structured_outputs", "structural_tag",
    "regex", "ebnf", "grammar",
    "json_schema", "allowed_token_ids", "bad_words", "logits_processors",
)  # fmt: skip
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
STORED = ResponseStore()
STORED.conversations["known"] = USER
# Fields that have an effect, each with a value that has one.
EFFECT: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "Editor", "messages": [*USER, *USER], "tools": [TOOL],
        "response_format": {"type": "json_object"}, "n": 2, "max_tokens": 3,
        "max_completion_tokens": 3, "stop": "x", "seed": 3, "logprobs": True, "stream": True,
        "stream_options": {"include_usage": True},
    },
    "/v1/responses": {
        "model": "Editor", "input": "3+3?", "instructions": "x", "previous_response_id": "known",
        "tools": [TOOL["function"] | TOOL],
        "text": {"format": {"type": "json_object"}}, "max_output_tokens": 3, "stop": "x", "seed": 3,
        "stream": True,
    },
}  # fmt: skip
# Fields for the records, the costs and the speed of a server, of which nothing is said; the last two go with
# others.
HARMLESS = (
    "user", "store", "metadata", "safety_identifier", "service_tier", "prediction", "priority", "request_id",
    "session_id", "cache_salt",
    "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "stream_interval", "stream_options",
    "tool_choice",
    "include", "parallel_tool_calls",
)  # fmt: skip
# Fields that have no effect, and values that ask for nothing.
IGNORED = {
    "reasoning_effort": "low",
    "verbosity": "low",
    "web_search_options": {},
    "return_token_ids": True,
    "a\nb": 1,
}
NOTHING = {
    "reasoning_effort": None,
    "parallel_tool_calls": False,
    "include": ["a"],
    "web_search_options": None,
    "return_token_ids": False,
    "store": True,
}


def fields_of(module: str, name: str) -> list[str]:
    """The annotated fields of a class and its bases in a file, which is not imported: vLLM takes seconds."""
    spec = find_spec(module.partition(".")[0])
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"needs {module}")
    path = Path(spec.submodule_search_locations[0], *module.split(".")[1:]).with_suffix(".py")
    classes = {
        node.name: node
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    }
    found = [
        part.target.id
        for part in classes[name].body
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    ]
    bases = [base.id for base in classes[name].bases if isinstance(base, ast.Name) and base.id in classes]
    return found + [field for base in bases for field in fields_of(module, base)]


@pytest.mark.parametrize(
    ("path", "module", "name", "least"),
    [
        (
            "/v1/chat/completions",
            "openai.types.chat.completion_create_params",
            "CompletionCreateParamsStreaming",
            35,
        ),
        (
            "/v1/chat/completions",
            "vllm.entrypoints.openai.chat_completion.protocol",
            "ChatCompletionRequest",
            60,
        ),
        (
            "/v1/responses",
            "openai.types.responses.response_create_params",
            "ResponseCreateParamsStreaming",
            30,
        ),
        ("/v1/responses", "vllm.entrypoints.openai.responses.protocol", "ResponsesRequest", 50),
    ],
)
def test_every_field_of_the_libraries_is_honoured_told_or_refused(
    path: str, module: str, name: str, least: int
) -> None:
    plain = {"model": "Writer", **ROUTES[path]}

    def read(more: dict[str, Any]) -> Any:
        body = plain | more
        if path == "/v1/chat/completions":
            return read_chat_request(body, "mask")
        return read_chat_request(chat_body(body, STORED), "mask", without_effect(body, RESPONSES))

    fields, silent = fields_of(module, name), []
    assert len(fields) >= least
    for field in fields:
        if field in EFFECT[path]:
            changed = read({field: EFFECT[path][field]})
            assert changed != read({}) and not changed.ignored, field
        elif field == "tool_choice":
            forced = {"tools": EFFECT[path]["tools"], field: "required"}
            assert read(forced).forced == ("f",)
        else:
            try:
                ask = read({field: ["x"]})
            except Refusal as refusal:
                assert refusal.param == field
            else:
                silent += [field] if field not in (*ask.sampling, *ask.ignored) else []
    assert set(silent) <= set(HARMLESS), "fields that are dropped in silence"


@pytest.mark.parametrize("path", ROUTES)
async def test_every_field_is_counted_and_named_once_or_refused(
    play: Any, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    plain = {"model": "Writer", **ROUTES[path]}
    (said_in,) = ROUTES[path]

    async def team(task: Task, session: Session) -> str:
        for more in [{name: value} for name, value in CHANGED.items()] * 2 + [
            dict(SAMPLING),
            {"chat_template_kwargs": {"x": 1}},
        ]:
            answer = await send(session, plain | more, path=path)
            assert answer.status == 200, answer.body
        for name in MASKING:
            answer = await send(session, plain | {name: ["a"]}, path=path)
            assert (answer.status, answer.body["error"]["param"]) == (400, name), answer.body
            assert "use response_format" in answer.body["error"]["message"]
        for more in [{name: value} for name, value in IGNORED.items()] * 2 + [NOTHING]:
            assert (await send(session, plain | more, path=path)).status == 200, more
        part = {
            "type": "text" if "messages" in plain else "input_text",
            "text": "2+2?",
            "cache_control": {"type": "ephemeral"},
        }
        for more in (
            {"prefix": True},
            {"prefix": False},
            {"content": [part | {"detail": "low"}]},
            {"content": [part]},
        ):
            said = [{"role": "user", "content": "2+2?", "cache_control": {"type": "ephemeral"}} | more]
            assert (await send(session, plain | {said_in: said}, path=path)).status == 200, more
        return "4"

    episode, metrics, _ = await play(team, template_kwargs={"x": 1})
    assert (episode.failure, metrics["gateway/overridden"], metrics["gateway/ignored"]) == (
        None,
        2 * len(CHANGED),
        2 * len(IGNORED) + 2,
    )
    ignored = [record.message.split(";")[0] for record in caplog.records if "has no effect" in record.message]
    in_messages = (f"{said_in}.prefix", f"{said_in}.detail")
    fields = ("reasoning_effort", "verbosity", *list(IGNORED)[2:4], r"a\nb", *in_messages)
    assert ignored == [f"a request sets {name}" for name in fields]
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
    assert (episode.failure, episode.answer, [request.sampling.stop for request in engine.requests]) == (
        None,
        "4",
        [("END",)],
    )


@pytest.mark.parametrize(("validate", "masked"), [(True, 1), (False, 0)])
async def test_a_form_is_honoured_where_nothing_is_trained(
    make_team: Any, validate: bool, masked: int
) -> None:
    async def team(task: Task, session: Session) -> str:
        body = {"messages": USER, "response_format": {"type": "json_object"}}
        answers = [await send(session, body | {"model": name}) for name in ("Writer", "Editor")]
        assert [answer.status for answer in answers] == [200 if validate else 400, 400]
        said = "structured_outputs=true" if validate else "gateway.structured=mask"
        assert said in answers[1].body["error"]["message"]
        return "4"

    collector, engine = make_team(team, able=["Writer"])
    (episode,) = (await collector.collect([TASK], 1, step=1, validate=validate)).episodes
    assert (episode.failure, len([request for request in engine.requests if request.sampling.structure])) == (
        None,
        masked,
    )


async def test_a_served_agent_refuses_or_tells_what_it_does_not_honour(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(able=["Writer"], template_kwargs={"x": 1}) as (client, _, _):
        for name in [*MASKING, *(name for name in CHANGED if name not in ("temperature", "top_p", "top_k"))]:
            answer = await send(client, {"model": "Writer", "messages": USER, name: CHANGED.get(name, "a")})
            assert (answer.status, answer.body["error"]["param"]) == (400, name), answer.body
        await say(client, "Writer", chat_template_kwargs={"x": 1}, ignore_eos=False)
        for _ in range(2):
            await say(
                client,
                "Writer",
                tools=[{**TOOL, "function": {**TOOL["function"], "strict": True}}],
                stream_options={"x": 1},
            )
            await say(client, "gateway", temperature=0.5, seed=3)
    told = [record.message.split(";")[0] for record in caplog.records if "has no effect" in record.message]
    assert told == [
        f"a request sets {names}" for names in ("stream_options.x", "seed of gateway, temperature of gateway")
    ]
