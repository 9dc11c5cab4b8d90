"""Public client libraries, with their own tests where they have some, against a served team; they have a
Python environment of their own.

Three teams are served: one whose engine is a script that does what it is asked to do, and a model without
training with each engine.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.agent_system.gateway.templates import TEMPLATES
from tests.agent_system.gateway.test_served import serving
from tests.e2e.conftest import Run
from tests.e2e.test_serve import MATH
from tests.e2e.test_serve_openai import served
from tests.environments import python_with

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
OPENAI, OPENAI_2 = "openai==3.57.0", ("openai[aiohttp]==2.54.0", "pytest-asyncio", "respx", "rich")
LIBRARIES = (
    "langchain-tests==1.1.9",
    "langchain-openai==1.7.4",
    "litellm==1.110.2",
    "pydantic-ai-slim[openai]==2.68.0",
    "llm==0.36",
)
INSTRUCTOR = ("instructor==1.17.0",)  # wants jiter below 0.15, which OPENAI does not accept
CLIENTS = Path(__file__).with_name("clients")
# Of LangChain's tests, those that no model without training passes, also where a reply has a form.
FOR_AN_ABLE_MODEL = ("tool_calling", "agent_loop", "bind_runnables", "unicode_tool_call")
# Of the tests of OpenAI's client, those of what is served; `all_params` ask for sound, `functions` and a
# reply of no token.
SERVED = "(Completions and create and not all_params) or (Models and not delete)"
EXAMPLES = (
    "demo", "async_demo", "streaming", "parsing", "parsing_stream", "parsing_tools", "parsing_tools_stream",
    "responses/streaming",
    "responses/streaming_tools", "responses/structured_outputs", "responses/structured_outputs_tools",
)  # fmt: skip


@pytest.fixture(autouse=True)
def installed(request: pytest.FixtureRequest) -> None:
    """Skip unless the packages may be installed."""
    if not request.config.getoption("--all-levels"):
        pytest.skip("takes minutes to install: needs --all-levels")


def example(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> Any:
    """A value that a JSON schema allows; its numbers and texts are those that LangChain's prompts ask for."""
    if "$ref" in schema:
        return example(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return example(schema["anyOf"][0], whole)
    if schema.get("type") == "array":
        return [example(schema.get("items", {}), whole)]
    if schema.get("type") == "object":
        return {name: example(inner, whole) for name, inner in schema.get("properties", {}).items()}
    return {"integer": 3, "number": 3.0, "boolean": True, "null": None}.get(
        str(schema.get("type")), "你好こんにちは"
    )


def able(prompt: str, request: Any) -> str:
    """What a model replies that does what it is asked to do."""
    form = json.loads(request.sampling.structure)["format"] if request.sampling.structure else {}
    form = form["elements"][0] if form.get("type") == "or" else form
    content = form.get("content", form)
    if form:
        schema = content["json_schema"]
        # of the test of JSON mode
        value = example(schema, schema) if schema.get("properties") else {"setup": "a", "punchline": "b"}
        return f"{form.get('begin', '')}{json.dumps(value)}{form.get('end', '')}"
    lines = [line for line in prompt.splitlines() if line.startswith('{"type": "function"')]
    tools = [json.JSONDecoder().raw_decode(line)[0]["function"] for line in lines]
    if not tools or "<tool_response>" in prompt:
        return "It is 7."
    arguments = example(tools[0]["parameters"], tools[0]["parameters"])
    return f"<tool_call>\n{json.dumps({'name': tools[0]['name'], 'arguments': arguments})}\n</tool_call>"


async def call(*command: str | Path, cwd: Path | None = None, **env: str) -> str:
    """Run a command, which must succeed; return what it printed."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command), cwd=cwd,
        env={**os.environ, "OPENAI_API_KEY": "sk-team", "LITELLM_LOCAL_MODEL_COST_MAP": "True", **env},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    sys.stdout.write(said.decode())
    assert process.returncode == 0, said.decode()[-6000:]
    return said.decode()


async def check_all(url: str, left_out: str) -> None:
    """Run every library against a server, and LangChain's tests but those of a name."""
    python, older = python_with(*LIBRARIES, OPENAI), python_with(*INSTRUCTOR)
    env = {"OPENAI_BASE_URL": url, "ABLE": str(int(not left_out)), "LLM_LOAD_PLUGINS": ""}
    for name in ("litellm", "pydantic_ai", "llm"):
        await call(python, CLIENTS / f"{name}_calls.py", **env)
    await call(older, CLIENTS / "instructor_calls.py", **env)
    # connections are kept between tests
    one_loop = [f"asyncio_default_{kind}_loop_scope=session" for kind in ("test", "fixture")]
    options = [word for option in ("asyncio_mode=auto", "addopts=", *one_loop) for word in ("-o", option)]
    plain = ("-p", "no:cacheprovider", "-q", "-rfEsx", "--tb=short", *options)
    chosen = ("-k", f"not ({left_out})") if left_out else ()
    said = await call(
        python,
        "-m",
        "pytest",
        CLIENTS / "langchain_standard.py",
        "--confcutdir",
        CLIENTS,
        *plain,
        *chosen,
        **env,
    )
    assert f"\n{34 if left_out else 43} passed" in said
    agent = f"{url.removesuffix('/v1')}/agents/solver_agent/v1"  # whatever model a request names
    tests = [f"tests/api_resources/{name}.py" for name in ("chat/test_completions", "test_models")]
    for client, version, passed in ((python, OPENAI, 65), (python_with(*OPENAI_2), OPENAI_2[0], 70)):
        files = source(client, version)
        # of completions, in 2
        for name in (
            () if left_out else [name for name in EXAMPLES if version == OPENAI or name != "streaming"]
        ):
            await call(client, files / "examples" / f"{name}.py", OPENAI_BASE_URL=agent)
        said = await call(
            client, "-m", "pytest", *tests, *plain, "-k", SERVED, cwd=files, TEST_API_BASE_URL=agent
        )
        assert f"\n{passed} passed" in said


def source(python: str, version: str) -> Path:
    """The source of a version of OpenAI's client, with its tests."""
    folder = Path(python).parents[2] / "source"
    if not folder.exists():
        command = [
            python,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--no-binary",
            "openai",
            "-d",
            folder,
            version,
        ]
        subprocess.run(command, check=True, capture_output=True)
        with tarfile.open(next(folder.glob("*.tar.gz"))) as packed:
            packed.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if path.is_dir())


async def test_every_library_and_its_tests_pass_with_a_model_that_does_what_it_is_asked_to_do() -> None:
    agents = ["Solver Agent", "Verifier Agent"]
    async with serving(able, agents=agents, able=agents, limits=(16_384, 3000)) as (client, _, _):
        await check_all(client.base_url, "")


@pytest.mark.parametrize("engine", ["hf", "vllm"])
async def test_libraries_and_tests_pass_with_an_engine(
    train: Run, tiny_model_dir: Path, wide_heads_model_dir: Path, tmp_path: Path, engine: str
) -> None:
    model = wide_heads_model_dir if engine == "vllm" else tiny_model_dir
    (own := tmp_path / "model").mkdir()
    for file in model.iterdir():
        (own / file.name).write_bytes(file.read_bytes())
    (own / "chat_template.jinja").write_text(TEMPLATES["qwen2.5"])  # with tools
    config = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 8192}))
    lengths = {"data.max_prompt_length": 4096, "data.max_response_length": 3000, "data.train_batch_size": 1}
    train(MATH | lengths | {"actor_rollout_ref.model.path": own, "trainer.save_freq": 1, "env.rollout.n": 1})
    with served(sys.executable, tmp_path / "run", "--engine", engine) as client:
        await check_all(str(client.base_url).rstrip("/"), " or ".join(FOR_AN_ABLE_MODEL))
