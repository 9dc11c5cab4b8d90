"""The worker's calls as the trainer makes them."""

from pathlib import Path

import pytest
import torch

from tests.workers.engine.builders import make_rows
from verl.protocol import DataProto
from verl.protocol.serialization import deserialize_single_tensor
from verl.trainer.config import ActorConfig, ActorRolloutRefConfig, ModelConfig, OptimConfig, RolloutConfig
from verl.workers.policy_worker import PolicyWorker


def make_worker(
    model: Path, *, reference: bool = False, actor: ActorConfig | None = None, bucket_mb: int = 256
) -> PolicyWorker:
    config = ActorRolloutRefConfig(
        model=ModelConfig(path=str(model)),
        actor=actor or ActorConfig(optim=OptimConfig(lr=1e-2)),
        rollout=RolloutConfig(update_bucket_mb=bucket_mb),
    )
    worker = PolicyWorker(config, use_reference=reference, seed=0, device="cpu", num_threads=1)
    worker.init_model()
    return worker


def make_batch(rows: dict[str, torch.Tensor], **meta: object) -> DataProto:
    return DataProto.from_dict(tensors=rows, meta_info={"temperature": 1.0, **meta})


def test_log_probs_of_actor_and_reference_agree_until_the_actor_moves(tiny_model_dir: Path) -> None:
    worker, batch = make_worker(tiny_model_dir, reference=True), make_batch(make_rows(6))
    before = worker.compute_log_prob(batch).batch
    assert set(before.keys()) == {"old_log_probs", "entropys"}
    reference = worker.compute_ref_log_prob(batch).batch["ref_log_prob"]
    assert torch.equal(before["old_log_probs"], reference)
    assert torch.equal(before["old_log_probs"] != 0, batch.batch["response_mask"].bool())
    worker.update_actor(batch)
    assert not torch.allclose(worker.compute_log_prob(batch).batch["old_log_probs"], reference)
    assert torch.equal(worker.compute_ref_log_prob(batch).batch["ref_log_prob"], reference)


def test_an_update_makes_rewarded_tokens_likelier(tiny_model_dir: Path) -> None:
    worker, rows = make_worker(tiny_model_dir), make_rows(6)
    rows["advantages"] = torch.ones_like(rows["advantages"])
    del rows["old_log_probs"]
    batch = make_batch(rows, on_policy=True)
    first = worker.compute_log_prob(batch).batch["old_log_probs"].sum()
    for _ in range(5):
        metrics = worker.update_actor(batch).meta_info["metrics"]
        assert metrics["actor/ppo_kl"] == 0.0
    assert worker.compute_log_prob(batch).batch["old_log_probs"].sum() > first + 1
    expected = {
        "pg_loss",
        "pg_clipfrac",
        "ppo_kl",
        "pg_clipfrac_lower",
        "entropy",
        "grad_norm",
        "lr",
        "skipped_steps",
        "shared_tokens",
    }
    assert set(metrics) == {f"actor/{name}" for name in expected} | {"perf/tokens", "perf/cpu_memory_used_gb"}
    assert metrics["perf/tokens"] == float(rows["attention_mask"][:-1].sum())


def test_agents_that_share_a_policy_are_measured_each_on_its_own_tokens(tiny_model_dir: Path) -> None:
    names, rows = ("actor/entropy", "actor/ppo_kl", "actor/pg_clipfrac"), make_rows(9)
    index = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1, 2])  # the last row is padding
    together = make_worker(tiny_model_dir)
    metrics = together.update_actor(
        make_batch(rows | {"agent_index": index}, agents=["a", "b", "c"])
    ).meta_info["metrics"]
    assert {name for name in metrics if name.startswith("agent/")} == {
        f"agent/{agent}/{name}" for agent in "ab" for name in names
    }
    for place, agent in enumerate("ab"):
        alone = make_worker(tiny_model_dir)
        own = alone.update_actor(
            make_batch({name: value[index == place] for name, value in rows.items()})
        ).meta_info["metrics"]
        assert [metrics[f"agent/{agent}/{name}"] for name in names] == pytest.approx(
            [own[name] for name in names], rel=1e-5
        )
    unmeasured = make_worker(tiny_model_dir)
    unmeasured.update_actor(make_batch(rows))
    assert unmeasured.state_digest() == together.state_digest()


def test_mini_batches_and_epochs_are_optimizer_steps_of_the_schedule(tiny_model_dir: Path) -> None:
    actor = ActorConfig(ppo_epochs=2, optim=OptimConfig(lr=1.0e-3, lr_scheduler_type="linear"))
    worker = make_worker(tiny_model_dir, actor=actor)
    worker.set_total_training_steps(7)
    metrics = worker.update_actor(make_batch(make_rows(7), num_mini_batches=3)).meta_info["metrics"]
    assert worker.engine.steps == 6
    assert metrics["actor/lr"] == pytest.approx(1e-3 * (1 - 2.5 / 6))


@pytest.mark.parametrize(("value", "name"), [("low_var_kl", "k3+"), ("kl", "k1+")])
def test_a_straight_through_kl_has_its_own_value_and_the_gradient_of_k2(
    tiny_model_dir: Path, value: str, name: str
) -> None:
    """Without advantages the loss is the KL alone."""
    made: dict[str, tuple[float, float, str]] = {}
    for kind in (value, name, "k2"):
        worker, rows = (
            make_worker(tiny_model_dir, actor=ActorConfig(kl_loss_coef=1.0, kl_loss_type=kind)),
            make_rows(5),
        )
        rows["advantages"].zero_()
        metrics = worker.update_actor(make_batch(rows)).meta_info["metrics"]
        made[kind] = (metrics["actor/kl_loss"], metrics["actor/grad_norm"], worker.state_digest())
    assert made[name][0] == pytest.approx(made[value][0], rel=1e-6) and made[name][0] != pytest.approx(
        made["k2"][0], rel=1e-3
    )
    assert made[name][1] == pytest.approx(made["k2"][1], rel=1e-6) and made[name][1] != pytest.approx(
        made[value][1], rel=1e-3
    )
    assert made[name][2] == made["k2"][2] != made[value][2]


def test_the_constant_of_dr_grpo_is_the_one_that_the_call_names(tiny_model_dir: Path) -> None:
    norms = []
    for constant in (8.0, 16.0):
        worker = make_worker(tiny_model_dir, actor=ActorConfig(loss_agg_mode="seq-mean-token-sum-norm"))
        metrics = worker.update_actor(make_batch(make_rows(5), loss_scale_factor=constant)).meta_info[
            "metrics"
        ]
        norms.append(metrics["actor/grad_norm"])
    assert norms[0] == pytest.approx(2 * norms[1], rel=1e-5)


def test_weights_are_saved_without_a_tokenizer_that_is_gone(
    tiny_model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = ActorRolloutRefConfig(
        model=ModelConfig(path=str(tiny_model_dir), tokenizer_path="/no/such/tokenizer")
    )
    worker = PolicyWorker(config, use_reference=False, seed=0, device="cpu", num_threads=1)
    worker.init_model()
    before = worker.state_digest()
    worker.save_checkpoint(str(tmp_path / "saved"), True)
    (said,) = [record.getMessage() for record in caplog.records if record.name == "verl.models.loader"]
    assert "weights are saved without a tokenizer" in said and "'/no/such/tokenizer'" in said
    written = {file.name for file in (tmp_path / "saved" / "huggingface").iterdir()}
    assert "model.safetensors" in written and not any("token" in name for name in written)
    worker.update_actor(make_batch(make_rows(6)))
    worker.load_checkpoint(str(tmp_path / "saved"))
    assert worker.state_digest() == before


def test_the_shuffle_seed_decides_the_mini_batches(tiny_model_dir: Path) -> None:
    digests = []
    for seed in (1, 1, 2):
        worker = make_worker(tiny_model_dir)
        worker.update_actor(make_batch(make_rows(9), num_mini_batches=2, shuffle_seed=seed))
        digests.append(worker.state_digest())
    assert digests[0] == digests[1] != digests[2]


def test_a_non_finite_gradient_changes_nothing_and_is_counted(tiny_model_dir: Path) -> None:
    worker, rows = make_worker(tiny_model_dir), make_rows(4)
    rows["advantages"][0] = float("inf")
    before = worker.state_digest()
    metrics = worker.update_actor(make_batch(rows)).meta_info["metrics"]
    assert metrics["actor/skipped_steps"] == 1.0 and worker.state_digest() == before


def test_a_batch_of_padding_alone_changes_nothing(tiny_model_dir: Path) -> None:
    worker, rows = make_worker(tiny_model_dir), make_rows(4)
    rows["response_mask"].zero_()
    before = worker.state_digest()
    metrics = worker.update_actor(make_batch(rows)).meta_info["metrics"]
    assert metrics["perf/tokens"] == 0.0 and set(metrics) == {"perf/tokens", "perf/cpu_memory_used_gb"}
    assert worker.state_digest() == before
    assert not worker.compute_log_prob(make_batch(rows)).batch["old_log_probs"].any()


def all_buckets(worker: PolicyWorker) -> list[dict[str, torch.Tensor]]:
    found, bucket = [], worker.next_weights(True)
    while bucket is not None:
        found.append({name: deserialize_single_tensor(value) for name, value in bucket.handle.items()})
        assert bucket.n_bytes == sum(tensor.nbytes for tensor in found[-1].values())
        bucket = worker.next_weights(False)
    return found


def test_weights_come_whole_once_and_in_buckets(tiny_model_dir: Path) -> None:
    from transformers import AutoModelForCausalLM

    worker = make_worker(tiny_model_dir, bucket_mb=0)
    buckets = all_buckets(worker)
    expected = dict(
        AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32).named_parameters()
    )
    assert len(buckets) == len(expected), "with no room every parameter has a bucket of its own"
    together = {
        name: value for bucket in all_buckets(make_worker(tiny_model_dir)) for name, value in bucket.items()
    }
    assert together.keys() == expected.keys()
    assert all(torch.equal(together[name], expected[name]) for name in expected)
    worker.update_actor(make_batch(make_rows(4)))
    assert torch.equal(next(iter(buckets[0].values())), expected[next(iter(buckets[0]))]), (
        "buckets are copies"
    )


def test_off_policy_weights_scale_the_policy_loss(tiny_model_dir: Path) -> None:
    rows = make_rows(4)
    rows["rollout_is_weights"] = torch.zeros_like(rows["advantages"])
    metrics = make_worker(tiny_model_dir).update_actor(make_batch(rows)).meta_info["metrics"]
    assert metrics["actor/pg_loss"] == 0.0 and metrics["actor/grad_norm"] == 0.0


def test_a_call_before_init_model_says_so(tiny_model_dir: Path) -> None:
    worker = PolicyWorker(ActorRolloutRefConfig(), use_reference=False, seed=0, device="cpu", num_threads=1)
    with pytest.raises(RuntimeError, match="call init_model first"):
        worker.state_digest()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"meta": {}}, "needs old_log_probs"),
        ({"meta": {"on_policy": True, "num_mini_batches": 2}}, "allow one optimizer step"),
        ({"drop": "advantages", "meta": {"on_policy": True}}, r"has no \['advantages'\]"),
        ({"temperature": None}, "no 'temperature'"),
        ({"temperature": 0.0, "meta": {"on_policy": True}}, "positive temperature"),
        ({"empty_prompt": True, "meta": {"on_policy": True}}, "empty prompt"),
    ],
)
def test_a_batch_that_cannot_be_trained_on_is_one_clear_error(
    tiny_model_dir: Path, change: dict, message: str
) -> None:
    rows = make_rows(4)
    del rows["old_log_probs"]
    rows.pop(change.get("drop", ""), None)
    if change.get("empty_prompt"):
        rows["attention_mask"][0, :7] = 0
    batch = make_batch(rows, **change.get("meta", {}))
    if "temperature" in change:
        batch.meta_info["temperature"] = change["temperature"]
        if change["temperature"] is None:
            del batch.meta_info["temperature"]
    with pytest.raises(ValueError, match=message):
        make_worker(tiny_model_dir).update_actor(batch)


def test_the_schedule_counts_updates_that_a_policy_had_no_rows_for(tiny_model_dir: Path) -> None:
    worker = make_worker(
        tiny_model_dir, actor=ActorConfig(optim=OptimConfig(lr=1.0, lr_scheduler_type="linear"))
    )
    worker.set_total_training_steps(10)
    batch = make_batch(make_rows(4))
    batch.meta_info["first_update"] = 5
    assert worker.update_actor(batch).meta_info["metrics"]["actor/lr"] == pytest.approx(4 / 9), (
        "the sixth of ten, which end at 0"
    )
