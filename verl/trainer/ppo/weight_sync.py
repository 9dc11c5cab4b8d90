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
    n_bytes = sum(_send(policy, engine, adapter, version) for adapter in adapters or (None,))
    with gone_when_dead():
        engine.wake()
    return n_bytes


def _send(policy: WorkerGroup, engine: WorkerGroup, adapter: str | None, version: int) -> int:
    """One policy's weights. While a bucket is sent, the one after the next is gathered."""
    n_bytes = 0
    bucket: WeightBucket | None = policy.next_weights(True, adapter)[0]
    coming = policy.execute_all_async("next_weights", False, adapter)
    while bucket is not None:
        following = coming.get()[0]
        if following is not None:
            coming = policy.execute_all_async("next_weights", False, adapter)
        try:
            with gone_when_dead():
                engine.update_weights(bucket.tensors, version, following is None, adapter)
        except ArgumentLostError:
            policy.next_weights(False, adapter)  # says who died, and of what
            raise
        n_bytes += bucket.n_bytes
        bucket = following
    return n_bytes


@contextmanager
def gone_when_dead() -> Iterator[None]:
    """A dead worker as a dead engine; not one that died with what was to be sent."""
    try:
        yield
    except ArgumentLostError:
        raise
    except WorkerDiedError as error:
        raise EngineGoneError(str(error)) from error
