"""Every way of sending weights delivers the same bits, lets go of what was loaded, and is found by
its name.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workers.rollout.conftest import request, tiny_model
from verl.protocol.generate import RolloutError
from verl.single_controller.local import LocalWorkerGroup
from verl.single_controller.worker_group import ClassWithInitArgs
from verl.trainer.config import ActorConfig, ActorRolloutRefConfig, ModelConfig, RolloutConfig
from verl.trainer.ppo.weight_sync import send_weights
from verl.workers.policy_worker import BUCKETS, PolicyWorker
from verl.workers.rollout.hf_engine import HFEngine
from verl.workers.rollout.server import RolloutWorker
from verl.workers.weight_transfer import chosen_transfer, transfer_exists
from verl.workers.weight_transfer.base import ReceivedWeights, build_transfer, send_bucket, transfer_name
from verl.workers.weight_transfer.shared_memory import SharedMemory

NAMES = ("object_store", "shared_memory", "collective", "cuda_ipc")


@pytest.mark.parametrize("name", NAMES)
def test_tensors_arrive_with_the_same_bits_in_the_order_of_sending(name: str) -> None:
    base = torch.randn(6)
    sent = [
        {"a": base, "part": base[:3], "turned": base.view(2, 3).T},
        {"half": torch.randn(5, 2).bfloat16(), "none": torch.empty(0, 4), "one": torch.tensor(float("nan"))},
    ]
    sender, receiver = build_transfer(name), build_transfer(name)
    buckets = [send_bucket(sender, tensors) for tensors in sent]
    for tensors, bucket in zip(sent, buckets, strict=True):
        found = ReceivedWeights(receiver, bucket.handle, bucket.shapes)
        assert found.shapes == {key: tuple(value.shape) for key, value in tensors.items()} and len(
            found
        ) == len(tensors)
        assert bucket.n_bytes == sum(value.nbytes for value in tensors.values())
        for key, value in tensors.items():
            assert found[key].dtype == value.dtype and torch.equal(
                found[key].nan_to_num(7), value.nan_to_num(7)
            )
        sender.release(bucket.handle)


def test_a_file_is_removed_when_it_was_loaded_and_missed_on_another_node() -> None:
    transfer = SharedMemory()
    path = transfer.send({"a": torch.ones(3)}, 2)
    kept = transfer.receive(path)
    transfer.release(path)
    assert not Path(path).exists() and kept["a"].tolist() == [1, 1, 1], "mapped before it was removed"
    with pytest.raises(RolloutError, match=r"on another node; use rollout\.weight_transfer=object_store"):
        transfer.receive(path)


def test_names_are_found_without_importing_what_they_name() -> None:
    assert all(transfer_exists(name) for name in (*NAMES, "auto")) and transfer_exists(
        transfer_name(SharedMemory())
    )
    assert not any(
        transfer_exists(name)
        for name in (
            "",
            "base",
            "broadcast",
            "carrier_pigeon",
            "no_such.Module",
            "verl.utils.names.Pigeon",
            "a b",
        )
    )
    for name in NAMES:
        assert type(build_transfer(transfer_name(build_transfer(name)))) is type(build_transfer(name))


async def test_after_an_update_that_is_lost_on_its_way_nothing_is_sampled_until_a_whole_one_has_come() -> (
    None
):
    """The second half of the weights is gone when the engine reads it, with a reply in flight."""
    engine = HFEngine(tiny_model(), max_num_seqs=8, max_model_len=128)
    flight = asyncio.create_task(engine.generate(request(10, 60)))
    while engine.stats()["sampled"] < 5:
        await asyncio.sleep(0)
    weights = {name: 1.1 * p.detach() for name, p in tiny_model().named_parameters()}
    names = sorted(weights)
    transfer = SharedMemory()
    halves = [{name: weights[name] for name in part} for part in (names[::2], names[1::2])]
    buckets = [send_bucket(transfer, half) for half in halves]
    first, second = (ReceivedWeights(transfer, bucket.handle, bucket.shapes) for bucket in buckets)
    engine.update_weights(first, version=2, final=False)
    transfer.release(buckets[1].handle)
    with pytest.raises(RolloutError, match="no weights at"):
        engine.update_weights(second, version=2)
    before = engine.stats()
    for _ in range(20):
        await asyncio.sleep(0)
    assert engine.stats() == before and not flight.done() and engine.version == 0
    engine.update_weights(weights, version=3)
    (reply,) = await flight
    assert (reply.version, sum(count for _, count in reply.earlier)) == (3, before["sampled"])
    fresh = HFEngine(tiny_model(), max_num_seqs=8, max_model_len=128)
    fresh.update_weights(weights, version=3)
    assert await engine.generate(request(30, 9)) == await fresh.generate(request(30, 9))


@pytest.mark.parametrize("name", NAMES)
def test_an_update_holds_few_buckets_and_leaves_none(
    name: str, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ActorRolloutRefConfig(
        model=ModelConfig(path=str(tiny_model_dir)),
        actor=ActorConfig(),
        rollout=RolloutConfig(max_num_seqs=8, update_bucket_mb=0, weight_transfer=name),
    )
    common = {"config": config, "seed": 0, "device": "cpu", "num_threads": 1}
    policy = LocalWorkerGroup(class_with_init=ClassWithInitArgs(PolicyWorker, use_reference=False, **common))
    engine = LocalWorkerGroup(class_with_init=ClassWithInitArgs(RolloutWorker, max_model_len=64, **common))
    policy.init_model()
    engine.init_model()
    transfer, held, most = policy.worker._transfer, 0, []
    send, release = transfer.send, transfer.release

    def noted_send(tensors: Mapping[str, torch.Tensor], receivers: int) -> Any:
        nonlocal held
        held += 1
        most.append(held)
        return send(tensors, receivers)

    def noted_release(handle: Any) -> None:
        nonlocal held
        held -= 1
        release(handle)

    monkeypatch.setattr(transfer, "send", noted_send)
    monkeypatch.setattr(transfer, "release", noted_release)
    n_bytes = send_weights(policy, engine, {None: 3})
    parameters = dict(policy.worker.engine.model.named_parameters())
    assert n_bytes == sum(value.numel() * 4 for value in parameters.values())
    assert len(most) == len(parameters) and max(most) == BUCKETS and held == 0
    assert engine.stats()[0]["version"] == 3
    policy.shutdown()
    engine.shutdown()


def test_auto_is_cuda_ipc_where_it_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_transfer("auto", "cpu") == "object_store" and chosen_transfer("auto", "cuda") == "cuda_ipc"
    assert (
        chosen_transfer("auto", "cpu", shared=False) == "object_store"
        and chosen_transfer("auto", "cuda", shared=False) == "collective"
    )
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64,expandable_segments:True")
    assert (
        chosen_transfer("auto", "cuda") == "object_store"
        and chosen_transfer("collective", "cuda") == "collective"
    )
