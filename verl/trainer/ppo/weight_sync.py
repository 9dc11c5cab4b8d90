"""New weights of a worker group's policies, from its policy workers to its engines."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from verl.protocol.generate import EngineGoneError
from verl.single_controller.base import WorkerGroup
from verl.single_controller.base.worker_group import ArgumentLostError, WorkerDiedError
from verl.workers.policy_worker import WeightBucket


def send_weights(policy: WorkerGroup, engine: WorkerGroup, adapters: Collection[str], version: int) -> int:
    """Send the weights of the adapters, or with none those of the model; replies sampled from then on carry `version`.

    On Ray the tensors go from worker to worker; of each policy at most three buckets exist at a time.

    Returns the bytes sent.

    Raises:
        EngineGoneError: the engine is dead.
        WorkerDiedError: a policy worker is.
    """
    n_bytes = 0
    for adapter in adapters or (None,):
        for bucket, last in _buckets(policy, adapter):
            with gone_when_dead():
                engine.update_weights(bucket.tensors, version, last, adapter)
            n_bytes += bucket.n_bytes
    with gone_when_dead():
        engine.wake()
    return n_bytes


def _buckets(policy: WorkerGroup, adapter: str | None) -> Iterator[tuple[WeightBucket, bool]]:
    """Every bucket, and whether it is the last. While one is sent, the one after the next is gathered."""
    bucket: WeightBucket | None = policy.next_weights(True, adapter)[0]
    coming = policy.execute_all_async("next_weights", False, adapter)
    while bucket is not None:
        following = coming.get()[0]
        if following is not None:
            coming = policy.execute_all_async("next_weights", False, adapter)
        yield bucket, following is None
        bucket = following


@contextmanager
def gone_when_dead() -> Iterator[None]:
    """A dead worker as a dead engine; not one that died with what was to be sent."""
    try:
        yield
    except ArgumentLostError:
        raise
    except WorkerDiedError as error:
        raise EngineGoneError(str(error)) from error
