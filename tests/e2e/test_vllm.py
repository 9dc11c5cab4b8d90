"""Whole runs that sample with vLLM: both controllers, a shared model and adapters, an engine over two ranks,
one that dies in a step.
"""

import json
import logging
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from agent_system.launch import train as launch
from agent_system.record import Sample
from tests.e2e.conftest import Run, read_metrics
from tests.e2e.teams import check_versions, load_exported
from tests.e2e.test_levels import ADAPTER, policies
from tests.models.families import save_model
from tests.workers.rollout.conftest import engine_processes
from verl.models.loader import load_tokenizer
from verl.protocol import DataProto
from verl.protocol.generate import EngineGoneError
from verl.trainer.config.spec import ConfigError
from verl.workers.rollout.vllm import arguments

pytestmark = [pytest.mark.e2e, pytest.mark.spread, pytest.mark.timeout(1500)]
VLLM = {
    "actor_rollout_ref.rollout.name": "vllm", "data.val_files": "[]", "trainer.val_before_train": False,
    "trainer.save_freq": 1,
}  # fmt: skip
FAULTS = '''
"""A world that kills vLLM's process: before the update of step 1, when the first episodes of step 2 begin, and twice in step 3."""

import functools
import threading
import time

import my_flow_package
from agent_system.environment import Observation
from agent_system.registry import EnvRegistry
from tests.workers.rollout.conftest import engine_processes
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, register_adv_est

updates, hunted = 0, set()


def kill(times):
    while times:
        for process in engine_processes()[:times]:
            times -= 1
            process.kill()
            process.wait(30)
        time.sleep(0.05)


@EnvRegistry.register("deadly_world")
class DeadlyWorld(my_flow_package.MyWorld):
    blocking = False

    def reset(self, task):
        if updates and updates not in hunted:
            hunted.add(updates)
            threading.Thread(target=kill, args=(updates,), daemon=True).start()
        return Observation(task.prompt)


@register_adv_est("counted")
@functools.wraps(compute_grpo_outcome_advantage, assigned=())
def counted(*args, **kwargs):
    global updates
    updates += 1
    if updates == 1:
        kill(1)
    return compute_grpo_outcome_advantage(*args, **kwargs)
'''


@pytest.fixture
def vllm(train: Run, wide_heads_model_dir: Path) -> Iterator[Callable[[dict[str, Any]], Any]]:
    """Train with vLLM; when the run is over none of its processes is there any more."""

    def go(changes: dict[str, Any]) -> Any:
        checked = {"actor_rollout_ref.model.path": wide_heads_model_dir, "trainer.checks": "[engines,memory]"}
        return train(VLLM | checked | changes)

    yield go
    assert not psutil.wait_procs(engine_processes(), timeout=240)[1]


def check_steps(run_dir: Path, moved: set[str], same: str = "") -> list[dict[str, Any]]:
    """Two steps with finite numbers, engine and trainer of one mind, and exactly these policies changed;
    returns the steps.

    `same` is the prefix of the metrics of the policies that are sampled as they are.
    """
    steps = [line for line in read_metrics(run_dir) if "actor/lr" in line]
    assert len(steps) == 2 and all(math.isfinite(value) for line in steps for value in line.values())
    gaps = ("training/rollout_probs_diff_max", "rollout_corr/log_prob_diff_max")
    assert all(line[same + gap] < 1e-5 for line in steps for gap in gaps)
    first, second = policies(run_dir, 1), policies(run_dir, 2)
    assert set(second) == moved and all(first[policy] != second[policy] for policy in second)
    return steps


def test_a_shared_model_without_ray_and_an_engine_that_dies_once_a_step_and_then_twice(
    vllm: Callable[..., Any], tmp_path: Path, deadly: dict[str, Any]
) -> None:
    """In step 1 before the update, which finds it when caches are freed and weights sent; in step 2 while it
    samples.

    In step 3 it dies twice while it samples: the run ends with the last checkpoint.
    """
    with pytest.raises(EngineGoneError, match="engine"):
        vllm(deadly)
    steps = check_steps(tmp_path / "run", {"wide_heads_qwen3"})
    assert [line["training/engine_restarts"] for line in steps] == [1, 2]
    first, second = (line["wg/wide_heads_qwen3/perf/sync_mb"] for line in steps)
    assert second == 2 * first > 0, "weights go to the engine that replaces a dead one as well"
    checkpoints = tmp_path / "run" / "checkpoints"
    assert (checkpoints / "latest_checkpointed_iteration.txt").read_text() == "2"
    assert policies(tmp_path / "run", 3) == {}


@pytest.fixture
def deadly(user_package: Path) -> dict[str, Any]:
    """The changes of a run of three steps whose engine is killed in each, in step 3 twice."""
    (user_package / "deadly_package.py").write_text(FAULTS)
    return {
        "agent.specialization": "prompt",
        "agent.plugins": "[my_flow_package,deadly_package]",
        "env.env_name": "deadly_world",
        "algorithm.adv_estimator": "counted",
        "trainer.total_training_steps": 3,
    }


WORDS = ["yes", "no", "maybe", "never", "always"]
JUDGES = f'''
"""A program whose Verifier replies with a word of a schema."""

import openai

def form(schema):
    return {{"type": "json_schema", "json_schema": {{"name": "verdict", "schema": schema}}}}


async def team(task, session):
    async def say(agent, text, **more):
        messages = [{{"role": "user", "content": text}}]
        return (await create(model=agent, messages=messages, **more)).choices[0].message.content

    create = session.openai().chat.completions.create
    asked = await say("Asker", f"Ask: {{task.prompt}}")
    try:
        await say("Verifier Agent", f"Judge: {{asked}}", response_format=form({{"type": "objekt"}}))
    except openai.BadRequestError as error:
        assert error.param == "response_format" and "no reply can follow this form" in str(error), error
        return await say("Verifier Agent", f"Judge: {{asked}}", response_format=form({{"enum": {WORDS}}}))
'''


@pytest.mark.ray
@pytest.mark.parametrize(("engine", "controller"), [("vllm", "ray"), ("hf", "local")])
def test_adapters_where_replies_of_one_agent_follow_a_schema(
    vllm: Callable[..., Any], tmp_path: Path, user_package: Path, wide_heads_model_dir: Path,
    scored: list[DataProto],
    engine: str, controller: str, request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    if engine == "vllm" and not request.config.getoption("--all-levels"):
        pytest.skip("tests/e2e/test_serve_openai.py has forms with vLLM: needs --all-levels")
    for package in ("openai", "xgrammar"):
        pytest.importorskip(package)
    (user_package / "judges.py").write_text(JUDGES)
    changes = {"agent.orchestra_type": "gateway", "agent.team": "judges:team", "gateway.structured": "mask"}
    changes |= {
        "actor_rollout_ref.rollout.structured_outputs": True,
        "data.max_prompt_length": 200,
        "data.max_response_length": 16,
    }
    changes |= {"actor_rollout_ref.rollout.name": engine, "trainer.controller": controller}
    vllm({"agent.specialization": "lora"} | ADAPTER | changes)
    steps = check_steps(tmp_path / "run", {"asker", "verifier_agent"}, "wg/asker/")
    assert [
        (line["gateway/asker/masked_calls"], line["gateway/verifier_agent/masked_calls"]) for line in steps
    ] == [(0, 6)] * 2
    assert all(0 < line["gateway/verifier_agent/mass_cut_off_mean"] <= 1 for line in steps)
    columns, tensors = scored[0].non_tensor_batch, scored[0].batch
    assert (columns["masked"] == (columns["agent_id"] == "Verifier Agent")).all()
    # adapters begin as 0
    tokenizer, model = (
        load_tokenizer(str(wide_heads_model_dir)),
        load_exported(wide_heads_model_dir),
    )
    cut_off = list[float]()
    for row in np.flatnonzero(columns["masked"]):
        ids, count = (
            tensors["input_ids"][row][tensors["attention_mask"][row].bool()],
            int(tensors["response_mask"][row].sum()),
        )
        reply, sampler = ids[-count:], tensors["rollout_log_probs"][row, :count]
        assert json.loads(tokenizer.decode(reply, skip_special_tokens=True)) in WORDS
        with torch.no_grad():
            log_probs = model(ids[None]).logits[0, -count - 1 : -1].log_softmax(dim=-1)
        masses = [
            float(log_probs[place, allowed(tokenizer, reply[:place])].exp().sum()) for place in range(count)
        ]
        sampled = log_probs.gather(1, reply[:, None])[:, 0]
        assert torch.allclose((sampled - sampler).exp(), torch.tensor(masses), atol=1e-5)
        cut_off += [1 - mass for mass in masses]
    assert steps[0]["gateway/verifier_agent/mass_cut_off_mean"] == pytest.approx(
        sum(cut_off) / len(cut_off), abs=1e-5
    )


def allowed(tokenizer: Any, before: torch.Tensor) -> list[int]:
    """The tokens that may follow the beginning of a word in quotes, each a byte; after the word the one that
    ends a reply.
    """
    text, words = tokenizer.decode(before), [f'"{word}"' for word in WORDS]
    following = {word[len(text)] for word in words if word.startswith(text) and word != text}
    return tokenizer.convert_tokens_to_ids(sorted(following)) or [tokenizer.eos_token_id]


@pytest.mark.ray
def test_an_engine_over_the_devices_of_two_ranks(
    vllm: Callable[..., Any], tmp_path: Path, titles: set[str]
) -> None:
    two = {"trainer.n_gpus_per_node": 2, "actor_rollout_ref.rollout.tensor_model_parallel_size": 2}
    vllm({"agent.specialization": "prompt", "trainer.controller": "ray"} | two)
    check_steps(tmp_path / "run", {"wide_heads_qwen3"})
    assert titles >= {"VLLM::Worker_TP0", "VLLM::Worker_TP1"}, (
        "one process of the model for each rank's device"
    )


def test_it_samples_beside_updates_and_every_token_has_the_version_of_its_weights(
    overrides: Callable[..., list[str]],
    wide_heads_model_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    samples: list[Sample],
) -> None:
    """Replies go on with new weights; the log-prob of each token is that of the checkpoint whose version it
    has.
    """
    changes = VLLM | {"actor_rollout_ref.model.path": wide_heads_model_dir, "agent.specialization": "prompt"}
    changes |= {"async_training.mode": "fully_async", "algorithm.rollout_correction.rollout_is": "token"}
    changes |= {"rollout.max_concurrent_episodes": 3, "data.max_response_length": 96}
    changes |= {"trainer.total_training_steps": 3, "trainer.max_ckpt_to_keep": 0}
    monkeypatch.setattr(sys, "argv", ["main_ppo", *overrides(changes)])
    launch.cli()
    steps = [line for line in read_metrics(tmp_path / "run") if "actor/lr" in line]
    assert len(steps) == 3 and max(line["trainer/staleness"] for line in steps) > 0
    check_versions(tmp_path / "run", wide_heads_model_dir, samples, 1e-5)


PADDED = {
    "actor_rollout_ref.model.use_remove_padding": False,
    "actor_rollout_ref.model.attn_implementation": "eager",
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {}, "gpt_oss": PADDED, "llama-tied": {}, "gemma3_text": {}, "mistral-window": {},
    "granite": {}, "mixtral": {},
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_exact_after_updates_of_all_weights(
    vllm: Callable[..., Any], tmp_path: Path, wide_heads_model_dir: Path, family: str,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """By the check at the start, which changes every tensor, and by the samples of a second step after
    updates that are large.
    """
    if family != "qwen3_moe" and not request.config.getoption("--all-levels"):
        pytest.skip("one engine more: needs --all-levels")
    folder = save_model(family, tmp_path / "model", load_tokenizer(str(wide_heads_model_dir)).save_pretrained)
    with caplog.at_level(logging.INFO):
        vllm({"agent.specialization": "prompt", "actor_rollout_ref.model.path": folder} | FAMILIES[family])
    assert (
        "engines agree with the trainer" in caplog.text and "engine and trainer disagree" not in caplog.text
    )
    steps = [line for line in read_metrics(tmp_path / "run") if "actor/lr" in line]
    assert len(steps) == 2 and all(line["rollout_corr/log_prob_diff_max"] < 1e-4 for line in steps)


@pytest.mark.parametrize(
    ("extension", "fault"),
    [
        ("StaleExtension", "log-probs of the vllm engine differ from the trainer's by"),
        ("EmptyExtension", "the vllm engine cannot sample from the model"),
    ],
)
def test_a_tensor_that_an_update_loses_ends_the_run_before_the_first_episode(
    vllm: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extension: str, fault: str
) -> None:
    monkeypatch.setattr(arguments, "EXTENSION", f"tests.e2e.stale_extension.{extension}")
    with pytest.raises(ConfigError, match=rf"{fault}.* after an update of all weights") as error:
        vllm({"agent.specialization": "prompt"})
    assert "actor_rollout_ref.rollout.name=hf" in str(error.value) and "\n" not in str(error.value)
    assert not list((tmp_path / "run").rglob("train_*.jsonl"))
