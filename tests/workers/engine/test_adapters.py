"""Adapters in the training engine: each learns as if it were alone, and nothing else moves."""

import os
import subprocess
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader

from tests.conftest import save_peft_adapter
from tests.workers.engine.adapter_rank_main import RULE, updates_of
from tests.workers.engine.builders import (
    ADAPTERS,
    ONE_PIECE,
    make_adapter_engine,
    make_engine,
    make_rows,
    train_adapter,
)
from verl.models.loader import load_tokenizer
from verl.single_controller.worker import find_free_port
from verl.trainer.config import FSDPConfig
from verl.utils.checkpoint import CheckpointError
from verl.workers.engine import FSDPEngine, update_policy
from verl.workers.engine.state import load_engine, save_engine

ROOT = Path(__file__).parents[3]


def snapshot(engine: FSDPEngine) -> dict[str, torch.Tensor]:
    """Every parameter and all optimizer state, by name."""
    state = {name: value.clone() for name, value in engine.weights()}
    for adapter, trainable in engine.adapters.items():
        for name, parameter in trainable.parameters.items():
            for part, value in trainable.optimizer.state[parameter].items():
                state[f"{part}.policy_{adapter}.{name}"] = (
                    value.full_tensor() if hasattr(value, "full_tensor") else value
                ).clone()
    return state


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    return {name for name, value in after.items() if not torch.equal(before[name], value)}


def log_probs(engine: FSDPEngine, name: str | None) -> torch.Tensor:
    with engine.using(name):
        return engine.score_all(make_rows(5), 0.8, ONE_PIECE).log_probs


def test_an_update_of_one_adapter_leaves_the_base_and_the_others_to_the_last_bit(
    tiny_model_dir: Path,
) -> None:
    engine, plain = make_adapter_engine(tiny_model_dir), make_engine(tiny_model_dir)
    base = log_probs(engine, None)
    assert torch.equal(base, log_probs(plain, None)), "adapters off is the model itself"
    # it has moments and weight decay that a step of another could move
    train_adapter(engine, "verifier", make_rows(6))
    before, other = snapshot(engine), log_probs(engine, "verifier")
    metrics = train_adapter(engine, "solver", make_rows(6, seed=1))
    moved = changed(before, snapshot(engine))
    assert moved and all(".policy_solver." in name for name in moved)
    assert {part for part in ("lora_A", "lora_B", "exp_avg.", "exp_avg_sq", "step.") if any(part in name for name in moved)} == {
        "lora_A", "lora_B", "exp_avg.", "exp_avg_sq", "step."
    }  # fmt: skip
    assert torch.equal(log_probs(engine, "verifier"), other) and torch.equal(log_probs(engine, None), base)
    assert (log_probs(engine, "solver") - base).abs().max() > 1e-3
    assert (engine.adapters["solver"].steps, engine.adapters["verifier"].steps) == (2, 2)
    assert metrics["actor/lr"] == pytest.approx(1e-2, rel=0.01) and metrics["actor/lr"] != 1e-2, (
        "its own schedule"
    )


def test_an_adapter_trains_beside_others_as_it_does_alone(tiny_model_dir: Path) -> None:
    alone, beside = (
        make_adapter_engine(tiny_model_dir, ("solver",)),
        make_adapter_engine(tiny_model_dir, ("verifier", "solver")),
    )
    for seed in range(2):
        train_adapter(beside, "verifier", make_rows(4, seed=9))
        found, expected = (
            train_adapter(engine, "solver", make_rows(6, seed=seed)) for engine in (beside, alone)
        )
        assert found == expected
    weights = dict(alone.weights("solver"))
    assert all(torch.equal(value, weights[name]) for name, value in beside.weights("solver"))
    assert torch.equal(log_probs(alone, "solver"), log_probs(beside, "solver"))


def test_gradient_checkpointing_and_padding_change_nothing(tiny_model_dir: Path) -> None:
    rows, found = make_rows(6), []
    for options in ({}, {"enable_gradient_checkpointing": True}, {"use_remove_padding": False}):
        engine = make_adapter_engine(tiny_model_dir, **options)
        train_adapter(engine, "solver", rows, steps=1)
        found.append(dict(engine.weights("solver")))
    for name, value in found[0].items():
        assert torch.equal(value, found[1][name])
        assert (value - found[2][name]).abs().max() < 1e-6


@pytest.mark.parametrize("base_dtype", ["fp32", "bf16"])
def test_adapters_keep_fp32_weights_and_gradients_under_bf16(tiny_model_dir: Path, base_dtype: str) -> None:
    """The first pass is of the base, when no adapter is on: what FSDP sees then must not decide how gradients
    are reduced.
    """
    exact, rows = make_adapter_engine(tiny_model_dir), make_rows(6)
    engine = make_adapter_engine(tiny_model_dir, fsdp=FSDPConfig(model_dtype=base_dtype, dtype="bf16"))
    log_probs(engine, None)
    for name in ADAPTERS:
        expected = train_adapter(exact, name, rows)
        assert train_adapter(engine, name, rows)["actor/grad_norm"] == pytest.approx(
            expected["actor/grad_norm"], rel=0.05
        )
        for (key, value), (_, reference) in zip(engine.weights(name), exact.weights(name), strict=True):
            assert value.dtype == torch.float32
            assert "lora_A" in key or not torch.equal(value, value.bfloat16().float()), (
                "updates are not rounded"
            )
            assert (value - reference).abs().max() < 0.05


def test_a_run_on_adapters_resumes_to_the_last_bit_and_the_base_is_not_in_the_checkpoint(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    def steps(engine: FSDPEngine, seeds: range) -> None:
        for seed in seeds:
            for name in list(ADAPTERS)[: 1 + seed % 2]:
                train_adapter(engine, name, make_rows(5, seed=seed), steps=1)

    whole, resumed = make_adapter_engine(tiny_model_dir), make_adapter_engine(tiny_model_dir)
    steps(whole, range(3))
    save_engine(whole, tmp_path / "saved", load_tokenizer(str(tiny_model_dir)))
    train_adapter(resumed, "verifier", make_rows(3))
    load_engine(resumed, tmp_path / "saved")
    assert [a.steps for a in resumed.adapters.values()] == [3, 1]
    for engine in (whole, resumed):
        steps(engine, range(3, 5))
    assert not changed(snapshot(whole), snapshot(resumed))
    stored = FileSystemReader(tmp_path / "saved" / "shards").read_metadata().state_dict_metadata
    assert stored and all(".policy_solver." in name or ".policy_verifier." in name for name in stored)
    assert sorted(p.name for p in (tmp_path / "saved" / "huggingface").iterdir()) == ["solver", "verifier"]


def test_plain_peft_gives_the_same_log_probs(tiny_model_dir: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    engine, rows = make_adapter_engine(tiny_model_dir), make_rows(5)
    for name in ADAPTERS:
        train_adapter(engine, name, rows, steps=3)
    save_engine(engine, tmp_path / "saved", load_tokenizer(str(tiny_model_dir)))
    for name in ADAPTERS:
        folder = tmp_path / "saved" / "huggingface" / name
        AutoTokenizer.from_pretrained(folder)
        plain = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32), folder
        )
        with torch.no_grad():
            logits = plain(
                input_ids=rows["input_ids"],
                attention_mask=rows["attention_mask"],
                position_ids=rows["position_ids"],
            ).logits
        expected = (
            torch.log_softmax(logits[:, 6:-1] / 0.8, -1).gather(-1, rows["responses"][..., None])[..., 0]
            * rows["response_mask"]
        )
        assert (log_probs(engine, name) - expected).abs().max() < 1e-5


def test_a_checkpoint_of_other_adapters_is_refused(tiny_model_dir: Path, tmp_path: Path) -> None:
    save_engine(make_adapter_engine(tiny_model_dir, ("solver",)), tmp_path / "saved", None)
    with pytest.raises(CheckpointError, match=r"is of the adapters \['solver'\]; first differing"):
        load_engine(make_adapter_engine(tiny_model_dir, ("verifier",)), tmp_path / "saved")


def test_only_adapters_that_exist_can_be_used_and_only_they_are_trained(tiny_model_dir: Path) -> None:
    engine = make_adapter_engine(tiny_model_dir)
    with (
        pytest.raises(
            ValueError, match=r"no adapter 'planner' in this engine; it has \['solver', 'verifier'\]"
        ),
        engine.using("planner"),
    ):
        pass
    with pytest.raises(RuntimeError, match="cannot be trained"), engine.training():
        pass
    with pytest.raises(ZeroDivisionError), engine.using("solver"):
        raise ZeroDivisionError
    assert torch.equal(log_probs(engine, None), log_probs(make_engine(tiny_model_dir), None))


def test_two_gloo_ranks_with_uneven_rows_of_each_adapter_equal_one(
    tiny_model_dir: Path, tmp_path: Path, forked_python: str
) -> None:
    """Rank 1 has five rows of the solver and rank 0 one; of the verifier rank 1 has none at all. They train
    one after the other, and then together. The solver starts from PEFT's folder.
    """
    settings = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "init_lora_weights": True}
    start = save_peft_adapter(tiny_model_dir, tmp_path / "start", **settings)
    rows = {"solver": make_rows(7), "verifier": make_rows(4, seed=3)}
    nothing = {name: value[:0] for name, value in rows["solver"].items()}
    parts = [
        {"solver": {name: value[:1] for name, value in rows["solver"].items()}, "verifier": rows["verifier"]},
        {"solver": {name: value[1:] for name, value in rows["solver"].items()}, "verifier": nothing},
    ]
    for rank, part in enumerate(parts):
        torch.save(part, tmp_path / f"rows_{rank}.pt")
    base = os.environ | {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(find_free_port()),
        "PYTHONPATH": str(ROOT),
    }
    command = [
        forked_python,
        "-m",
        "tests.workers.engine.adapter_rank_main",
        str(tmp_path),
        str(tiny_model_dir),
    ]
    ranks = [subprocess.Popen(command, env=base | {"RANK": str(rank)}, cwd=ROOT) for rank in range(2)]
    try:
        assert [process.wait(timeout=200) for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
    one, found = (
        make_adapter_engine(tiny_model_dir, start=start),
        torch.load(tmp_path / "found.pt", weights_only=True),
    )
    reference = one.score_all(rows["solver"], 0.8, ONE_PIECE).log_probs
    assert (found["reference"] - reference[:1]).abs().max() < 1e-6
    for name in ADAPTERS:
        assert found["metrics"][name] == pytest.approx(train_adapter(one, name, rows[name]), abs=1e-5)
        for key, value in one.weights(name):
            assert (found["weights"][name][key] - value).abs().max() < 1e-6
    for name, update in updates_of(rows).items():
        with one.using(name):
            alone = update_policy(one, update.config, update.rows, update.plan, RULE)
        # Ranks that have rows of several adapters cut micro-batches elsewhere.
        together = {key: found["together"][name][key] for key in alone if not key.endswith("_tokens")}
        assert together == pytest.approx({key: alone[key] for key in together}, abs=1e-5)
        for key, value in one.weights(name):
            assert (found["after"][name][key] - value).abs().max() < 2e-6
    load_engine(resumed := make_adapter_engine(tiny_model_dir), tmp_path / "checkpoint")
    assert all(
        torch.equal(value, found["weights"][name][key])
        for name in ADAPTERS
        for key, value in resumed.weights(name)
    )
