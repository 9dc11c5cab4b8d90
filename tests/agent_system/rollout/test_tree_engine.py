"""A tree on the real engine: the same seeds give the same batch under any load, and no prompt is computed
twice.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest
import torch

from agent_system import Outcome, Projection, Task
from agent_system.rollout import AgentBinding, Collector, CollectorSettings, CollectResult, EnvFactory
from agent_system.workflows.plan_path import (
    EXECUTOR,
    TOOL,
    PlanPathEnv,
    PlanPathEnvOptions,
    PlanPathExecutorAgent,
    PlanPathOptions,
    PlanPathProposerAgent,
)
from agent_system.workflows.plan_path.team import PlanPathOrchestra
from agent_system.workflows.plan_path.world.generate import generate
from tests.workers.rollout.conftest import tiny_model
from verl.protocol.generate import SamplingParams
from verl.trainer.config.reward import RewardConfig
from verl.trainer.config.run import TreeConfig
from verl.workers.rollout.hf_engine import HFEngine

K = 4
SHORT = PlanPathOptions(prompt_style="short")


def letters(text: str) -> Projection:
    """A random model walks when every letter of a move counts."""
    moves = "".join(c for c in text.upper() if c in "UDLR")[:4]
    return Projection(moves, bool(moves), text=moves)


class Tool(PlanPathProposerAgent):
    def project(self, text: str) -> Projection:
        return letters(text)


class Executor(PlanPathExecutorAgent):
    def project(self, text: str) -> Projection:
        return letters(text)


class Slow(PlanPathEnv):
    """Acts in threads, each time as fast as it likes."""

    blocking = True

    def act(self, agent_id: str, action: str) -> Outcome:
        time.sleep(random.random() * 0.003)
        return super().act(agent_id, action)


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.set_num_threads(1)
    return tiny_model()


@pytest.fixture
def collect(model: torch.nn.Module, tokenizer: Any) -> Any:
    def run(
        slots: int, concurrent: int, env: type[PlanPathEnv] = PlanPathEnv
    ) -> tuple[CollectResult, HFEngine]:
        engine = HFEngine(model, max_num_seqs=slots, max_model_len=512)
        # replies of a call end at different times
        sampling = SamplingParams(24, stop_token_ids=tuple(range(12)))
        agents = {TOOL: Tool(config=SHORT), EXECUTOR: Executor(config=SHORT)}
        bindings = {
            name: AgentBinding(name, "p", "wg", engine, tokenizer, sampling, sampling, 480) for name in agents
        }
        settings = CollectorSettings(
            max_steps=2, max_failure_rate=0.0, max_concurrent_episodes=concurrent,
            reward=RewardConfig(team_scope="call"),
            tree=TreeConfig(k=K, select="softmax"),
        )  # fmt: skip
        factory = EnvFactory(env, PlanPathEnvOptions(view="compact"))
        tasks = [
            Task(str(i), grid.text, "d", None, {"map": grid.text}) for i, grid in enumerate(generate(3, 0))
        ]
        collector = Collector(PlanPathOrchestra(SHORT), agents, factory, bindings, settings)
        return asyncio.run(collector.collect(tasks, 2, step=1)), engine

    return run


def test_slots_concurrency_and_speed_of_the_world_change_no_bit_of_the_batch(collect) -> None:
    expected, _ = collect(16, 1)
    assert len({s.action for e in expected.episodes for s in e.samples}) > 4
    assert expected.metrics["tree/signal_rate"] > 0.5
    for slots, concurrent, env in ((3, 6, PlanPathEnv), (5, 4, Slow), (32, 6, Slow)):
        found, _ = collect(slots, concurrent, env)
        assert [e.to_json() for e in found.episodes] == [e.to_json() for e in expected.episodes]
        for key, tensor in expected.batch.batch.items():
            assert torch.equal(tensor, found.batch.batch[key]), key
        for key, column in expected.batch.non_tensor_batch.items():
            assert list(column) == list(found.batch.non_tensor_batch[key]), key


def test_however_many_candidates_a_call_has_its_prompt_is_computed_once(collect) -> None:
    for slots in (2, 64):
        result, engine = collect(slots, 6)
        prompts = [s.request.prompt_ids for e in result.episodes for s in e.committed]
        stats = engine.stats()
        assert sum(map(len, set(prompts))) <= stats["prompt_tokens_computed"] <= sum(map(len, prompts))
        assert stats["prompt_tokens_computed"] + stats["prompt_tokens_copied"] == K * sum(map(len, prompts))
        assert stats["requests"] == len(prompts)
