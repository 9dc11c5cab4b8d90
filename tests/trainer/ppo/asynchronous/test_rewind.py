"""Takes of steps that no policy was trained on are undone before a checkpoint, with what was left out and dropped before them."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from verl.trainer.config import RunConfig
from verl.trainer.ppo.asynchronous.group_queue import GroupQueue
from verl.trainer.ppo.asynchronous.pace import Pace
from verl.trainer.ppo.asynchronous.played import Played, Taken
from verl.trainer.ppo.asynchronous.saved_groups import FOLDER
from verl.trainer.ppo.asynchronous.stream import GroupStream
from verl.utils.loop_thread import LoopThread


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("test")
    yield thread
    thread.close()


def stream(loop: LoopThread, saved: list[Any]) -> GroupStream:
    """A stream without episodes in progress, whose collector keeps what it saves."""
    collector = SimpleNamespace(save_episodes=lambda episodes, folder: saved.extend(episodes), load_episodes=lambda folder: list(saved))
    loader: Any = SimpleNamespace(state_dict=dict, load_state_dict=lambda state: None)
    pace = {"p": Pace(staleness=3.0, trigger=1, bound=9)}
    made = GroupStream(RunConfig(), collector, loader, loop, lambda *_: None, 9, pace, {})  # type: ignore[arg-type]
    made.queue = GroupQueue(1, pace, drops=True, steps=9)
    return made


def test_two_takes_are_undone_and_saved_with_what_was_dropped_before_them(loop: LoopThread, tmp_path: Path) -> None:
    saved: list[Any] = []
    ours = stream(loop, saved)
    groups = [ours.queue.dispatch(place, 0, 0) for place in range(5)]
    names = ["first", "second", "failed", "dropped", "third"]
    held = [(group, Played([name])) for group, name in zip(groups, names, strict=True)]  # type: ignore[list-item]
    for group, played in (held[0], held[1], held[4]):
        ours.queue.end(group, played)
    ours.queue.fail(groups[2])
    del ours.queue.running[3]
    ours.queue.dropped = 1
    for step, (left_out, late) in enumerate((([], []), ([held[2]], []), ([], [held[3]])), start=1):
        taken = ours.queue.take(step)
        assert taken is not None
        ours._taken.append(Taken(step, taken, left_out, late))
    assert ours.metrics(1, 1.0)["fully_async/count/training"] == 2 and ours.queue.trained == 3

    ours.rewind(1)
    assert (ours.queue.taken, ours.queue.trained) == (1, 1) and ours._taken == deque()
    ours.save(tmp_path)
    assert saved == ["third", "second", "failed", "dropped"] and (tmp_path / FOLDER).is_dir()
    again = stream(loop, saved)
    again.load(tmp_path)
    assert [played.sampled for _, played in again.queue.complete.values()] == [["third"], ["second"]]
    assert [(group.index, played.sampled) for group, played in again._left_out] == [(2, ["failed"])]
    assert [(group.index, played.sampled) for group, played in again.queue.late] == [(3, ["dropped"])]
    assert again.queue.counts() == ours.queue.counts()
