"""Forms of replies: what the grammar of a request allows, what is offered, and `gateway.structured=free`."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from agent_system import Task
from agent_system.gateway.chat_request import read_chat_request
from agent_system.gateway.session import Session
from agent_system.gateway.structured_output import structure_of
from agent_system.tools.formats import OfferedTools, split_calls
from agent_system.tools.formats.named import NAMED
from agent_system.tools.formats.syntax import Syntax

from .conftest import TASK, USER, say, send
from .templates import tokenizer_of

ROLE = {"model": "Writer", "messages": USER}
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
ADD, SUB = (
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("add", "sub")
)
OK = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "v", "schema": OK}}
BESIDE = {"tools": [ADD, SUB], "response_format": SCHEMA}
CHARACTERS = [
    "\n",
    "\t",
    *(chr(code) for code in range(32, 127)),
    *sorted({c for s in NAMED.values() for c in repr(s) if ord(c) > 127}),
]


def matcher_of(structure: str) -> Any:
    """A matcher of a form over single characters."""
    xgrammar = pytest.importorskip("xgrammar")
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(CHARACTERS, stop_token_ids=[]))
    return xgrammar.GrammarMatcher(
        compiler.compile_structural_tag(structure), terminate_without_stop_token=True
    )


def allows(structure: str, reply: str) -> bool:
    """Whether a form allows a reply, which may end there."""
    matcher = matcher_of(structure)
    return bool(matcher.accept_string(reply) and matcher.is_terminated())


def call_of(syntax: Syntax, structure: str, name: str) -> str:
    """A call of a tool as the form begins and ends it."""
    _, *tags = json.loads(structure)["format"]["elements"]
    tag = tags[["add", "sub"].index(name)]
    keys = {syntax.keys.name or "name": name, syntax.keys.arguments: {"a": 1}}
    content = {"json": json.dumps(keys), "object": '{"a": 1}'}.get(syntax.kind, "anything")
    return f"{tag.get('begin', '')}{content}{tag.get('end', '')}"


@pytest.mark.parametrize("tool_format", NAMED)
def test_a_reply_beside_tools_and_a_schema_is_one_call_or_the_answer_in_every_syntax(
    tool_format: str,
) -> None:
    syntax = NAMED[tool_format]
    structure = structure_of(read_chat_request(ROLE | BESIDE, "mask"), syntax)
    assert (
        allows(structure, '{"ok": true}')
        and not allows(structure, "I add.")
        and not allows(structure, '{"no": 1}')
    )
    for name in ("add", "sub"):
        call = call_of(syntax, structure, name)
        assert allows(structure, call) and not allows(structure, call + call + "x"), call
        if syntax.kind in ("json", "object"):
            assert not allows(structure, call.replace("1", '"x"')), "its arguments satisfy the tool's schema"
            content, calls = split_calls(call, (syntax,), OfferedTools.of([ADD, SUB]))
            assert (content, [(c.name, c.arguments) for c in calls]) == ("", [(name, {"a": 1})])


FORMS: list[dict[str, Any]] = [
    {"response_format": SCHEMA},
    BESIDE,
    {"tools": [ADD, SUB], "tool_choice": "required"},
    {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"schema": {"type": "array", "maxItems": 3, "items": OK}},
        }
    },
    {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"schema": {"anyOf": [OK, {"$ref": "#/$defs/x"}], "$defs": {"x": OK}}},
        }
    },
]


@pytest.mark.parametrize("body", FORMS)
@pytest.mark.parametrize("tool_format", ["hermes", "llama3", "mistral_v13"])
def test_a_model_that_writes_blanks_wherever_it_may_ends_its_form(
    body: dict[str, Any], tool_format: str
) -> None:
    import torch
    import xgrammar

    matcher = matcher_of(structure_of(read_chat_request(ROLE | body, "mask"), NAMED[tool_format]))
    draw, said = random.Random(0), ""
    while not matcher.is_terminated():
        mask = xgrammar.allocate_token_bitmask(1, len(CHARACTERS))
        matcher.fill_next_token_bitmask(mask)
        bits = torch.stack([mask[0] >> bit & 1 for bit in range(32)], dim=1).flatten().tolist()
        allowed = [character for character, bit in zip(CHARACTERS, bits, strict=False) if bit]
        said += draw.choice([c for c in allowed if c.isspace()] or allowed)
        assert matcher.accept_string(said[-1])
        assert len(said) < 300, said
    assert not said.count("  "), said


ALLOWED_ADD = [{"type": "function", "function": {"name": "add"}}]


def allowed(**fields: Any) -> dict[str, Any]:
    """A body with two tools, of which `allowed_tools` allows some."""
    choice = {"mode": "auto", "tools": ALLOWED_ADD, **fields}
    return ROLE | {"tools": [ADD, SUB], "tool_choice": {"type": "allowed_tools", "allowed_tools": choice}}


async def test_the_allowed_tools_alone_are_offered_in_both_apis(play: Any) -> None:
    flat = [{"type": "function", **tool["function"]} for tool in (ADD, SUB)]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"}]}
    wrong: list[Any] = [
        {"mode": "none"},
        {"mode": ["auto"]},
        {"tools": []},
        {"tools": "add"},
        {"tools": [{"type": "function", "function": {"name": "mul"}}]},
        {"tools": ["add"]},
        {"tools": [{"type": "function", "function": {"name": ["add"]}}]},
        {"tools": None},
    ]

    async def team(task: Task, session: Session) -> str:
        assert (await send(session, allowed())).status == 200
        body = {"model": "Writer", "input": "2+2?", "tools": flat, "tool_choice": choice}
        assert (await send(session, body, path="/v1/responses")).status == 200
        required = await send(session, allowed(mode="required"))
        assert (required.status, "gateway.structured=free" in required.body["error"]["message"]) == (
            400,
            True,
        )
        for fields in wrong:
            answer = await send(session, allowed(**fields))
            assert (answer.status, answer.body["error"]["param"]) == (400, "tool_choice"), (
                fields,
                answer.body,
            )
            assert "allowed_tools" in answer.body["error"]["message"]
        bare = await send(session, ROLE | {"tools": [ADD], "tool_choice": {"type": "allowed_tools"}})
        assert bare.status == 400, bare.body
        return "4"

    episode, _, engine = await play(team, chat=tokenizer_of("qwen2.5"))
    assert episode.failure is None and len(engine.requests) == 2
    assert all(
        '"add"' in sample.request.prompt_text and '"sub"' not in sample.request.prompt_text
        for sample in episode.samples
    )
    assert read_chat_request(allowed(mode="required"), "mask").forced == ("add",)


CALL = '<tool_call>\n{"name": "sub", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize("validate", [False, True])
async def test_free_forms_mask_nothing_whether_an_engine_could_or_not(make_team: Any, validate: bool) -> None:
    async def team(task: Task, session: Session) -> str:
        texts = [(await say(session, agent, response_format=SCHEMA)).text for agent in ("Writer", "Editor")]
        assert texts == ["no JSON"] * 2
        for choice in ("required", {"type": "function", "function": {"name": "add"}}):
            answer = await say(
                session, "Writer", [{"role": "user", "content": "call"}], tools=[ADD, SUB], tool_choice=choice
            )
            assert answer.message["tool_calls"][0]["function"]["name"] == "sub"
        both = await say(session, "Writer", [{"role": "user", "content": "call"}], **BESIDE)
        assert both.body["choices"][0]["finish_reason"] == "tool_calls"
        for wrong in ({"response_format": "json"}, {"tool_choice": "required"}, {"guided_json": OK}):
            assert (await send(session, ROLE | wrong)).status == 400, wrong
        return "4"

    def replies(prompt: str, request: Any) -> str:
        return CALL if "call<|im_end|>" in prompt else "no JSON"

    options = {
        "chat": tokenizer_of("qwen2.5"),
        "structured": "free",
        "able": ["Writer"],
        "max_failure_rate": 1.0,
    }
    collector, engine = make_team(team, replies, **options)
    (episode,) = (await collector.collect([TASK], 1, step=1, validate=validate)).episodes
    assert episode.failure is None, episode.failure
    assert len(episode.samples) == 5 and not any(request.sampling.structure for request in engine.requests)


def nested(field: str, depth: int) -> bytes:
    """A body with a schema, or a choice, of objects in each other, which `json.dumps` does not write."""
    inner = '{"type": "object", "properties": {"a": ' * depth + '{"$ref": "#"}' + "}}" * depth
    shape = (
        f'{{"type": "json_schema", "json_schema": {{"schema": {inner}}}}}'
        if field == "response_format"
        else inner
    )
    return f'{json.dumps(ROLE)[:-1]}, "{field}": {shape}}}'.encode()


BAD: list[dict[str, Any]] = [
    {"response_format": {"type": ["json_schema"]}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": []}}},
    {"response_format": {"type": "json_schema", "json_schema": "x" * (1 << 20)}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#x"}}}},
    {"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": ["add"]}}},
    {"tools": [ADD], "tool_choice": "x" * (1 << 20)},
    {"tools": [ADD], "tool_choice": 3},
    {"tools": [{"type": "function", "function": {"name": 3}}]},
    {"tool_choice": "required"},
]


async def test_a_form_that_cannot_be_read_is_one_error(make_team: Any) -> None:
    async def team(task: Task, session: Session) -> str:
        deep = [
            nested(field, depth)
            for field in ("response_format", "tool_choice")
            for depth in (480, 5000, 20000)
        ]
        for body in [*(ROLE | body for body in BAD), *deep]:
            answer = await send(session, body)
            error = answer.body["error"]
            assert answer.status == 400 and "\n" not in error["message"] and len(error["message"]) < 600, (
                error
            )
        return (await say(session, "Writer")).text

    collector, engine = make_team(
        team, structured="mask", able=["Writer"], chat=tokenizer_of("qwen2.5"), max_failure_rate=1.0
    )
    (episode,) = (await collector.collect([TASK], 1, step=1)).episodes
    assert (episode.failure, len(engine.requests)) == (None, 1)
