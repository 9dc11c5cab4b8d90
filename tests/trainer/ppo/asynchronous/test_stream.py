"""What the stream of groups asks of engines when the weights of policies are sent to them."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from verl.trainer.config import RunConfig
from verl.trainer.plan.learners import Pace
from verl.trainer.plan.run import RunPlan
from verl.trainer.ppo.asynchronous.stream import GroupStream
from verl.utils.loop_thread import LoopThread


@pytest.mark.parametrize("partial", [False, True])
def test_before_new_weights_of_an_adapter_its_own_replies_end_unless_they_may_go_on(partial: bool) -> None:
    calls: list[tuple[str, str | None]] = []

    async def drain(adapter: str | None) -> None:
        calls.append(("drain", adapter))

    client: Any = SimpleNamespace(drain=drain, release=lambda adapter: calls.append(("release", adapter)))
    config, loop, parts = RunConfig(), LoopThread("test"), [SimpleNamespace() for _ in range(2)]
    config.async_training.partial_rollout = partial
    engines = {"p": (client, "a"), "q": (client, "b"), "whole": (client, None)}
    stream = GroupStream(
        config, RunPlan((), ()), *parts, loop, lambda *_: None, 9, dict.fromkeys(engines, Pace()), engines
    )  # type: ignore[arg-type]
    stream.update_ended(1, ["p"])
    stream.published(1, ["p"])
    stream.update_ended(1, ["q", "whole"])
    loop.close()
    assert calls == ([] if partial else [("drain", "a"), ("release", "a"), ("drain", "b"), ("drain", None)])
    assert stream.queue.versions == {"p": 1, "q": 0, "whole": 0}


def test_whether_weights_are_sent_is_read_on_the_event_loop_from_any_thread() -> None:
    readers = set[str]()

    class Versions(dict[str, int]):
        def __getitem__(self, policy: str) -> int:
            readers.add(threading.current_thread().name)
            return super().__getitem__(policy)

    parts, loop = [SimpleNamespace() for _ in range(2)], LoopThread("test")
    stream = GroupStream(
        RunConfig(), RunPlan((), ()), *parts, loop, lambda *_: None, 9, {"p": Pace(trigger=2)}, {}
    )  # type: ignore[arg-type]
    stream.queue.versions = Versions(p=0)
    assert (stream.wants(1, "p"), stream.wants(2, "p"), readers) == (False, True, {"test"})
    loop.close()
