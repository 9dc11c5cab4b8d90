"""Broadcasts to real processes: same bits in all of them, one group while the receivers stay, and errors that
name who is missing.
"""

import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch

from verl.protocol.generate import EngineGoneError, RolloutError
from verl.utils.flat_tensors import layout_of, pack, unpack
from verl.workers.weight_transfer.broadcast.link import Link, ready
from verl.workers.weight_transfer.collective import Collective

LIMIT_S = 20.0


def _receive(pipe: Connection) -> None:
    """Receive the bucket of every handle that comes; the answer is the group and a sum for each tensor, or
    the error.
    """
    torch.set_num_threads(1)  # a forked process has none of the threads that its parent started
    transfer = Collective(LIMIT_S)
    while True:
        handle, timeout_s = pipe.recv()
        transfer.timeout_s = timeout_s
        try:
            found = transfer.receive(handle)
            group = transfer._receiver._group.generation
            pipe.send(
                (
                    group,
                    {
                        name: (str(value.dtype), value.flatten().view(torch.uint8).sum().item())
                        for name, value in found.items()
                    },
                )
            )
        except RolloutError as error:
            pipe.send((type(error).__name__, str(error)))


class Processes:
    """Receiving processes, each with the pipe to it."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("fork")
        self.running: list[tuple[Any, Connection]] = []

    def start(self) -> None:
        here, there = self.context.Pipe()
        process = self.context.Process(target=_receive, args=(there,), daemon=True)
        process.start()
        there.close()
        self.running.append((process, here))

    def kill(self, index: int) -> int:
        process, _ = self.running.pop(index)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        return int(process.pid)

    def tell(self, handle: Any, timeout_s: float = LIMIT_S) -> None:
        for _, pipe in self.running:
            pipe.send((handle, timeout_s))

    def answers(self) -> list[Any]:
        for _, pipe in self.running:
            assert pipe.poll(LIMIT_S), "a receiver never answered"
        return [pipe.recv() for _, pipe in self.running]


@pytest.fixture
def processes() -> Iterator[Processes]:
    own = Processes()
    yield own
    while own.running:
        own.kill(0)


def _bucket(seed: int, size: int = 50_000) -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    return {
        "half": torch.randn(size, 3, generator=drawn).bfloat16().T,
        "single": torch.randn(7, generator=drawn),
        "empty": torch.ones(0, 2),
    }


def _sums(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {
        name: (str(value.dtype), value.flatten().view(torch.uint8).sum().item())
        for name, value in tensors.items()
    }


def _update(sender: Collective, processes: Processes, seed: int, buckets: int = 3) -> set[int]:
    """Send an update as the trainer does, a bucket ahead of the receivers; return the generation of every
    receiver's group.
    """
    sent = [_bucket(seed + index) for index in range(buckets)]
    handles = [sender.send(tensors, len(processes.running)) for tensors in sent[:2]]
    generations = set()
    for index, tensors in enumerate(sent):
        processes.tell(handles[index])
        for generation, found in processes.answers():
            assert found == _sums(tensors)
            generations.add(generation)
        if index + 2 < buckets:
            handles.append(sender.send(sent[index + 2], len(processes.running)))
    for handle in handles:
        sender.release(handle)
    return generations


def _read(link: Link) -> dict[str, Any]:
    """Return the next message."""
    assert ready([link], LIMIT_S), "no message came"
    return link.read()[0]


@pytest.mark.parametrize("receivers", [1, 3])
def test_every_process_gets_the_same_bits_by_one_group(processes: Processes, receivers: int) -> None:
    sender = Collective(LIMIT_S)
    for _ in range(receivers):
        processes.start()
    assert [_update(sender, processes, seed) for seed in range(3)] == [{1}] * 3


def test_a_restarted_receiver_joins_the_next_update_in_a_new_group(processes: Processes) -> None:
    sender = Collective(LIMIT_S)
    processes.start()
    processes.start()
    assert _update(sender, processes, 0) == {1}
    processes.kill(0)
    processes.start()
    assert _update(sender, processes, 1) == {2} and _update(sender, processes, 2) == {2}
    processes.start()
    assert _update(sender, processes, 3) == {3}, "one more receiver"


@pytest.mark.parametrize("in_flight", [False, True])
def test_a_receiver_killed_within_an_update_fails_the_others_in_the_same_bucket(
    processes: Processes, caplog: pytest.LogCaptureFixture, in_flight: bool
) -> None:
    """Killed before the bucket is asked for, or while all others take part in its broadcast."""
    sender = Collective(LIMIT_S)
    for _ in range(3):
        processes.start()
    handles = [sender.send(_bucket(0), 3)]
    processes.tell(handles[0])
    processes.answers()
    if in_flight:
        victim, _ = processes.running[1]
        os.kill(victim.pid, signal.SIGSTOP)
    handles.append(sender.send(_bucket(1, 5_000_000), 3))
    killed = 0 if in_flight else processes.kill(1)
    processes.tell(handles[1])
    if in_flight:
        time.sleep(0.3)
        killed = processes.kill(1)
    began = time.monotonic()
    for kind, message in processes.answers():
        assert (
            kind == "EngineGoneError"
            and "bucket 1 of weight update 1 did not come from 127.0.0.1:" in message
        )
        assert f"lost {socket.gethostname()}:{killed}" in message
    assert time.monotonic() - began < LIMIT_S / 2, "not the time limit"
    assert f"lost {socket.gethostname()}:{killed}" in caplog.text
    for handle in handles:
        sender.release(handle)
    processes.start()
    assert _update(sender, processes, 4) == {2}


def test_a_receiver_lost_before_the_group_is_connected_fails_the_others(
    processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    sender = Collective(LIMIT_S)
    processes.start()
    handle = sender.send(_bucket(0), 2)
    link = Link(socket.create_connection(handle["sender"]))
    link.send(update=1, id="0", name="elsewhere:1", gpu="", held=0, received=0, failed="")
    processes.tell(handle)
    assert _read(link)["group"]["generation"] == 1
    began = time.monotonic()
    del link
    ((kind, message),) = processes.answers()
    assert kind == "EngineGoneError" and "lost elsewhere:1" in message and "lost elsewhere:1" in caplog.text
    assert time.monotonic() - began < LIMIT_S / 2, "not the time limit"
    sender.release(handle)
    assert _update(sender, processes, 1) == {2}


def test_who_comes_late_or_sends_no_message_does_no_harm(processes: Processes) -> None:
    sender = Collective(LIMIT_S)
    processes.start()
    handles = [sender.send(_bucket(seed), 1) for seed in range(2)]
    strangers = [socket.create_connection(handles[0]["sender"]) for _ in range(3)]
    for stranger, said in zip(
        strangers, (b"GET / HTTP/1.1\r\n\r\n", b'{"update": 1}\n', b"x" * 5_000_000), strict=True
    ):
        with suppress(OSError):
            stranger.sendall(said)
    processes.tell(handles[0])
    assert processes.answers() == [(1, _sums(_bucket(0)))]
    late = Link(socket.create_connection(handles[0]["sender"]))
    late.send(update=1, id="0", name="elsewhere:1", gpu="", held=0, received=0, failed="")
    processes.tell(handles[1])
    assert processes.answers() == [(1, _sums(_bucket(1)))]
    for handle in handles:
        sender.release(handle)
    processes.tell(sender.send(_bucket(2), 1))
    assert processes.answers() == [(1, _sums(_bucket(2)))]
    assert _read(late)["error"] in ("1 other receivers have joined", "the update has ended")


def test_waits_end_and_name_who_is_missing(processes: Processes, caplog: pytest.LogCaptureFixture) -> None:
    sender = Collective(0.5)
    processes.start()
    handle = sender.send(_bucket(0), 2)
    processes.tell(handle)
    ((kind, message),) = processes.answers()
    assert kind == "EngineGoneError" and "waited 0.5 s for 2 receivers of weights" in message
    assert "1 of 2 never came" in message and "1 of 2 never came" in caplog.text
    sender.release(handle)
    assert _update(sender, processes, 1) == {1}


def test_a_receiver_gives_up_when_the_others_do_not_come(processes: Processes) -> None:
    sender = Collective(LIMIT_S)
    processes.start()
    handle = sender.send(_bucket(0), 2)
    processes.tell(handle, 0.5)
    ((kind, message),) = processes.answers()
    assert kind == "EngineGoneError" and "waited 0.5 s for all 2 receivers" in message
    sender.release(handle)


def test_an_update_that_nobody_received_is_given_up_when_it_is_released(processes: Processes) -> None:
    """As after wrong shapes, which an engine refuses before it receives."""
    sender = Collective(LIMIT_S)
    processes.start()
    for seed in range(2):
        sender.release(sender.send(_bucket(seed), 1))
    assert _update(sender, processes, 5) == {1}


def test_a_bucket_out_of_order_and_a_sender_that_is_gone_are_errors(processes: Processes) -> None:
    sender, receiver = Collective(LIMIT_S), Collective(LIMIT_S)
    handles = [sender.send(_bucket(seed), 1) for seed in range(2)]
    with pytest.raises(RolloutError, match="bucket 1 of weight update 1: expected the next one after 0 of 0"):
        receiver.receive(handles[1])
    with pytest.raises(ValueError, match="a bucket for 2 receivers in a weight update for 1"):
        sender.send(_bucket(0), 2)
    for handle in handles:
        sender.release(handle)
    with pytest.raises(EngineGoneError, match=r"the sender of the weights at 127\.0\.0\.1:1 does not answer"):
        Collective(0.5).receive(handles[0] | {"sender": ["127.0.0.1", 1]})


@pytest.mark.parametrize(
    "made",
    [lambda: {}, lambda: _bucket(0), lambda: {"scalar": torch.tensor(3.0), "flag": torch.tensor([True])}],
)
def test_bytes_of_a_bucket_are_its_tensors(made: Callable[[], dict[str, torch.Tensor]]) -> None:
    tensors = made()
    layout, size = layout_of(tensors)
    flat = torch.zeros(size, dtype=torch.uint8)
    pack(tensors, flat, layout)
    found = unpack(flat, layout)
    assert list(found) == list(tensors)
    assert all(
        torch.equal(found[name], value) and found[name].dtype == value.dtype
        for name, value in tensors.items()
    )
