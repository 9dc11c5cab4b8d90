"""Weights on their way to an engine: every bucket once, in order, the last one said to be it, whoever dies
meanwhile.
"""

from __future__ import annotations

from typing import Any

import pytest

from verl.protocol.generate import EngineGoneError
from verl.single_controller.worker_group import ArgumentLostError, WorkerDiedError
from verl.trainer.ppo.weight_sync import send_weights
from verl.workers.weight_transfer.base import WeightBucket


class Pending:
    def __init__(self, value: Any) -> None:
        self.value = value

    def get(self) -> Any:
        return self.value


class Policy:
    """A group of two ranks, of which the first returns buckets, so many of each adapter."""

    def __init__(self, sizes: dict[str | None, int]) -> None:
        self.sizes, self.left, self.dead = sizes, iter(()), False

    def next_weights(self, restart: bool, adapter: str | None = None) -> list[WeightBucket | None]:
        if self.dead:
            raise WorkerDiedError("worker policy:0 died while it ran next_weights: out of memory")
        if restart:
            self.left = iter(
                [WeightBucket(f"{adapter}{i}", {"w": (1,)}, 10 + i) for i in range(self.sizes[adapter])]
            )
        return [next(self.left, None), None]

    def free_weights(self) -> None:
        self.left = iter(())

    def execute_all_async(self, method: str, *args: Any) -> Pending:
        return Pending(getattr(self, method)(*args))


class Engine:
    """Notes what it gets; fails at the bucket of that name."""

    def __init__(self, fails: dict[str, Exception] | None = None, policy: Policy | None = None) -> None:
        self.got: list[tuple[Any, ...]] = []
        self.fails, self.policy, self.awake = fails or {}, policy, 0

    def update_weights(
        self, handle: Any, shapes: Any, version: int, final: bool, adapter: str | None
    ) -> None:
        assert shapes == {"w": (1,)}
        if handle in self.fails:
            if self.policy is not None:
                self.policy.dead = True
            raise self.fails.pop(handle)
        self.got.append((handle, version, final, adapter))

    def wake(self) -> None:
        self.awake += 1


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_bucket_goes_once_in_order_and_the_last_ends_the_update(count: int) -> None:
    engine = Engine()
    assert send_weights(Policy({None: count}), engine, {None: 7}) == sum(10 + i for i in range(count))  # type: ignore[arg-type]
    assert engine.got == [(f"None{i}", 7, i == count - 1, None) for i in range(count)] and engine.awake == 1


def test_adapters_go_one_after_the_other() -> None:
    engine = Engine()
    assert send_weights(Policy({"a": 2, "b": 1}), engine, {"a": 3, "b": 2}) == 10 + 11 + 10  # type: ignore[arg-type]
    assert (
        engine.got == [("a0", 3, False, "a"), ("a1", 3, True, "a"), ("b0", 2, True, "b")]
        and engine.awake == 1
    )


def test_after_an_engine_has_died_its_successor_gets_everything_from_the_first_bucket() -> None:
    policy, engine = Policy({None: 4}), Engine({"None1": WorkerDiedError("worker engine:0 died")})
    with pytest.raises(EngineGoneError, match="worker engine:0 died"):
        send_weights(policy, engine, {None: 1})  # type: ignore[arg-type]
    assert engine.awake == 0
    send_weights(policy, successor := Engine(), {None: 1})  # type: ignore[arg-type]
    assert [name for name, *_ in successor.got] == ["None0", "None1", "None2", "None3"]


def test_a_policy_that_dies_with_a_bucket_is_named_with_the_cause() -> None:
    policy = Policy({None: 4})
    engine = Engine({"None1": ArgumentLostError("an argument of load for worker engine:0 is lost")}, policy)
    with pytest.raises(
        WorkerDiedError, match="worker policy:0 died while it ran next_weights: out of memory"
    ):
        send_weights(policy, engine, {None: 1})  # type: ignore[arg-type]


def test_a_bucket_that_is_lost_while_its_policy_lives_is_not_the_engines_death() -> None:
    with pytest.raises(ArgumentLostError):
        send_weights(Policy({None: 2}), Engine({"None0": ArgumentLostError("lost")}), {None: 1})  # type: ignore[arg-type]
