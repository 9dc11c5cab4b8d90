"""The critic's calls as the trainer makes them."""

from pathlib import Path

import pytest
import torch

from tests.workers.engine.builders import make_rows
from verl.protocol import DataProto
from verl.trainer.config import CriticConfig, ModelConfig, OptimConfig
from verl.workers.critic_worker import CriticWorker


def make_worker(model: Path, **options: object) -> CriticWorker:
    options = {"optim": OptimConfig(lr=1e-2), "cliprange_value": 100.0} | options
    worker = CriticWorker(
        CriticConfig(model=ModelConfig(path=str(model)), **options), seed=0, device="cpu", num_threads=1
    )  # type: ignore[arg-type]
    worker.init_model()
    return worker


def make_batch(rows: dict[str, torch.Tensor], **meta: object) -> DataProto:
    return DataProto.from_dict(tensors=rows, meta_info=dict(meta))


def test_the_critic_learns_what_the_returns_are(tiny_model_dir: Path) -> None:
    worker, rows = make_worker(tiny_model_dir), make_rows(8)
    rows["returns"] = torch.full_like(rows["returns"], 0.7)
    rows["values"] = worker.compute_values(make_batch(rows)).batch["values"]
    assert not rows["values"].any(), "a fresh critic expects nothing"
    losses = [
        worker.update_critic(make_batch(rows)).meta_info["metrics"]["critic/vf_loss"] for _ in range(30)
    ]
    assert losses[0] == pytest.approx(0.245) and losses[-1] < 0.02
    values = worker.compute_values(make_batch(rows)).batch["values"]
    assert torch.equal(values != 0, rows["response_mask"].bool())
    assert values[rows["response_mask"].bool()].mean() == pytest.approx(0.7, abs=0.2)


def test_metrics_have_verls_names(tiny_model_dir: Path) -> None:
    metrics = make_worker(tiny_model_dir).update_critic(make_batch(make_rows(6))).meta_info["metrics"]
    names = {"vf_loss", "vf_clipfrac", "vpred_mean", "grad_norm", "lr", "skipped_steps", "shared_tokens"}
    assert set(metrics) == {f"critic/{name}" for name in names} | {"perf/tokens"}


def test_mini_batches_epochs_and_the_schedule(tiny_model_dir: Path) -> None:
    worker = make_worker(
        tiny_model_dir, ppo_epochs=2, optim=OptimConfig(lr=1.0e-3, lr_scheduler_type="linear")
    )
    worker.set_total_training_steps(13)
    metrics = worker.update_critic(make_batch(make_rows(7), num_mini_batches=3, first_update=6)).meta_info[
        "metrics"
    ]
    assert worker.engine.steps == 12
    assert metrics["critic/lr"] == pytest.approx(1e-3 * (1 - 8.5 / 12))


def test_a_value_moves_no_further_than_the_clip_range(tiny_model_dir: Path) -> None:
    """Values that already moved 1 away from the old ones, towards the returns: within a clip range of 0.5 the
    far error counts.
    """
    worker, rows = make_worker(tiny_model_dir, cliprange_value=0.5), make_rows(4)
    rows["values"], rows["returns"] = (
        torch.full_like(rows["values"], -1.0),
        torch.full_like(rows["returns"], 1.0),
    )
    metrics = worker.update_critic(make_batch(rows)).meta_info["metrics"]
    assert metrics["critic/vf_clipfrac"] == pytest.approx(1.0)
    assert metrics["critic/vf_loss"] == pytest.approx(0.5 * 1.5**2)
    assert metrics["critic/grad_norm"] == 0.0


def test_a_batch_of_padding_alone_changes_nothing(tiny_model_dir: Path) -> None:
    worker, rows = make_worker(tiny_model_dir), make_rows(4)
    rows["response_mask"].zero_()
    before = worker.state_digest()
    assert worker.update_critic(make_batch(rows)).meta_info["metrics"] == {"perf/tokens": 0.0}
    assert worker.state_digest() == before
    assert not worker.compute_values(make_batch(rows)).batch["values"].any()


def test_a_call_before_init_model_says_so() -> None:
    worker = CriticWorker(CriticConfig(), seed=0, device="cpu", num_threads=1)
    with pytest.raises(RuntimeError, match="call init_model first"):
        worker.state_digest()
