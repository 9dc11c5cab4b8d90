"""A trained team behind OpenAI's protocol: a server process, with each engine, and the public client."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_system.serve import conversation
from agent_system.serve import main as serve
from tests.agent_system.gateway.templates import TEMPLATES
from tests.e2e.conftest import Run
from tests.e2e.test_serve import MATH
from tests.house.source import ROOT

openai = pytest.importorskip("openai")
pytestmark = [pytest.mark.e2e]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["a"],
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}


@contextmanager
def served(python: str, run_dir: Path, *options: str) -> Iterator[Any]:
    """A client of a server process, which ends without an error."""
    command = [
        python,
        "-m",
        "agent_system.serve",
        str(run_dir),
        "--openai",
        "--port",
        "0",
        "--device",
        "cpu",
        *options,
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TEAM_KEY": "sk-team"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            strict = {"_strict_response_validation": True}  # with which the library tests its own client
            with openai.OpenAI(
                base_url=line.split()[0], api_key="sk-team", max_retries=0, **strict
            ) as client:
                yield client
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def check_answers(client: Any) -> None:
    """What every engine can do."""
    assert [model.id for model in client.models.list()] == ["Solver Agent", "Verifier Agent", "math"]
    create, messages = client.chat.completions.create, [{"role": "user", "content": "3 + 4?"}]
    same = [
        create(model="Solver Agent", messages=messages, seed=1, temperature=0.5).choices[0].message.content
        for _ in range(2)
    ]
    assert same[0] == same[1]
    several = [
        [
            c.message.content
            for c in create(model="Solver Agent", messages=messages, seed=1, temperature=0.5, n=2).choices
        ]
        for _ in same
    ]
    assert several[0] == several[1] and several[0][0] == same[0]
    pieces = list(create(model="solver_agent", messages=messages, seed=1, temperature=0.5, stream=True))
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == same[0]
    raw = client.chat.completions.with_raw_response.create(
        model="Solver Agent", messages=messages, seed=1, temperature=0.5, logprobs=True
    )
    assert (
        raw.http_request.headers.get("x-stainless-lang") == "python"
        and raw.parse().choices[0].message.content == same[0]
    )
    asked = client.chat.completions.with_streaming_response.create(
        model="Solver Agent", messages=messages, seed=1, temperature=0.5
    )
    with asked as response:
        assert not response.is_closed and response.parse().choices[0].message.content == same[0]
    assert client.models.retrieve("Solver Agent").object == "model"
    answer = client.responses.create(model="Verifier Agent", input="3 + 4?", max_output_tokens=3)
    following = client.responses.create(
        model="Verifier Agent", input="sure?", previous_response_id=answer.id, max_output_tokens=3
    )
    assert following.usage.input_tokens > answer.usage.input_tokens + 3
    with pytest.raises(openai.NotFoundError, match="the model is one of: Solver Agent, Verifier Agent, math"):
        create(model="Solver", messages=messages)


def check_forms(client: Any) -> None:
    """What engines can do that make a reply follow a form."""
    create, messages = client.chat.completions.create, [{"role": "user", "content": "3 + 4?"}]
    answer = create(model="Solver Agent", messages=messages, response_format=FORMAT)
    text = answer.choices[0].message.content
    assert text.lstrip().startswith("{"), "which no reply of a model without training does by itself"
    assert answer.choices[0].finish_reason == "length" or 0 <= json.loads(text)["a"] <= 9
    with pytest.raises(openai.BadRequestError, match="no reply can follow this form"):
        create(
            model="Solver Agent",
            messages=messages,
            response_format={**FORMAT, "json_schema": {"schema": {"type": "objekt"}}},
        )


def test_every_agent_and_the_team_are_models_of_a_server(
    once: Callable[..., Path], forked_python: str
) -> None:
    run_dir = once(MATH)
    with served(forked_python, run_dir, "--greedy", "--api-key-env", "TEAM_KEY") as client:
        check_answers(client)
        messages: list[Any] = [{"role": "user", "content": "3 + 4?"}]
        answer = client.chat.completions.create(model="math", messages=messages)
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="sk-other").models.list()
    with conversation(str(run_dir), greedy=True) as team:
        record = asyncio.run(team.ask("3 + 4?"))
    assert answer.choices[0].message.content == record.answer, (
        "the weights, prompts and sampling of the terminal"
    )
    assert answer.usage.completion_tokens == sum(
        len(sample.generation.token_ids) for sample in record.samples
    )


@pytest.mark.spread
@pytest.mark.parametrize("engine", ["vllm"])
def test_vllm_makes_replies_follow_a_schema(
    train: Run, wide_heads_model_dir: Path, tmp_path: Path, engine: str
) -> None:
    train(
        MATH
        | {
            "actor_rollout_ref.model.path": wide_heads_model_dir,
            "data.max_response_length": 48,
            "trainer.save_freq": 1,
        }
    )
    with served(sys.executable, tmp_path / "run", "--engine", engine) as client:
        check_answers(client)
        check_forms(client)


def test_hf_makes_replies_and_calls_of_tools_follow_a_schema(
    train: Run, tiny_model_dir: Path, tmp_path: Path, forked_python: str
) -> None:
    pytest.importorskip("xgrammar")
    shutil.copytree(tiny_model_dir, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(TEMPLATES["qwen2.5"])  # with tools
    train(
        MATH
        | {
            "actor_rollout_ref.model.path": tmp_path / "model",
            "data.max_prompt_length": 800,
            "data.max_response_length": 128,
        }
    )
    with served(forked_python, tmp_path / "run") as client:
        check_forms(client)
        tools: list[Any] = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
        forced: Any = {"type": "function", "function": {"name": "add"}}
        called = client.chat.completions.create(
            model="Solver Agent",
            messages=[{"role": "user", "content": "3?"}],
            tools=tools,
            tool_choice=forced,
            n=8,
            seed=1,
        )
        calls = [call for choice in called.choices for call in choice.message.tool_calls or ()]
        assert all(
            call.function.name == "add" and 0 <= json.loads(call.function.arguments)["a"] <= 9
            for call in calls
        )
        assert len(calls) == sum(choice.finish_reason != "length" for choice in called.choices) > 0


def test_what_cannot_be_served_is_one_line(
    once: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = str(once(MATH))
    wrong = {
        ("--openai", "--api-key-env", "NO_SUCH_VARIABLE"): "the environment variable is not set",
        ("--openai", "--host", "0.0.0.0"): "which needs a key",
        ("3 + 4?", "--openai"): "--openai takes no question",
        ("--engine", "hf"): "need --openai",
    }
    for options, said in wrong.items():
        with pytest.raises(SystemExit) as end:
            serve([run_dir, *options])
        assert end.value.code != 0 and said in capsys.readouterr().err
