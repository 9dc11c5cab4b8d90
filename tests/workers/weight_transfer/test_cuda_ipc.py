"""Memory that receivers map, with shared memory of the host in place of a GPU's: copies, acknowledgements,
and what is refused.
"""

import multiprocessing
import os
import signal
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.devices import needs_gpus
from verl.protocol.generate import RolloutError
from verl.workers.weight_transfer import cuda_ipc
from verl.workers.weight_transfer.base import merged, send_bucket
from verl.workers.weight_transfer.cuda_ipc import CudaIpc, GpuMemory, HostMemory

TENSORS = {"half": torch.randn(300, 5).bfloat16().T, "single": torch.randn(7), "empty": torch.ones(0, 2)}


def same(found: Mapping[str, torch.Tensor]) -> bool:
    return list(found) == list(TENSORS) and all(
        torch.equal(found[name], value) for name, value in TENSORS.items()
    )


def _receive(pipe: Connection) -> None:
    torch.set_num_threads(1)  # a forked process has none of the threads that its parent started
    transfer = CudaIpc()
    while True:
        handle = pipe.recv()
        try:
            pipe.send(same(transfer.receive(handle)))
        except RolloutError as error:
            pipe.send(str(error))


def _die_with_the_block_mapped(handle: Mapping[str, Any]) -> None:
    (sent,) = handle.values()
    mapped = HostMemory.map(sent["export"], sent["size"])
    os.kill(os.getpid(), signal.SIGKILL)
    assert mapped is None, "not reached"


def test_another_process_copies_what_it_maps_and_the_block_is_freed() -> None:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_receive, args=(there,), daemon=True)
    process.start()
    sender = CudaIpc()
    for _ in range(2):
        handle = sender.send(TENSORS, 1)
        (sent,) = handle.values()
        for _ in range(2):
            here.send(handle)
            assert here.poll(20) and here.recv() is True
        acknowledged = cuda_ipc._header(sender._sent_blocks[sent["number"]].flat)[1].item()
        assert acknowledged == 2
        sender.release(handle)
        assert not Path(sent["export"]).exists() and not sender._sent_blocks
        here.send(handle)
        assert here.poll(20) and "cannot be mapped" in here.recv()
    process.kill()


def test_a_receiver_that_dies_leaves_nothing_and_the_next_one_gets_the_next_update() -> None:
    sender = CudaIpc()
    handle = sender.send(TENSORS, 1)
    process = multiprocessing.get_context("fork").Process(target=_die_with_the_block_mapped, args=(handle,))
    process.start()
    process.join(20)
    assert process.exitcode == -signal.SIGKILL
    ended: list[bool] = []
    (block,) = sender._sent_blocks.values()
    free = block.free
    block.free = lambda copied: (ended.append(copied), free(copied))  # type: ignore[method-assign,assignment,func-returns-value]
    sender.release(handle)
    assert ended == [False], "GpuMemory then ends the mapping in torch's count"
    assert not Path(block.export).parent.exists()
    assert same(CudaIpc().receive(sender.send(TENSORS, 1)))


def test_a_copy_outlives_the_block_and_a_released_block_is_no_source() -> None:
    sender = CudaIpc()
    handle = sender.send(TENSORS, 1)
    copied, (sent,) = CudaIpc().receive(handle), handle.values()
    flat = sender._sent_blocks[sent["number"]].flat
    sender.release(handle)
    sender.release(handle)
    assert same(copied)
    with pytest.raises(RolloutError, match="was released before it was copied"):
        CudaIpc().receive(handle)
    del flat


def test_memory_of_another_gpu_or_node_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = CudaIpc().send(TENSORS, 1)
    monkeypatch.setattr(HostMemory, "place", staticmethod(lambda: "node 2"))
    monkeypatch.setattr(GpuMemory, "place", staticmethod(lambda: "GPU 7"))
    with pytest.raises(
        RolloutError,
        match=r"in the memory of node [0-9a-f-]+, this process uses node 2, GPU 7; use rollout\.weight_tr",
    ):
        CudaIpc().receive(handle)


def test_every_rank_sends_and_a_receiver_takes_what_is_in_its_own_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    senders, sent = [CudaIpc(), CudaIpc()], []
    for rank, sender in enumerate(senders):
        monkeypatch.setattr(HostMemory, "place", staticmethod(lambda rank=rank: f"GPU {rank}"))
        sent.append(send_bucket(sender, {"rank": torch.tensor([rank])}))
    bucket = merged([*sent, None])
    assert (
        bucket is not None and bucket.n_bytes == 8 and merged([None]) is None and merged(sent[:1]) is sent[0]
    )
    for rank in (0, 1):
        monkeypatch.setattr(HostMemory, "place", staticmethod(lambda rank=rank: f"GPU {rank}"))
        assert CudaIpc().receive(bucket.handle)["rank"].item() == rank
    for sender, own in zip(senders, sent, strict=True):
        sender.release(own.handle)
        assert not sender._sent_blocks


def test_memory_of_expandable_segments_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    with pytest.raises(
        RolloutError,
        match=r"expandable segments; unset PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or use",
    ):
        GpuMemory(16, torch.device("cuda"))


def _sums_of_blocks(pipe: Connection) -> None:
    """Answers with the sum of what it received; at None it maps the next block and dies."""
    transfer = CudaIpc()
    while (handle := pipe.recv()) is not None:
        pipe.send(transfer.receive(handle)["weight"].sum().item())
    (sent,) = pipe.recv().values()
    mapped = GpuMemory.map(sent["export"], sent["size"])
    os.kill(os.getpid(), signal.SIGKILL)
    assert mapped is None, "not reached"


@needs_gpus(1)
def test_memory_of_a_gpu_is_free_again_after_many_updates_and_after_receivers_were_killed() -> None:
    size = 1 << 22
    weight = torch.ones(size, device="cuda")
    context, sender, before = multiprocessing.get_context("spawn"), CudaIpc(), torch.cuda.memory_allocated()
    for _ in range(2):
        here, there = context.Pipe()
        process = context.Process(target=_sums_of_blocks, args=(there,), daemon=True)
        process.start()
        for number in range(20):
            handle = sender.send({"weight": weight * number}, 1)
            here.send(handle)
            assert here.poll(60) and here.recv() == number * size
            sender.release(handle)
        handle = sender.send({"weight": weight}, 1)
        here.send(None)
        here.send(handle)
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        sender.release(handle)
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() - before < 1 << 20
