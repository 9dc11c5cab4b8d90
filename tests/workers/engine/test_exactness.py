"""The gradient of a mini-batch does not depend on how it is cut, packed or spread over ranks."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from tests.models.families import save_model
from tests.workers.engine.builders import (
    ONE_PIECE,
    PREPARED,
    full_loss,
    gradients,
    largest_difference,
    make_engine,
    make_rows,
    make_value_engine,
    save_value_model,
    settings_of,
    value_gradients,
)
from verl.single_controller.worker import find_free_port
from verl.trainer.ppo.core_algos.aggregation import LOSS_AGG_MODES
from verl.workers.engine import MicroBatchRule
from verl.workers.engine.state import load_engine

ROOT = Path(__file__).parents[3]


def test_packed_scores_equal_padded_scores_and_plain_transformers(tiny_model_dir: Path) -> None:
    from transformers import AutoModelForCausalLM

    rows = make_rows(9)
    packed = make_engine(tiny_model_dir).score_all(rows, 0.7, ONE_PIECE)
    padded = make_engine(tiny_model_dir, use_remove_padding=False).score_all(
        rows, 0.7, MicroBatchRule(40, 1, packed=False)
    )
    assert (packed.log_probs - padded.log_probs).abs().max() < 1e-5
    assert (packed.entropy - padded.entropy).abs().max() < 1e-5
    plain = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32).eval()
    for i in range(8):
        ids = rows["input_ids"][i][rows["attention_mask"][i].bool()][None]
        own = rows["response_mask"][i].bool()
        with torch.no_grad():
            expected = torch.log_softmax(plain(ids).logits[0, :-1] / 0.7, -1).gather(-1, ids[0, 1:, None])[
                :, 0
            ]
        length = int(rows["attention_mask"][i, 7:].sum())
        expected = torch.nn.functional.pad(expected[-length:], (0, 6 - length)) * own
        assert (packed.log_probs[i] - expected).abs().max() < 1e-5


@pytest.mark.parametrize("mode", LOSS_AGG_MODES)
def test_gradient_is_the_same_however_rows_are_cut_and_padded(tiny_model_dir: Path, mode: str) -> None:
    rows, config = make_rows(9), full_loss(mode)
    whole, metrics = gradients(make_engine(tiny_model_dir), rows, ONE_PIECE, config)
    scale = max(1.0, *(float(g.abs().max()) for g in whole.values()))  # sums of tokens are larger than means
    for packed, budget, count in ((True, 25, 1), (True, None, 2), (False, 30, 1), (False, None, 9)):
        engine = make_engine(tiny_model_dir, use_remove_padding=packed)
        cut, cut_metrics = gradients(engine, rows, MicroBatchRule(budget, count, packed), config)
        assert largest_difference(whole, cut) < 1e-6 * scale
        assert metrics == pytest.approx(cut_metrics, abs=1e-5)


def test_gradient_checkpointing_changes_no_gradient(tiny_model_dir: Path) -> None:
    rows = make_rows(5)
    kept, _ = gradients(make_engine(tiny_model_dir), rows)
    recomputed, _ = gradients(make_engine(tiny_model_dir, enable_gradient_checkpointing=True), rows)
    assert largest_difference(kept, recomputed) < 1e-7


def test_the_same_update_gives_the_same_bits(tiny_model_dir: Path) -> None:
    rows, rule = make_rows(9), MicroBatchRule(25, 1, packed=True)
    first, again = (gradients(make_engine(tiny_model_dir), rows, rule)[0] for _ in range(2))
    assert largest_difference(first, again) == 0.0


def test_gradient_equals_that_of_the_loss_written_by_hand(tiny_model_dir: Path) -> None:
    from transformers import AutoModelForCausalLM

    rows = make_rows(5)
    found, _ = gradients(make_engine(tiny_model_dir), rows, ONE_PIECE, full_loss())
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    logits = model(
        input_ids=rows["input_ids"], attention_mask=rows["attention_mask"], position_ids=rows["position_ids"]
    ).logits
    dist = torch.distributions.Categorical(logits=logits[:, 6:-1] / 0.8)
    log_probs, mask, advantages = dist.log_prob(rows["responses"]), rows["response_mask"], rows["advantages"]
    ratio = torch.exp(log_probs - rows["old_log_probs"])
    pg = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2))
    pg = torch.where(advantages < 0, torch.minimum(pg, -3 * advantages), pg)
    log_ratio = rows["ref_log_prob"] - log_probs
    per_token = pg - 0.01 * dist.entropy() + 0.1 * (torch.exp(log_ratio) - log_ratio - 1)
    ((per_token * mask).sum() / mask.sum()).backward()
    assert largest_difference(found, {name: p.grad for name, p in model.named_parameters()}) < 1e-6


def test_padding_rows_change_nothing(tiny_model_dir: Path) -> None:
    rows = make_rows(5)
    kept = {name: value[:-1] for name, value in rows.items()}
    rows["advantages"][-1] = float("nan")
    with_padding, metrics = gradients(make_engine(tiny_model_dir), rows)
    without, expected = gradients(make_engine(tiny_model_dir), kept)
    assert largest_difference(with_padding, without) == 0.0
    assert metrics == expected


def test_two_gloo_ranks_equal_one(tiny_model_dir: Path, tmp_path: Path, forked_python: str) -> None:
    """Rank 1 has fewer real rows, so it also has to make up micro-batches, and a model folder without
    weights, which come from rank 0; a checkpoint of both opens on one rank. Adaptive mini-batches take rows
    from the ranks in turn: 3, 3 and 2 of the 6 + 2.
    """
    modes = ["values", *PREPARED, "skipping", "adaptive", "single", "token-mean", "seq-mean-token-mean"]
    rows = make_rows(12)
    rows["advantages"][[1, 6, 7]] = 0.0  # so that rank 1 has none to compute when these are skipped
    for name in ("input_ids", "attention_mask", "position_ids", "responses", "response_mask"):
        rows[name][[2, 4]] = rows[name][3].clone()  # so that two of them are in one micro-batch of rank 0
    rows["response_mask"][8:] = 0
    rows["row_weights"] = torch.tensor([1.0, 0.5, 2.0]).repeat(4)
    torch.save(rows, tmp_path / "rows.pt")
    base = os.environ | {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(find_free_port()),
        "PYTHONPATH": str(ROOT),
    }
    no_weights = shutil.ignore_patterns("*.safetensors")
    shutil.copytree(tiny_model_dir, without_weights := tmp_path / "model", ignore=no_weights)
    value_model = save_value_model(tiny_model_dir, tmp_path / "value_model_0")
    shutil.copytree(value_model, tmp_path / "value_model_1", ignore=no_weights)
    command = [forked_python, "-m", "tests.workers.engine.rank_main", str(tmp_path)]
    ranks = [
        subprocess.Popen([*command, str(model), ",".join(modes)], env=base | {"RANK": str(rank)}, cwd=ROOT)
        for rank, model in enumerate((tiny_model_dir, without_weights))
    ]
    try:
        assert [process.wait(timeout=200) for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
    for mode in modes:
        if mode == "values":
            expected, expected_metrics = value_gradients(make_value_engine(value_model), rows)
        else:
            one = make_engine(tiny_model_dir)
            order = torch.tensor([0, 6, 1, 7, 2, 3, 4, 5]) if mode == "adaptive" else torch.arange(12)
            own = {name: value[order] for name, value in rows.items()}
            expected, expected_metrics = gradients(one, own, ONE_PIECE, *settings_of(mode))
            assert expected_metrics.get("rollout_corr/rollout_rs_masked_fraction", 0.5) not in (0.0, 1.0), (
                "nothing was chosen"
            )
        found = torch.load(tmp_path / f"{mode}.pt", weights_only=True)
        assert largest_difference(found["gradients"], expected) < 1e-6
        shares = [
            metrics.pop(f"{part}/shared_tokens", 0.0)
            for metrics in (found["metrics"], expected_metrics)
            for part in ("actor", "critic")
        ]
        assert (max(shares[:2]) > 0.0) == (mode != "single") and max(shares) < 0.5
        assert found["metrics"] == pytest.approx(expected_metrics, abs=1e-5)
    load_engine(resumed := make_engine(tiny_model_dir), tmp_path / "checkpoint")
    assert resumed.steps == one.steps == 1
    assert (
        largest_difference(dict(resumed.weights()), torch.load(tmp_path / "weights.pt", weights_only=True))
        == 0.0
    )


@pytest.mark.parametrize("name", ["zamba2"])
def test_two_gloo_ranks_share_layers_that_stand_in_several_places(
    name: str, tmp_path: Path, forked_python: str
) -> None:
    model = save_model(name, tmp_path / "model")
    rows = make_rows(12)
    torch.save(rows, tmp_path / "rows.pt")
    base = os.environ | {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(find_free_port()),
        "PYTHONPATH": str(ROOT),
    }
    command = [forked_python, "-m", "tests.workers.engine.rank_main", str(tmp_path), str(model), "token-mean"]
    ranks = [subprocess.Popen(command, env=base | {"RANK": str(rank)}, cwd=ROOT) for rank in range(2)]
    try:
        assert [process.wait(timeout=200) for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
    rule = MicroBatchRule(token_budget=None, rows=2, packed=True)
    expected, _ = gradients(make_engine(model), rows, rule, *settings_of("token-mean"))
    found = torch.load(tmp_path / "token-mean.pt", weights_only=True)["gradients"]
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    assert largest_difference(found, expected) < 2e-5 * largest
