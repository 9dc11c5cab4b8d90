"""The teams of examples/frameworks train two policies as they are; frameworks that are not installed are
skipped.

A random model hands nothing over, calls no tool and chooses nobody: where a team is about these, its engine
samples what a script says.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from agent_system.environment import Task
from agent_system.gateway import ServedSession
from agent_system.gateway.command import load_command
from agent_system.gateway.conversations import AgentConversations
from agent_system.gateway.team import load_team
from agent_system.launch.openai_server import Address, listening
from agent_system.launch.serving import LoadedTeam, loaded_team
from agent_system.record import Sample
from agent_system.registry import AgentRegistry
from tests.agent_system.gateway.templates import TEMPLATES
from tests.agent_system.gateway.test_frameworks import SOLVER, VERIFIER, calling, hands_over, multiplies
from tests.e2e.conftest import Run, read_metrics, weights
from tests.e2e.teams import largest_gap, load_exported
from tests.environments import python_with
from tests.house.source import ROOT
from verl.trainer.serving import Engines
from verl.workers.rollout.hf_engine import HFEngine
from verl.workers.rollout.sampling import Sampled
from verl.workers.rollout.waiting import PendingReply

from .test_gateway import calls

FOLDER = ROOT / "examples" / "frameworks"
NEEDS = {
    "openai_team:team": ("openai",),
    "langgraph_team:team": ("langgraph", "langchain_openai"),
    "autogen_team:team": ("autogen_agentchat", "autogen_ext.models.openai"),
    "autogen_team:selector_team": ("autogen_agentchat", "autogen_ext.models.openai"),
    "agents_team:team": ("agents.models",),
    "smolagents_team:team": ("smolagents",),
}


def selects(prompt: str, request: Any) -> str:
    if "select the next role" in prompt:
        return "verifier"
    return "\\boxed{4}" if "You solve" in prompt else "<verify>reject</verify>"


# What the engine samples in a team, and the agents of its calls, with texts that the prompts show if the
# framework did its part.
FORCED: dict[str, tuple[Callable[[str, Any], str], list[tuple[str, ...]]]] = {
    "autogen_team:selector_team": (
        selects,
        [
            (VERIFIER, "select the next role"),
            (VERIFIER, "You check"),
            (SOLVER, "<verify>reject"),
            (VERIFIER, "boxed{4}"),
        ],
    ),
    "agents_team:team": (
        hands_over,
        [(SOLVER, '"transfer_to_verifier"'), (VERIFIER, '{"assistant": "Verifier"}')],
    ),
    # an id of the gateway: smolagents looks for calls in the text by itself where it gets none
    "smolagents_team:team": (
        multiplies,
        [
            (SOLVER, '"multiply"'),
            (SOLVER, "[{'id': 'call_", "Observation:\n4"),
            (VERIFIER, "Solver: \\boxed{4}"),
        ],
    ),
}
# Teams with structured answers, as the documentation of their libraries writes them, and the calls of an
# episode.
PACKAGES = (
    "dspy==3.4.1", "pydantic-ai-slim[openai]==2.68.0", "langchain==1.5.2", "langchain-openai==1.7.4",
    "autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5", "openai==3.57.0",
)  # fmt: skip
TEAMS = Path(__file__).with_name("clients") / "teams"
ADDED = [(SOLVER,), (SOLVER, "<tool_response>\n4"), (VERIFIER, "It is 4")]
STRUCTURED: dict[str, list[tuple[str, ...]]] = {
    "pydantic_ai": ADDED,
    "langchain": ADDED,
    "autogen": ADDED,
    "dspy": [(SOLVER, "[[ ## question ## ]]"), (VERIFIER, "It is 4")],
    "ai": [*ADDED[:2], (SOLVER, "It is 4", "Once more."), (VERIFIER, "It is 4")],
}
BASE: dict[str, Any] = {
    "agent.agent_ids": "[Solver Agent,Verifier Agent]",
    "data.max_prompt_length": 512,
    "data.max_response_length": 8,
    "env.rollout.n": 2,
    "data.val_files": "null",
    "trainer.test_freq": 0,
}
VALIDATED: dict[str, Any] = {
    "trainer.test_freq": 2,
    "data.val_max_samples": 1,
    "actor_rollout_ref.rollout.val_kwargs.temperature": 0.0,
    "actor_rollout_ref.actor.optim.lr": 0.05,
}

ROLES = '''
"""The math team, and its roles for programs, with actions that are whole replies: my_world rewards their text."""

from dataclasses import replace

from agent_system.registry import AgentRegistry, OrchestraRegistry
from agent_system.workflows.math.team import SOLVER, VERIFIER, MathOrchestra, SolverAgent, VerifierAgent


class Solver(SolverAgent):
    def project(self, text):
        return replace(super().project(text), action=text)


class Verifier(VerifierAgent):
    def project(self, text):
        return replace(super().project(text), action=text)


OrchestraRegistry.register("my_math")(type("MyMath", (MathOrchestra,), {}))
for orchestra in ("gateway", "my_math"):
    AgentRegistry.register(SOLVER, orchestra=orchestra)(Solver)
    AgentRegistry.register(VERIFIER, orchestra=orchestra)(Verifier)
'''


def check_served(run_dir: Path, program: Callable[..., Any], engine: str = "") -> list[Sample]:
    """The program, as it is, gets from a server what it gets in an episode; returns the calls of the
    episode.
    """
    said: list[Any] = []
    answer = AgentConversations.answer

    def heard(chat: AgentConversations, request: Any, built: Any, replies: Any, name: str) -> Any:
        said.extend((built.prompt.ids, reply.generation.token_ids) for _, reply in replies)
        return answer(chat, request, built, replies, name)

    async def compare(loaded: LoadedTeam) -> list[Sample]:
        task = Task("t", "0?")
        (record,) = (await loaded.collector.collect([task], 1, step=1, validate=True, greedy=True)).episodes
        in_episode, said[:] = list(said), []
        async with (
            listening(loaded, Address(port=0), "", True) as (url, _),
            ServedSession(f"{url}/v1") as session,
        ):
            plain = not inspect.iscoroutinefunction(program)
            try:
                found = await (asyncio.to_thread(program, task, session) if plain else program(task, session))
            except Exception as error:  # of a framework that takes no empty reply
                assert str(error) in str(record.failure)
            else:
                assert (record.failure, record.answer) == (None, found)
        assert said == in_episode != []
        return list(record.samples)

    with (
        pytest.MonkeyPatch.context() as patch,
        loaded_team(str(run_dir), "cpu", Engines(engine, None)) as loaded,
    ):
        patch.setattr(AgentConversations, "answer", heard)
        return asyncio.run(compare(loaded))


def check_validated(run_dir: Path, samples: Sequence[Sample]) -> None:
    """A served team says what it said to the same task in the validation after its training, and not what it
    said before.
    """

    def said(step: int) -> list[tuple[str, str, str]]:
        line, *_ = (run_dir / "trajectories" / f"val_{step:06}.jsonl").read_text().splitlines()
        return [(call["agent_id"], call["prompt"], call["reply"]) for call in json.loads(line)["calls"]]

    assert (
        [(sample.agent_id, sample.request.prompt_text, sample.text) for sample in samples]
        == said(2)
        != said(0)
    )


def check_both_learn(run_dir: Path) -> None:
    steps = [line for line in read_metrics(run_dir) if "actor/lr" in line]
    assert len(steps) == 2
    for group in ("solver_agent", "verifier_agent"):
        assert all(line[f"wg/{group}/actor/grad_norm"] > 0 for line in steps), group


def force(
    patch: pytest.MonkeyPatch, tokenizer: Any, script: Callable[[str, Any], str]
) -> list[tuple[list[int], list[int]]]:
    """The engine samples what the script says to a prompt; returns all prompts and replies.

    Greedy replies are those of a model that has not learned it: "4".
    """
    start, sampled = HFEngine._start, list[tuple[list[int], list[int]]]()

    def started(engine: HFEngine, replies: Sequence[tuple[int, PendingReply]]) -> None:
        start(engine, replies)
        for slot, reply in replies:
            request = reply.ticket.request
            text = (
                script(tokenizer.decode(request.prompt_ids), request) if request.sampling.temperature else "4"
            )
            tokens = tokenizer.encode(text + tokenizer.eos_token, add_special_tokens=False)
            engine._slots._uniforms[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.float64)
            sampled.append((list(request.prompt_ids), tokens))

    def sample(logits: torch.Tensor, uniforms: torch.Tensor, temperature: torch.Tensor, *_: Any) -> Sampled:
        tokens = uniforms.long()
        log_probs = (
            (logits / temperature.unsqueeze(1)).log_softmax(-1).gather(1, tokens.unsqueeze(1)).squeeze(1)
        )
        return Sampled(tokens, log_probs, log_probs.isfinite())

    patch.setattr(HFEngine, "_start", started)
    patch.setattr("verl.workers.rollout.slots.sample", sample)
    return sampled


def check_trained(
    batches: Sequence[Any],
    tokenizer: Any,
    sampled: list[tuple[list[int], list[int]]],
    asked: list[tuple[str, ...]],
) -> None:
    """The batches have every sampled reply, all episodes have the calls `asked`, and each of these has
    advantages that are not 0.
    """
    rows, episodes = [], defaultdict[str, list[tuple[str, str, bool]]](list)
    for batch in batches:
        columns, width = batch.non_tensor_batch, batch.batch["prompts"].shape[1]
        for row, uid, agent in zip(
            batch.batch.unbind(0), columns["traj_uid"], columns["agent_id"], strict=True
        ):
            prompt, trained = (
                row["prompts"][row["attention_mask"][:width].bool()].tolist(),
                row["response_mask"].bool(),
            )
            rows.append((prompt, row["responses"][trained].tolist()))
            episodes[uid].append((agent, tokenizer.decode(prompt), bool(row["advantages"][trained].all())))
    assert sorted(rows) == sorted(sampled)
    assert [len(said) for said in episodes.values()] == [len(asked)] * 4
    for (agent, *shown), same in zip(asked, zip(*episodes.values(), strict=True), strict=True):
        assert all(
            speaker == agent and all(text in prompt for text in shown) for speaker, prompt, _ in same
        ), same
        assert any(moves for *_, moves in same), same


@pytest.mark.parametrize("team", NEEDS)
def test_a_team_of_a_framework_trains_two_policies(
    train: Run,
    tmp_path: Path,
    tiny_model_dir: Path,
    scored: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    team: str,
) -> None:
    for module in NEEDS[team]:
        pytest.importorskip(module)
    model = shutil.copytree(tiny_model_dir, tmp_path / "model")
    (model / "chat_template.jinja").write_text(TEMPLATES["qwen2.5"])  # with tools
    own = {
        "agent.team": f"examples.frameworks.{team}",
        "actor_rollout_ref.model.path": model,
        "data.max_prompt_length": 16384,
    }
    keys = {**BASE, **own, "agent.orchestra_type": "gateway"}
    if team in FORCED:
        (script, asked), tokenizer = FORCED[team], AutoTokenizer.from_pretrained(model)
        sampled = force(
            monkeypatch, tokenizer, lambda prompt, request: f"{script(prompt, None)} {request.seed % 1000}"
        )
        train({**keys, "data.train_batch_size": 1, "data.max_response_length": 112})
        check_trained(scored, tokenizer, sampled, asked)
    else:
        train(keys)
    check_both_learn(tmp_path / "run")
    replies = check_served(tmp_path / "run", load_team(str(own["agent.team"])))
    assert {reply.agent_id for reply in replies} == {SOLVER, VERIFIER}, "also where nothing was handed over"


def in_form(prompt: str, request: Any) -> str:
    """What an able model replies; a number in it makes rewards differ."""
    number = request.seed % 1000
    if "[[ ## " in prompt:
        draft = f"[[ ## draft ## ]]\nIt is 4: {number}\n\n"
        verdict = f"[[ ## ok ## ]]\nTrue\n\n[[ ## note ## ]]\n{number}\n\n"
        return f"{verdict if 'It is 4' in prompt else draft}[[ ## completed ## ]]"
    if "Judge: " in prompt or "You edit." in prompt:
        verdict = {"ok": True, "note": str(number)}
        forms = [name for name in ("final_result", "Verdict") if f'"name": "{name}"' in prompt]
        return calling(forms[0], **verdict) if forms else json.dumps(verdict)
    if "<tool_response>" in prompt:
        return f"It is 4: {number}"
    return f"I add {number}.\n{calling('add', a=2, b=2)}"


@pytest.fixture
def command(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """The command of a team in `TEAMS`, with its packages installed."""
    if not request.config.getoption("--all-levels"):
        pytest.skip("takes minutes to install: needs --all-levels")

    def go(team: str) -> str:
        if team != "ai":
            return json.dumps([python_with(*PACKAGES), str(TEAMS / f"{team}_team.py")])
        folder = shutil.copytree(TEAMS / "ai", tmp_path / "ai")
        install = ["npm", "--prefix", str(folder), "install", "--silent", "--no-audit", "--no-fund"]
        if shutil.which("npm") is None or subprocess.run(install, check=False, timeout=300).returncode:
            pytest.skip("npm cannot install the package ai")
        return json.dumps(["node", str(folder / "team.js")])

    return go


@pytest.mark.timeout(900)
@pytest.mark.parametrize("team", STRUCTURED)
def test_a_team_with_structured_answers_trains_as_it_is_with_free_forms(
    train: Run,
    tmp_path: Path,
    tiny_model_dir: Path,
    scored: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    command: Callable[[str], str],
    team: str,
) -> None:
    model = shutil.copytree(tiny_model_dir, tmp_path / "model")
    (model / "chat_template.jinja").write_text(TEMPLATES["qwen2.5"])
    own = {
        "agent.team": command(team),
        "actor_rollout_ref.model.path": model,
        "gateway.structured": "free",
    }
    lengths = {"data.train_batch_size": 1, "data.max_prompt_length": 16384}
    keys = {**BASE, **own, **lengths, "agent.orchestra_type": "gateway"}
    train({**keys, "gateway.program_error": 0, "trainer.default_local_dir": tmp_path / "untrained"})
    steps = [line for line in read_metrics(tmp_path / "untrained") if "actor/lr" in line]
    assert [(line["episode/failed"], line["gateway/program_errors"]) for line in steps] == [(0, 1)] * 2
    assert all(line["wg/solver_agent/actor/grad_norm"] > 0 for line in steps), (
        "from replies that are in no form"
    )
    scored.clear()
    tokenizer = AutoTokenizer.from_pretrained(model)
    sampled = force(monkeypatch, tokenizer, in_form)
    train({**keys, "data.max_response_length": 150})
    check_trained(scored, tokenizer, sampled, STRUCTURED[team])
    check_both_learn(tmp_path / "run")
    steps = [line for line in read_metrics(tmp_path / "run") if "actor/lr" in line]
    assert [
        (line["episode/failed"], line["gateway/program_errors"], line["gateway/ignored"]) for line in steps
    ] == [(0, 0, 0)] * 2


def test_a_team_in_node_trains_two_policies_and_is_served(train: Run, tmp_path: Path, tasks: str) -> None:
    if shutil.which("npm") is None:
        pytest.skip("needs Node")
    folder = tmp_path / "node"
    shutil.copytree(FOLDER / "node", folder, ignore=shutil.ignore_patterns("node_modules"))
    install = ["npm", "--prefix", folder, "install", "--silent", "--no-audit", "--no-fund"]
    if subprocess.run(install, check=False, timeout=120).returncode:
        pytest.skip("npm cannot install the package openai")
    command = f"node {folder / 'team.js'}"
    train(
        {
            **BASE,
            **VALIDATED,
            "data.val_files": tasks,
            "agent.orchestra_type": "gateway",
            "agent.team": command,
        }
    )
    check_both_learn(tmp_path / "run")
    check_validated(tmp_path / "run", check_served(tmp_path / "run", load_command(command, None)))


@pytest.mark.spread
@pytest.mark.parametrize("engine", ["vllm"])
def test_a_trained_team_is_served_by_another_engine(
    train: Run, tmp_path: Path, wide_heads_model_dir: Path, request: pytest.FixtureRequest, engine: str
) -> None:
    """With the weights of the checkpoint: the log-probs of every token are those of plain transformers."""
    if not request.config.getoption("--all-levels"):
        pytest.skip("starts vLLM, which other tests do: needs --all-levels")
    team = {"agent.orchestra_type": "gateway", "agent.team": "examples.frameworks.openai_team:team"}
    train({**BASE, **team, "actor_rollout_ref.model.path": wide_heads_model_dir})
    samples = check_served(tmp_path / "run", load_team(team["agent.team"]), engine)
    for sample in samples:
        (folder,) = (tmp_path / "run" / "checkpoints" / "global_step_2" / "actor").glob(
            f"{sample.identity.policy_id}/huggingface"
        )
        gaps = [largest_gap([load_exported(model)] * 3, sample) for model in (folder, wide_heads_model_dir)]
        assert gaps[0] < 1e-4 < 1e-3 < gaps[1], gaps


def test_a_langgraph_team_trains_to_the_same_bits_as_the_orchestra(
    train: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in NEEDS["langgraph_team:team"]:
        pytest.importorskip(module)
    (tmp_path / "my_roles.py").write_text(ROLES)
    monkeypatch.syspath_prepend(str(tmp_path))
    # other tests have a Verifier Agent of their own
    monkeypatch.setattr(AgentRegistry, "_entries", dict(AgentRegistry._entries))
    program = {
        "agent.orchestra_type": "gateway",
        "agent.team": "examples.frameworks.langgraph_team:team",
        "gateway.seed_by": "order",
    }
    orchestra = {"agent.orchestra_type": "my_math", "agent.orchestra.my_math.prompt_style": "short"}
    for name, changes in {"program": program, "orchestra": orchestra}.items():
        train(
            {
                **BASE,
                **changes,
                "agent.plugins": "[my_flow_package,my_roles]",
                "trainer.default_local_dir": tmp_path / name,
            }
        )
        check_both_learn(tmp_path / name)
    assert calls(tmp_path / "program") == calls(tmp_path / "orchestra") != []
    assert weights(tmp_path / "program", 2) == weights(tmp_path / "orchestra", 2)


def test_the_files_of_teams_import_nothing_of_this_project() -> None:
    for file in FOLDER.glob("*_team.py"):
        assert not [
            line for line in file.read_text().splitlines() if "agent_system" in line or "verl" in line
        ], file
