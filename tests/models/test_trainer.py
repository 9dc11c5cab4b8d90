"""The trainer on every family: a row's numbers are those of the row alone in plain transformers, in the
layout that it chooses.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from agent_system.launch import command
from tests.conftest import save_tokenizer
from tests.models.families import FAMILIES, make_model, save_model
from tests.workers.engine.builders import (
    gradients,
    largest_difference,
    make_engine,
    make_rows,
    make_value_engine,
    save_value_model,
)
from verl.models.loader import NoTokenizer
from verl.trainer.config import FSDPConfig
from verl.workers.engine import MicroBatchRule
from verl.workers.engine.fsdp_engine import FSDPEngine
from verl.workers.engine.layout_check import LayoutError, training_randomness
from verl.workers.engine.state import load_engine, save_engine, write_hugging_face

TEMPERATURE = 0.8
ROWS = make_rows(7, prompt=36, response=26, seed=2)


def reference(name: str) -> torch.Tensor:
    """Log-probs of the response tokens, of each row alone: eager attention, without padding and cache."""
    result = torch.zeros(ROWS["response_mask"].shape)
    for row in range(len(result)):
        model = make_model(FAMILIES[name].config())
        attention = ROWS["attention_mask"][row].bool()
        ids = ROWS["input_ids"][row][attention][None]
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1] / TEMPERATURE
        picked = logits.log_softmax(-1).gather(-1, ids[0, 1:, None]).squeeze(-1)
        count = int(attention[36:].sum())
        if count:
            result[row, :count] = picked[-count:]
    return result * ROWS["response_mask"]


@pytest.mark.parametrize("name", FAMILIES)
def test_log_probs_are_those_of_each_row_alone(name: str, tmp_path: Path) -> None:
    engine = make_engine(save_model(name, tmp_path))
    expected = reference(name)
    for rule in (
        MicroBatchRule(1_000_000, 1, packed=True),
        MicroBatchRule(None, 1, packed=True),
        MicroBatchRule(100, 1, packed=False),
    ):
        scores = engine.score_all(ROWS, TEMPERATURE, rule).log_probs
        assert (scores - expected).abs().max() < 1e-4, engine.layout


def engine_of(name: str, folder: Path, **options: object) -> FSDPEngine:
    """An engine on a family's model in a folder."""
    return make_engine(save_model(name, folder), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FAMILIES)
def test_an_export_holds_every_tensor_and_gives_the_same_log_probs(name: str, tmp_path: Path) -> None:
    engine = engine_of(name, tmp_path / "model")
    write_hugging_face(engine, tmp_path / "export", NoTokenizer())
    model, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "export", attn_implementation="eager", dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    whole = {name: value for name, value in model.state_dict().items()}
    for key, value in engine.weights():
        assert torch.equal(whole[key], value), key


SOME = ("qwen2_moe", "gemma2", "llama-dynamic", "zamba2", "seed_oss", "deepseek_v3")


@pytest.mark.parametrize("name", SOME)
def test_gradients_are_those_of_rows_run_one_by_one_with_and_without_checkpointing(
    name: str, tmp_path: Path
) -> None:
    folder = save_model(name, tmp_path)
    one_by_one = make_engine(folder, use_remove_padding=False, attn_implementation="eager")
    expected, _ = gradients(one_by_one, ROWS, MicroBatchRule(None, 1, packed=False))
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    for recompute in (False, True):
        engine = make_engine(folder, enable_gradient_checkpointing=recompute)
        assert largest_difference(gradients(engine, ROWS)[0], expected) < 2e-4 * largest


@pytest.mark.parametrize("name", ["seed_oss", "gpt2", "opt", "phimoe"])
def test_nothing_is_drawn_at_random_while_rows_are_scored(name: str, tmp_path: Path) -> None:
    engine = make_engine(save_model(name, tmp_path), enable_gradient_checkpointing=True)
    rule = MicroBatchRule(1_000_000, 1, packed=True)
    first, second = (engine.score_all(ROWS, TEMPERATURE, rule).log_probs for _ in range(2))
    assert torch.equal(first, second)
    assert "training mode" in str(training_randomness(FAMILIES[name].config()))


@pytest.mark.parametrize("name", ["qwen2_moe", "qwen3_next", "deepseek_v3", "zamba2"])
def test_models_whose_layers_have_one_output_train_in_16_bits(name: str, tmp_path: Path) -> None:
    folder = save_model(name, tmp_path)
    exact = (
        make_engine(folder).score_all(ROWS, TEMPERATURE, MicroBatchRule(1_000_000, 1, packed=True)).log_probs
    )
    engine = make_engine(folder, fsdp=FSDPConfig(dtype="bf16"))
    rounded = engine.score_all(ROWS, TEMPERATURE, MicroBatchRule(1_000_000, 1, packed=True)).log_probs
    mask = ROWS["response_mask"].bool()
    assert (rounded - exact)[mask].abs().mean() < 0.2
    assert all(bool(gradient.isfinite().all()) for gradient in gradients(engine, ROWS)[0].values())


def test_a_model_that_cannot_run_in_16_bits_is_refused_by_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        LayoutError, match=r"minimax cannot be run in torch.bfloat16 .*fsdp_config.dtype=fp32"
    ) as refused:
        make_engine(save_model("minimax", tmp_path), fsdp=FSDPConfig(dtype="bf16"))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss", "phi3-longrope", "qwen2"])
def test_values_are_those_of_rows_run_one_by_one(name: str, tmp_path: Path) -> None:
    folder = save_value_model(save_model(name, tmp_path / "model"), tmp_path / "critic")
    one_by_one = make_value_engine(folder, use_remove_padding=False, attn_implementation="eager")
    expected = one_by_one.value_all(ROWS, MicroBatchRule(None, 1, packed=False))
    values = make_value_engine(folder).value_all(ROWS, MicroBatchRule(1_000_000, 1, packed=True))
    assert (values - expected).abs().max() < 1e-4 < expected.std()


@pytest.mark.parametrize("name", ["deepseek_v3", "apertus"])
def test_a_checkpoint_holds_the_buffers_of_a_model(name: str, tmp_path: Path) -> None:
    engine = make_engine(save_model(name, tmp_path / "model"))
    digest = engine.digest()
    save_engine(engine, tmp_path / "checkpoint", None)
    for buffer in engine.buffers.values():
        buffer.add_(1.0)
    assert engine.digest() != digest
    load_engine(engine, tmp_path / "checkpoint")
    assert engine.digest() == digest


def test_the_command_prints_a_table_and_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_model("gemma2", tmp_path, save_tokenizer)
    monkeypatch.setattr(
        sys, "argv", ["verl-mas", "check-model", str(folder), "--max-len", "64", "--lora-rank", "4"]
    )
    command.main()
    printed = capsys.readouterr().out
    for name, verdict in (
        ("trainer", "exact, slower"),
        ("own weights", "exact"),
        ("export", "exact"),
        ("adapters", "exact"),
    ):
        assert re.search(rf"^{name} +{verdict}", printed, re.MULTILINE), printed
    assert "attention by eager" in printed and "verdict: can be trained exactly" in printed
    for name in ("tokenizer", "end of turn", "continuation"):
        assert re.search(rf"^{name} +exact", printed, re.MULTILINE), printed


def test_the_command_ends_with_status_1_for_files_of_another_framework(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_model("qwen3", tmp_path)
    (folder / "model.safetensors").rename(folder / "flax_model.msgpack")
    monkeypatch.setattr(sys, "argv", ["verl-mas", "check-model", str(folder)])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 1
    printed = capsys.readouterr()
    assert "error: model " in printed.err and "weights of Flax" in printed.err and not printed.out
