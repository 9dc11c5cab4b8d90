"""Weight synchronization: from the policy workers of a worker group to its engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from verl.protocol.generate import EngineGoneError
from verl.single_controller.worker_group import ArgumentLostError, WorkerDiedError, WorkerGroup
from verl.workers.weight_transfer.base import WeightBucket, merged


def send_weights(policy: WorkerGroup, engine: WorkerGroup, versions: Mapping[str | None, int]) -> int:
    """Send the weights of adapters, or of the model (None), and return the bytes sent; replies
    sampled afterwards carry their version.

    Tensors are sent from worker to worker, by `rollout.weight_transfer`; at most three buckets of a
    policy exist at a time.

    Raises:
        EngineGoneError: the engine died.
        WorkerDiedError: a policy worker died.
    """
    n_bytes = 0
    for adapter, version in versions.items():
        try:
            n_bytes += load_weights(engine, _gathered(policy, adapter), version, adapter)
        except ArgumentLostError:
            # raises WorkerDiedError with the cause
            policy.next_weights(False, adapter)
            raise
    policy.free_weights()
    with engine_errors():
        engine.wake()
    return n_bytes


def load_weights(
    engine: WorkerGroup, buckets: Iterator[WeightBucket], version: int, adapter: str | None
) -> int:
    """Let an engine load all buckets of one policy, the last one marked as last, and return their
    bytes.

    Raises:
        EngineGoneError: the engine died.
        ArgumentLostError: the sender died, and a bucket is lost.
    """
    n_bytes = 0
    bucket = next(buckets, None)
    while bucket is not None:
        following = next(buckets, None)
        with engine_errors():
            engine.update_weights(bucket.handle, bucket.shapes, version, following is None, adapter)
        n_bytes += bucket.n_bytes
        bucket = following
    return n_bytes


def _gathered(policy: WorkerGroup, adapter: str | None) -> Iterator[WeightBucket]:
    """Yield the buckets of one policy's weights; the next one is gathered while a bucket is sent."""
    bucket: WeightBucket | None = merged(policy.next_weights(True, adapter))
    while bucket is not None:
        coming = policy.execute_all_async("next_weights", False, adapter)
        yield bucket
        bucket = merged(coming.get())


@contextmanager
def engine_errors() -> Iterator[None]:
    """Raise EngineGoneError for a worker of an engine that died; an argument lost with its sender
    stays ArgumentLostError.
    """
    try:
        yield
    except ArgumentLostError:
        raise
    except WorkerDiedError as error:
        raise EngineGoneError(str(error)) from error
