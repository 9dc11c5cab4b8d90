"""New weights of a worker group's policies, from its policy workers to its engines."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from verl.protocol.generate import EngineGoneError
from verl.single_controller.worker_group import ArgumentLostError, WorkerDiedError, WorkerGroup
from verl.workers.weight_transfer.base import WeightBucket


def send_weights(policy: WorkerGroup, engine: WorkerGroup, adapters: Collection[str], version: int) -> int:
    """Send the weights of the adapters, or with none those of the model; replies sampled from then on carry `version`.

    Tensors go from worker to worker, as `rollout.weight_transfer` says; of each policy at most three buckets exist at a time.

    Returns the bytes sent.

    Raises:
        EngineGoneError: the engine is dead.
        WorkerDiedError: a policy worker is.
    """
    n_bytes = 0
    for adapter in adapters or (None,):
        try:
            n_bytes += load_weights(engine, _gathered(policy, adapter), version, adapter)
        except ArgumentLostError:
            policy.next_weights(False, adapter)  # says who died, and of what
            raise
    policy.free_weights()
    with gone_when_dead():
        engine.wake()
    return n_bytes


def load_weights(engine: WorkerGroup, buckets: Iterator[WeightBucket], version: int, adapter: str | None) -> int:
    """Let an engine load all buckets of one policy, the last one said to be it; returns their bytes.

    Raises:
        EngineGoneError: the engine is dead.
        ArgumentLostError: the sender is, with a bucket.
    """
    n_bytes, bucket = 0, next(buckets, None)
    while bucket is not None:
        following = next(buckets, None)
        with gone_when_dead():
            engine.update_weights(bucket.handle, bucket.shapes, version, following is None, adapter)
        n_bytes += bucket.n_bytes
        bucket = following
    return n_bytes


def _gathered(policy: WorkerGroup, adapter: str | None) -> Iterator[WeightBucket]:
    """One policy's weights. When a bucket is handed out, the next one is being gathered."""
    bucket: WeightBucket | None = policy.next_weights(True, adapter)[0]
    while bucket is not None:
        coming = policy.execute_all_async("next_weights", False, adapter)
        yield bucket
        bucket = coming.get()[0]


@contextmanager
def gone_when_dead() -> Iterator[None]:
    """A dead worker as a dead engine; not one that died with what was to be sent."""
    try:
        yield
    except ArgumentLostError:
        raise
    except WorkerDiedError as error:
        raise EngineGoneError(str(error)) from error
