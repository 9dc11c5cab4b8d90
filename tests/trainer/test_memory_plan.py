"""A run knows its memory before it starts, and chooses what fits."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from tests.models.families import FAMILIES
from tests.plans import plan_of
from verl.models.loader import CAUSAL_LM
from verl.models.tiny import TinyModelSize, make_tiny_model
from verl.trainer import memory_plan, model_checks
from verl.trainer.config import RunConfig
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.command_line import compose_config
from verl.trainer.plan.derived_values import resolve_defaults
from verl.workers.engine import activation_memory
from verl.workers.engine.activation_memory import Shape, TrainingMemory
from verl.workers.engine.layout import RowLayout
from verl.workers.engine.micro_batch import MOST_TOKENS

PACKED = RowLayout(form="packed", attention="sdpa", limits=())
MIB = 2**20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(
        make_tiny_model(
            tmp_path_factory.mktemp("model") / "m", ["a few words"], size=TinyModelSize(num_layers=7)
        )
    )


def counted(path: str, *, checkpointing: bool = False) -> TrainingMemory:
    return TrainingMemory(
        path,
        CAUSAL_LM,
        PACKED,
        dtype=torch.float32,
        adapters={},
        checkpointing=checkpointing,
        trust_remote_code=False,
    )


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("rows", [1, 16])
def test_layers_that_are_left_out_are_added_exactly(
    model: str, rows: int, checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = Shape(rows, 24, 8)
    some = counted(model, checkpointing=checkpointing).of_pass(shape)
    monkeypatch.setattr(activation_memory, "COUNTED_LAYERS", 99)
    assert some == counted(model, checkpointing=checkpointing).of_pass(shape)


def test_a_pass_grows_with_its_rows_and_shrinks_with_checkpointing(model: str) -> None:
    plain = counted(model)
    assert plain.of_pass(Shape(32, 24, 8)) > 3 * plain.of_pass(Shape(8, 24, 8))
    assert counted(model, checkpointing=True).of_pass(Shape(32, 24, 8)) < plain.of_pass(Shape(32, 24, 8)) / 2


@pytest.mark.parametrize("coefficient", [0.0, 0.01])
def test_an_entropy_bonus_of_an_adapter_counts_the_logits_that_it_keeps(
    tmp_path: Path, coefficient: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = FAMILIES["llama"].config()
    config.vocab_size = 20_000
    config.save_pretrained(tmp_path)
    run = RunConfig()
    resolved = run.actor_rollout_ref
    resolved.model.path = str(tmp_path)
    resolved.model.lora_rank = 4
    resolved.model.target_modules = ["q_proj"]
    run.agent.specialization = "lora"
    resolved.actor.entropy_coeff = coefficient
    plan = plan_of(run)
    model_checks.adapter_sizes(plan)  # as before every run: it probes the layers
    (group,) = plan.groups
    counts = memory_plan._Model(plan, group, "cpu")._training(False)
    shape = Shape(16, 24, 32)
    without = counts.of_pass(shape)
    monkeypatch.setattr(counts, "_entropy_gradient", True)
    counts._passes.clear()
    kept = 16 * 32 * config.vocab_size * 4
    more = counts.of_pass(shape) - without
    assert more == 0 if coefficient else more > kept / 2


def planned(model: str, free: int, monkeypatch: pytest.MonkeyPatch, *keys: str) -> RunConfig:
    monkeypatch.setattr(memory_plan, "free_memory", lambda: free)
    monkeypatch.setattr(memory_plan, "SHARE", 1.0)
    monkeypatch.setattr(memory_plan, "_processes", lambda trainer, plan: 0)
    process = type("Process", (), {"memory_info": lambda self: type("Memory", (), {"rss": 0})()})
    monkeypatch.setattr(memory_plan.psutil, "Process", process)
    config = compose_config(
        [f"actor_rollout_ref.model.path={model}", "trainer.controller=local", "trainer.device=cpu", *keys]
    )
    resolve_defaults(config)
    plan = plan_of(config)
    memory_plan.plan_memory(config, plan, "cpu")
    assert all(group.config.actor.ppo_max_token_len_per_gpu for group in plan.groups)
    return config


def test_with_enough_memory_budgets_are_the_largest_and_nothing_is_recomputed(
    model: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    usual = planned(model, 100 * 2**30, monkeypatch).actor_rollout_ref.actor.ppo_max_token_len_per_gpu
    assert 2048 <= usual < 16384, "a micro-batch takes at most a GiB"
    caplog.clear()
    monkeypatch.setattr(memory_plan, "PASS_BYTES", 10**12)
    own = planned(model, 100 * 2**30, monkeypatch).actor_rollout_ref
    assert (own.actor.ppo_max_token_len_per_gpu, own.rollout.log_prob_max_token_len_per_gpu) == (16384, 32768)
    assert own.model.enable_gradient_checkpointing is False
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("memory:")]
    assert len(lines) == 1
    assert "a micro-batch" in lines[0]


def test_with_less_memory_micro_batches_are_smaller_and_then_recomputed(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = (
        "data.max_prompt_length=48",
        "data.max_response_length=16",
        "actor_rollout_ref.rollout.max_num_seqs=2",
    )
    most = planned(model, 10**12, monkeypatch, *lengths).actor_rollout_ref
    less = planned(model, 120 * MIB, monkeypatch, *lengths).actor_rollout_ref
    assert 64 <= less.actor.ppo_max_token_len_per_gpu < most.actor.ppo_max_token_len_per_gpu
    assert less.rollout.log_prob_max_token_len_per_gpu == less.actor.ppo_max_token_len_per_gpu
    long = (
        "data.max_prompt_length=900",
        "data.max_response_length=100",
        "actor_rollout_ref.rollout.max_num_seqs=2",
    )
    recomputed = planned(model, 90 * MIB, monkeypatch, *long).actor_rollout_ref
    assert recomputed.model.enable_gradient_checkpointing is True


def test_slots_that_are_not_set_are_fewer_where_their_cache_does_not_fit(
    model: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lengths = ("data.max_prompt_length=900", "data.max_response_length=100")
    assert planned(model, 10**12, monkeypatch, *lengths).actor_rollout_ref.rollout.max_num_seqs == 64
    caplog.set_level(logging.INFO)
    own = planned(model, 110 * MIB, monkeypatch, *lengths).actor_rollout_ref
    slots = own.rollout.max_num_seqs
    assert slots in (2, 4, 8, 16, 32)
    assert f", {slots} replies at once" in caplog.text
    with pytest.raises(ConfigError, match=r"these would do: .*max_num_seqs=8"):
        planned(model, 110 * MIB, monkeypatch, *lengths, "actor_rollout_ref.rollout.max_num_seqs=64")


def test_what_cannot_fit_is_refused_with_keys_and_figures(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError) as error:
        planned(model, 300 * MIB, monkeypatch, "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384")
    message = str(error.value)  # another policy holds the rest of the 0.29 GiB
    assert (
        "GiB and can have 0.27 GiB; these would do: actor_rollout_ref.actor.ppo_max_token_len_per_gpu=1024 ("
        in message
    )
    assert "\n" not in message
    with pytest.raises(
        ConfigError,
        match=r"use a smaller model, or a machine with more memory \(trainer.checks=\[engines\] starts\)",
    ):
        planned(model, 5 * MIB, monkeypatch)


@pytest.mark.parametrize(("driver", "free", "fits"), [(3.0, 20.0, True), (0.4, 7.0, True), (0.4, 3.0, False)])
def test_workers_are_counted_as_new_processes_and_a_refusal_names_their_number(
    model: str, driver: float, free: float, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver with gigabytes of its own, such as a notebook, starts workers that hold none of them."""
    monkeypatch.setattr(memory_plan, "free_memory", lambda: int(free * 2**30))
    monkeypatch.setattr(memory_plan, "_processes", lambda trainer, plan: 13)
    memory = type("Memory", (), {"rss": int(driver * 2**30)})
    process = type("Process", (), {"memory_info": lambda self: memory})
    monkeypatch.setattr(memory_plan.psutil, "Process", process)
    config = compose_config([f"actor_rollout_ref.model.path={model}", "trainer.device=cpu"])
    resolve_defaults(config)
    plan = plan_of(config)
    if fits:
        memory_plan.plan_memory(config, plan, "cpu")
    else:
        with pytest.raises(
            ConfigError, match=r"^13 processes take 5\.20 GiB .* can have 3\.06; use fewer ranks"
        ):
            memory_plan.plan_memory(config, plan, "cpu")


@pytest.mark.parametrize("name", sorted(FAMILIES)[::9])
def test_a_model_of_any_family_is_counted_or_a_line_says_that_it_is_not(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Some operations, such as products of an expert's rows in fp32, have no form without numbers."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(memory_plan, "PASS_BYTES", 10**12)
    FAMILIES[name].config().save_pretrained(tmp_path)
    lengths = (
        "data.max_prompt_length=8",
        "data.max_response_length=8",
        "actor_rollout_ref.rollout.max_num_seqs=2",
    )
    own = planned(str(tmp_path), 10**12, monkeypatch, *lengths).actor_rollout_ref
    assert own.actor.ppo_max_token_len_per_gpu == MOST_TOKENS
    lines = {record.getMessage().split(":")[0] for record in caplog.records if "emory" in record.getMessage()}
    assert lines == {"memory"}


@pytest.mark.parametrize(
    ("device", "keys"),
    [
        ("cuda", ("trainer.controller=local",)),
        ("cpu", ("ray_init.address=10.0.0.1:6379",)),
        ("cpu", ("trainer.controller=local", "trainer.checks=[engines]")),
    ],
)
def test_memory_that_the_driver_does_not_see_is_not_counted_and_refuses_nothing(
    model: str,
    device: str,
    keys: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The GPU, which the driver may not have, and other nodes of a cluster."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(memory_plan, "free_memory", lambda: 0)
    config = compose_config([f"actor_rollout_ref.model.path={model}", f"trainer.device={device}", *keys])
    resolve_defaults(config)
    plan = plan_of(config)
    memory_plan.plan_memory(config, plan, device)
    assert all(group.config.actor.ppo_max_token_len_per_gpu == MOST_TOKENS for group in plan.groups)
    assert "memory: not counted (" in caplog.text
