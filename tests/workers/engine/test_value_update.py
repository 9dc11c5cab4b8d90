"""Values and the gradients of the value loss do not depend on how rows are cut or packed; a critic's
checkpoint is whole.
"""

from pathlib import Path

import pytest
import torch

from tests.workers.engine.builders import (
    ONE_PIECE,
    largest_difference,
    make_rows,
    make_value_engine,
    save_value_model,
    value_gradients,
)
from verl.models.loader import load_tokenizer
from verl.trainer.config import CriticConfig, FSDPConfig, OptimConfig
from verl.trainer.ppo.core_algos.aggregation import LOSS_AGG_MODES
from verl.utils.checkpoint import CheckpointError
from verl.workers.engine import FSDPEngine, MicroBatchRule, StepPlan, update_values
from verl.workers.engine.state import load_engine, save_engine


@pytest.fixture(scope="module")
def value_model(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_value_model(tiny_model_dir, tmp_path_factory.mktemp("critic") / "model")


def plain_model(folder: Path) -> torch.nn.Module:
    from transformers import AutoModelForTokenClassification

    model = AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32).eval()
    assert model.config.num_labels == 1
    return model


def test_the_value_of_a_token_is_read_at_the_position_before_it(value_model: Path) -> None:
    rows = make_rows(9)
    packed = make_value_engine(value_model).value_all(rows, ONE_PIECE)
    padded = make_value_engine(value_model, use_remove_padding=False).value_all(
        rows, MicroBatchRule(40, 1, packed=False)
    )
    assert (packed - padded).abs().max() < 1e-5
    assert torch.equal(packed != 0, rows["response_mask"].bool())
    plain = plain_model(value_model)
    for i in range(8):
        ids = rows["input_ids"][i][rows["attention_mask"][i].bool()][None]
        with torch.no_grad():
            before = plain(ids).logits[0, :-1, 0]
        length = int(rows["attention_mask"][i, 7:].sum())
        expected = torch.nn.functional.pad(before[-length:], (0, 6 - length)) * rows["response_mask"][i]
        assert (packed[i] - expected).abs().max() < 1e-5


@pytest.mark.parametrize("mode", LOSS_AGG_MODES)
def test_gradient_is_the_same_however_rows_are_cut_and_padded(value_model: Path, mode: str) -> None:
    rows = make_rows(9)
    whole, metrics = value_gradients(make_value_engine(value_model), rows, mode=mode)
    scale = max(1.0, *(float(g.abs().max()) for g in whole.values()))
    for packed, budget, count in ((True, 25, 1), (True, None, 2), (False, 30, 1), (False, None, 9)):
        engine = make_value_engine(value_model, use_remove_padding=packed)
        cut, cut_metrics = value_gradients(engine, rows, MicroBatchRule(budget, count, packed), mode)
        assert largest_difference(whole, cut) < 1e-6 * scale
        assert metrics == pytest.approx(cut_metrics, rel=1e-5, abs=1e-5)


def test_gradient_equals_that_of_the_loss_written_by_hand(value_model: Path) -> None:
    rows = make_rows(5)
    found, metrics = value_gradients(make_value_engine(value_model, enable_gradient_checkpointing=True), rows)
    model = plain_model(value_model)
    inputs = {name: rows[name] for name in ("input_ids", "attention_mask", "position_ids")}
    values, mask = model(**inputs).logits[:, 6:-1, 0], rows["response_mask"]
    near = rows["values"] + (values - rows["values"]).clamp(-0.5, 0.5)
    errors = torch.maximum((values - rows["returns"]) ** 2, (near - rows["returns"]) ** 2)
    loss = 0.5 * (errors * mask).sum() / mask.sum()
    loss.backward()
    assert largest_difference(found, {name: p.grad for name, p in model.named_parameters()}) < 1e-6
    assert metrics["critic/vf_loss"] == pytest.approx(loss.item(), abs=1e-6)
    assert metrics["critic/vpred_mean"] == pytest.approx(
        ((values * mask).sum() / mask.sum()).item(), abs=1e-6
    )


def test_padding_rows_change_nothing_and_a_row_of_weight_2_counts_as_two(value_model: Path) -> None:
    rows = make_rows(5)
    doubled = {name: torch.cat([value[:-1], value[:1]]) for name, value in rows.items()}
    rows["returns"][-1] = float("nan")
    weighted, metrics = value_gradients(
        make_value_engine(value_model), rows | {"row_weights": torch.tensor([2.0, 1, 1, 1, 1])}
    )
    twice, expected = value_gradients(make_value_engine(value_model), doubled)
    assert largest_difference(weighted, twice) < 1e-6
    assert metrics["critic/vf_loss"] == pytest.approx(expected["critic/vf_loss"], abs=1e-6)


def learn(engine: FSDPEngine, seeds: range) -> None:
    for seed in seeds:
        update_values(
            engine,
            CriticConfig(),
            make_rows(7, seed=seed),
            StepPlan(num_mini_batches=2, shuffle_seed=seed),
            ONE_PIECE,
        )


def test_a_resumed_critic_equals_an_uninterrupted_one_and_opens_in_plain_transformers(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    optim = OptimConfig(lr=1e-2, lr_scheduler_type="cosine")
    whole = make_value_engine(tiny_model_dir, optim=optim)
    whole.set_total_steps(20)
    learn(whole, range(2))
    save_engine(whole, tmp_path / "saved", load_tokenizer(str(tiny_model_dir)))
    load_engine(resumed := make_value_engine(tiny_model_dir, optim=optim), tmp_path / "saved")
    plain = dict(plain_model(tmp_path / "saved" / "huggingface").named_parameters())
    for name, value in whole.weights():
        assert torch.equal(plain[name], value)
    assert float(plain["score.weight"].detach().abs().max()) > 0, "the head has learnt"
    for engine in (whole, resumed):
        learn(engine, range(2, 4))
    assert resumed.digest() == whole.digest()
    again = make_value_engine(tmp_path / "saved" / "huggingface")
    assert torch.equal(dict(again.weights())["score.weight"], plain["score.weight"]), (
        "a value model keeps its head"
    )


def test_a_critic_refuses_the_checkpoint_of_a_policy(tiny_model_dir: Path, tmp_path: Path) -> None:
    from tests.workers.engine.builders import make_engine

    save_engine(make_engine(tiny_model_dir), tmp_path / "saved", None)
    with pytest.raises(CheckpointError, match=r"another model.*score"):
        load_engine(make_value_engine(tiny_model_dir), tmp_path / "saved")


def test_rows_without_values_are_refused(value_model: Path) -> None:
    rows = make_rows(3)
    del rows["values"]
    with pytest.raises(ValueError, match=r"update_critic: the batch has no \['values'\]"):
        update_values(make_value_engine(value_model), CriticConfig(), rows, StepPlan(), ONE_PIECE)


def test_values_have_a_finer_resolution_than_the_compute_dtype(value_model: Path) -> None:
    rows, fsdp = make_rows(6), FSDPConfig(dtype="bf16")
    values = make_value_engine(value_model, fsdp=fsdp).value_all(rows, ONE_PIECE)
    exact = make_value_engine(value_model).value_all(rows, ONE_PIECE)
    assert not torch.equal(values, values.bfloat16().float())
    assert 0 < (values - exact).abs().max() < 0.05
