"""Errors for lost objects, without Ray: a lost result is the death of its worker, a lost argument is not."""

import asyncio
import concurrent.futures
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, ObjectLostError, OwnerDiedError, RayTaskError

from verl.single_controller.base.worker_group import ArgumentLostError, WorkerDiedError
from verl.single_controller.ray.pending import RayPendingResults

RESULT = ObjectLostError("00ff", "owner", "")
ARGUMENT = RayTaskError(
    "take", "Traceback\nray.exceptions.OwnerDiedError: its owner died", OwnerDiedError("00ff", "owner", "")
).as_instanceof_cause()


class Ref:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def future(self) -> concurrent.futures.Future[Any]:
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        done.set_exception(self.error)
        return done


def raised(errors: list[Exception], on_a_loop: bool, monkeypatch: pytest.MonkeyPatch) -> Exception:
    """What a group says of calls that ended so."""

    def get(ref: Ref, timeout: float | None = None) -> Any:
        raise (ref[0] if isinstance(ref, list) else ref).error

    monkeypatch.setattr(ray, "wait", lambda refs, num_returns, timeout: (refs[:1], refs[1:]))
    monkeypatch.setattr(ray, "get", get)
    pending = RayPendingResults(
        [Ref(error) for error in errors], [f"w:{rank}" for rank in range(len(errors))], "take", 5.0
    )
    with pytest.raises(WorkerDiedError) as found:
        asyncio.run(pending.wait()) if on_a_loop else pending.get()
    return found.value


@pytest.mark.parametrize("on_a_loop", [False, True])
def test_a_lost_result_is_the_death_of_its_worker_and_a_lost_argument_is_not(
    on_a_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = raised([RESULT], on_a_loop, monkeypatch)
    assert not isinstance(dead, ArgumentLostError) and str(dead).startswith(
        "worker w:0 died while it ran take"
    )
    lost = raised([ARGUMENT], on_a_loop, monkeypatch)
    assert isinstance(lost, ArgumentLostError) and "an argument of take for worker w:0 is lost" in str(lost)


@pytest.mark.parametrize("death", [RESULT, ActorDiedError()])
@pytest.mark.parametrize("on_a_loop", [False, True])
def test_a_death_comes_before_what_others_lost(
    on_a_loop: bool, death: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = str(raised([ARGUMENT, death], on_a_loop, monkeypatch))
    assert said.startswith("worker w:1 died while it ran take")
