"""Placements of a team of two, and what the engines of a run say of its policies before they are let go."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from agent_system.record import Sample
from verl.protocol.generate import GenerateRequest, Generation, RolloutClient, SamplingParams
from verl.trainer.plan.learners import by_group
from verl.trainer.ppo.engines import TeamEngines
from verl.trainer.ppo.team import TeamWorkers

ASKER, VERIFIER = "Asker", "Verifier Agent"
ADAPTER = {"actor_rollout_ref.model.lora_rank": 4, "actor_rollout_ref.actor.optim.lr": 0.01}
KL = {"actor_rollout_ref.actor.kl_loss_coef": 0.001, "algorithm.kl_ctrl.kl_coef": 0.001}
PROMPT = (40, 41, 42, 43, 44)


@dataclass(frozen=True)
class Level:
    """A placement.

    Attributes:
        changes: overrides that ask for it; `{qwen}` and `{llama}` stand for the folders of two models.
        policy_of: the policy of each agent.
        frozen: policies that must stay as their model is.
    """

    changes: dict[str, Any]
    policy_of: dict[str, str]
    frozen: tuple[str, ...] = ()

    @property
    def trained(self) -> set[str]:
        """The policies that must move."""
        return set(self.policy_of.values()) - set(self.frozen)


OWN = {ASKER: "asker", VERIFIER: "verifier_agent"}
LEVELS: dict[str, Level] = {
    "L0": Level({"agent.orchestra_type": "alone", "agent.agent_ids": "[Asker]"}, {ASKER: "asker"}),
    "L1": Level({"agent.specialization": "prompt"}, {ASKER: "tiny_qwen3", VERIFIER: "tiny_qwen3"}),
    "L2": Level({"agent.specialization": "lora"} | ADAPTER, OWN),
    "L2_shared": Level(
        {"agent.specialization": "lora", "agent.adapter_ids": "[Both,Both]"} | ADAPTER,
        {ASKER: "both", VERIFIER: "both"},
    ),
    "L2_critic": Level({"agent.specialization": "lora", "algorithm.adv_estimator": "gae"} | ADAPTER, OWN),
    "mixed": Level({"agent.specialization": "[lora,full]"} | ADAPTER, OWN),
    "L3": Level({"agent.specialization": "full"}, OWN),
    "frozen": Level({"agent.frozen": "[Verifier Agent]"}, OWN, frozen=("verifier_agent",)),
    "frozen_base": Level(
        {"agent.specialization": "lora", "agent.frozen": "[verifier_agent]"} | ADAPTER,
        {ASKER: "asker", VERIFIER: "tiny_qwen3_lora"},
        ("tiny_qwen3_lora",),
    ),
    "heterogeneous": Level({"agent.model_ids": "[{qwen},{llama}]"}, OWN),
    "heterogeneous_lora": Level(
        {"agent.model_ids": "[{qwen},{llama}]", "agent.specialization": "lora"} | ADAPTER, OWN
    ),
}


def changes_of(level: Level, qwen: Path, llama: Path) -> dict[str, Any]:
    """The overrides of a level on two models."""
    return {
        k: v.format(qwen=qwen, llama=llama) if isinstance(v, str) else v for k, v in level.changes.items()
    }


@contextmanager
def asked_at_the_end() -> Iterator[dict[str, Generation]]:
    """What each policy's engine says to `PROMPT` when a run in this block is over, by `policy_id`; adapters
    and bases apart.
    """
    said: dict[str, Generation] = {}
    shutdown = TeamWorkers.shutdown

    async def ask_all(team: TeamWorkers) -> None:
        for row in team.plan.agents:
            said[row.policy_id] = await ask(team.engines.clients[row.wg_id], row.adapter)

    def first_ask(team: TeamWorkers) -> None:
        asyncio.run(ask_all(team))
        shutdown(team)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TeamWorkers, "shutdown", first_ask)
        yield said


async def ask(client: RolloutClient, adapter: str | None) -> Generation:
    """What an engine says to `PROMPT`."""
    (said,) = await client.generate(
        GenerateRequest(PROMPT, SamplingParams(max_tokens=12), adapter=adapter, seed=5)
    )
    return said


@contextmanager
def compared_after_every_transfer() -> Iterator[list[tuple[str, int]]]:
    """After each transfer of weights its engine says what the trainer's weights say, and with other adapters
    to the last bit what it said.

    Yields the policies that were sent, with their versions. For runs in this process that do not pack rows.
    """
    sent: list[tuple[str, int]] = []
    publish = TeamEngines._publish

    def compared(engines: TeamEngines, wg_id: str, policies: Collection[str]) -> None:
        def said(policy: str) -> Generation:
            return asyncio.run(ask(engines._client(wg_id), engines._learners[policy].adapter))

        # none before the first
        known = (
            by_group(engines._learners, engines._learners)[wg_id] if any(engines._versions.values()) else []
        )
        before = {policy: said(policy) for policy in known}
        publish(engines, wg_id, policies)
        assert all(said(policy) == before[policy] for policy in known if policy not in policies)
        worker: Any = engines._policies[wg_id].worker
        for policy in policies:
            now = said(policy)
            with worker.engine.using(engines._learners[policy].adapter):
                assert now.log_probs == pytest.approx(log_probs(worker.engine.model, now), abs=1e-5)
            assert policy not in before or now.log_probs != pytest.approx(
                before[policy].log_probs, abs=1e-3
            ), "the update moved it"
            sent.append((policy, now.version))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TeamEngines, "_publish", compared)
        yield sent


def log_probs(model: Any, generation: Generation) -> list[float]:
    """What a plain model makes of a reply to `PROMPT`."""
    ids = torch.tensor([[*PROMPT, *generation.token_ids]])
    with torch.no_grad():
        scores = model(input_ids=ids).logits[0, len(PROMPT) - 1 : -1].log_softmax(dim=-1)
    return scores.gather(1, torch.tensor(generation.token_ids)[:, None])[:, 0].tolist()


def load_exported(folder: Path) -> Any:
    """A policy's folder, by plain transformers or plain peft."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    if not (folder / "adapter_config.json").is_file():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    base = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), folder)


def policies(run_dir: Path, step: int) -> dict[str, bytes]:
    """Weights of every policy in a checkpoint, as Hugging Face and PEFT read them."""
    actor = run_dir / "checkpoints" / f"global_step_{step}" / "actor"
    files = sorted(actor.glob("*/huggingface/model.safetensors")) + sorted(
        actor.glob("*/huggingface/*/adapter_model.safetensors")
    )
    return {
        (f.parent.parent if f.name == "model.safetensors" else f.parent).name: f.read_bytes() for f in files
    }


def without_copies(run_dir: Path, step: int) -> Path:
    """A copy of a run's checkpoint that has no Hugging Face folders, away from the run."""
    moved = run_dir.with_name("moved") / f"global_step_{step}"
    shutil.copytree(
        run_dir / "checkpoints" / f"global_step_{step}", moved, ignore=shutil.ignore_patterns("huggingface")
    )
    return moved


def largest_gap(models: Sequence[Any], sample: Sample) -> float:
    """Between the log-probs of a reply and those of a plain model of the version of each token."""
    ids, first, gaps = (
        torch.tensor([[*sample.request.prompt_ids, *sample.generation.token_ids]]),
        len(sample.request.prompt_ids),
        [0.0],
    )
    given = torch.tensor(sample.generation.log_probs)
    for version, count in sample.generation.spans:
        with torch.no_grad():
            scores = models[version](ids).logits[0, first - 1 : first - 1 + count].log_softmax(dim=-1)
        begin = first - len(sample.request.prompt_ids)
        expected = scores.gather(1, ids[0, first : first + count, None])[:, 0]
        gaps.append(float((expected - given[begin : begin + count]).abs().max()))
        first += count
    return max(gaps)


def check_versions(run_dir: Path, model: Path, samples: list[Sample], bar: float) -> None:
    """Replies went on with new weights; each token has the log-prob of the checkpoint of its version. For
    runs that keep all of them.
    """
    assert any(len(sample.generation.spans) > 1 for sample in samples)
    steps = range(1, max(sample.generation.version for sample in samples) + 1)
    saved = [
        next((run_dir / "checkpoints").glob(f"global_step_{step}/actor/*/huggingface")) for step in steps
    ]
    models = [load_exported(folder) for folder in (model, *saved)]
    assert max(largest_gap(models, sample) for sample in samples) < bar
    assert any(largest_gap(models[::-1], sample) > 1e-3 for sample in samples), "the versions differ"
