"""The trainer on every family: a row's numbers are those of the row alone in plain transformers, in the layout that it chooses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.models.families import FAMILIES, make_model, save_model
from tests.workers.engine.builders import make_engine, make_rows
from verl.models.loader import NoTokenizer
from verl.workers.engine import MicroBatchRule
from verl.workers.engine.fsdp_engine import FSDPEngine
from verl.workers.engine.state import write_hugging_face

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
    for rule in (MicroBatchRule(1_000_000, 1, packed=True), MicroBatchRule(None, 1, packed=True), MicroBatchRule(100, 1, packed=False)):
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
