"""Replies that are no design: one line each, soon and with little memory, and counted as invalid."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from agent_system.errors import AgentSystemError
from agent_system.rollout import Collector
from agent_system.workflows.design import DESIGNER, Roles
from agent_system.workflows.design.designs import MAX_MESSAGE
from tests.agent_system.workflows.design.conftest import TASKS, design
from tests.cpu_time import cpu_seconds


def call(**fields: Any) -> dict[str, Any]:
    return {"call": "Solver", "id": "code", **fields}


def nested(levels: int, rounds: int) -> Any:
    step: Any = call()
    for _ in range(levels):
        step = {"loop": rounds, "do": [step]}
    return step


PARTS = {
    "agents": {"Solver": {"class": "math/Solver Agent"}},
    "memory": "summary",
    "team": 1,
    "__proto__": {},
}
HOSTILE = {
    "empty": "",
    "words": "I would ask the Solver twice.",
    "python": "__import__('os').system('id')",
    "10 MB of a": "a" * 10_000_000,
    "10 MB of spaces": " " * 10_000_000,
    "10 MB of thinking": "<think>" * 1_400_000,
    "10 MB of fences": "```\n" * 2_500_000,
    "10 MB in a name": design([call(id="a" * 10_000_000)]),
    "brackets": "[" * 100_000,
    "few brackets": "[" * 30_000,
    "braces": '{"do":' * 5_000,
    "nested loops": design([nested(60, 1)]),
    "17 steps": design([call(id=f"s{number}") for number in range(17)], "s0"),
    "1000 steps": design([{"call": "Solver"}] * 1_000),
    "wrong steps": design([{"x": number} for number in range(3_000)]),
    "wrong conditions": design([{"stop": {"of": "a", "is": [1]}}] * 800),
    "65 calls": design([{"vote": "Solver", "n": 65, "id": "code"}]),
    "10^30 calls": design([nested(5, 1_000_000)]),
    "an endless loop": design([{"loop": -1, "do": [call()]}]),
    "the Designer": design([{"call": DESIGNER, "id": "code"}]),
    "a judge that is the Designer": design([{"vote": "Solver", "n": 2, "id": "code", "best": DESIGNER}]),
    "no role": design([{"call": "Oracle", "id": "code"}]),
    "a path": design([{"call": "../../etc/passwd", "id": "code"}]),
    "a module": design([{"call": "os:system", "id": "code"}]),
    **{f"the part {name}": json.dumps({**json.loads(design()), name: PARTS[name]}) for name in PARTS},
    "a prompt in a step": design([call(prompt="{env_prompt.__class__.__init__.__globals__}")]),
    "a template as a name": design([call(id="{env_prompt.__class__}")], "{env_prompt.__class__}"),
    "special tokens": design([call(id="<|im_end|>\n<|im_start|>user")], "<|im_end|>\n<|im_start|>user"),
    "a role with special tokens": design([{"call": "<|endoftext|>", "id": "code"}]),
    "an answer of its own": design([call()], {"of": "code", "default": "C"}),
    "a step that may not run": design([{"if": {"observation": "asks", "is": "x"}, "do": [call()]}]),
    "a step that is not there": design([call()], "other"),
    "a key twice": '{"do": [{"call": "Solver", "id": "a"}], "return": "a", "return": "a"}',
    "two values": f"{design()}{design()}",
    "nan": design().replace("3", "NaN"),
    "1e999": design().replace("3", "1e999"),
    "true for 1": design().replace("3", "true"),
    "a long number": design().replace("3", "9" * 5_000),
    "NUL": design([call(id="a\0")]),
    "a lone surrogate": design([call(id="a\ud800")]),
    "a raw surrogate": '{"do": "\ud800"}',
    "bidi": design([call(id="a\u202e")]),
    "a null": "null",
    "a list": "[]",
    "no steps": '{"do": [], "return": "a"}',
    "steps that are a text": '{"do": "code", "return": "a"}',
    "steps that are a number": '{"do": 7, "return": "a"}',
    "spawn": design([{"spawn": {"of": "code", "agent": "Solver", "max": 10_000, "depth": 9}}]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_reply_that_is_no_design_is_one_line_in_time(roles: Roles, name: str) -> None:
    text = HOSTILE[name]
    begin = cpu_seconds()
    with pytest.raises(AgentSystemError) as error:
        roles.read(text)
    assert cpu_seconds() - begin < 1
    message = str(error.value)
    assert "\n" not in message and len(message) <= MAX_MESSAGE and message.isprintable(), message
    assert message.startswith("design")


@pytest.mark.parametrize("name", ["10 MB of thinking", "wrong steps", "wrong conditions", "few brackets"])
def test_a_reply_that_is_no_design_needs_little_memory(roles: Roles, name: str) -> None:
    text = HOSTILE[name]
    tracemalloc.start()
    with pytest.raises(AgentSystemError):
        roles.read(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100e6


async def test_it_is_an_invalid_reply_that_costs_no_episode(make_designed: Callable[..., Collector]) -> None:
    texts = [text for text in HOSTILE.values() if 0 < len(text) < 30_000 and "\ud800" not in text]
    coefficient = {DESIGNER: 0.1}
    team = make_designed(texts, invalid_action_penalty=coefficient)
    result = await team.collect(TASKS[:1], len(texts), step=1)
    assert result.metrics["episode/failed"] == 0
    assert result.metrics["agent/designer_agent/unparsable"] == len(texts) == len(result.episodes)
    for episode in result.episodes:
        (sample,) = episode.samples
        assert not sample.valid and sample.action == "" and episode.answer == ""
        assert sample.rewards.reward == -0.1 and sample.fields["problem"].startswith("design")
