"""Trees under real concurrency: nothing hangs, leaks, is used twice at a time, or depends on who is
faster.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest

from agent_system import BaseOrchestra, Observation, Outcome, Task, Turn
from agent_system.rollout import TooManyFailuresError
from tests.waiting import until
from verl.protocol.generate import GenerateRequest
from verl.trainer.config.run import TreeConfig

from .test_tree import CALL, TASKS, Adder, Speaker, numbers


class Watched(Adder):
    """Takes its time in threads, and notes when it is used by two at once, after its end, or closed twice."""

    blocking = True
    slow = 0.001
    faults: ClassVar[list[str]] = []
    alive: ClassVar[int] = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lock = threading.Lock()
        self.ended = False

    @contextmanager
    def use(self, what: str) -> Iterator[None]:
        if not self.lock.acquire(blocking=False):
            Watched.faults.append(f"{what} while in use")
            yield
            return
        if self.ended:
            Watched.faults.append(f"{what} after close")
        time.sleep(self.slow)
        try:
            yield
        finally:
            self.lock.release()

    def observe(self, agent_id: str) -> Observation:
        with self.use("observe"):
            return super().observe(agent_id)

    def act(self, agent_id: str, action: str) -> Outcome:
        with self.use("act"):
            return super().act(agent_id, action)

    def fork(self) -> Watched:
        with self.use("fork"):
            return type(self)(self.config, seed=self.seed, said=self.said)

    def close(self) -> None:
        with self.use("close"):
            self.ended = True
            super().close()


class Team(BaseOrchestra):
    """Plays what the test says."""

    agents = ("A", "B", "C", "D")

    def __init__(self, run: Callable[[Turn], Any]) -> None:
        super().__init__()
        self.play = run

    async def run(self, turn: Turn) -> Any:
        return await self.play(turn)


async def branches(turn: Turn) -> str:
    """Two pairs that go on when their own first call is done."""

    async def pair(first: str, second: str) -> str:
        await turn.act(first)
        return (await turn.act(second)).action

    return " ".join(await asyncio.gather(pair("A", "B"), pair("C", "D"), pair("A", "A")))


@pytest.fixture
def play(make_collector: Any, scripted: Any) -> Callable[..., Any]:
    async def run(
        script: Any, orchestra: Any, *, n: int = 1, tasks: list[Task] = TASKS[:1], k: int = 3, **options: Any
    ) -> Any:
        Watched.faults, Watched.alive, Adder.alive = [], 0, 0
        engine = scripted(script, **({"delay": options.pop("delay")} if "delay" in options else {}))
        agents = {name: Speaker(name) for name in Team.agents}
        options = {
            "env": Adder,
            "reward": CALL,
            "max_steps": 2,
            "max_failure_rate": 1.0,
            "tree": TreeConfig(k=k, select="softmax"),
        } | options
        collector = make_collector(engine, orchestra=Team(orchestra), agents=agents, **options)
        return await collector.collect(tasks, n, step=1)

    return run


def rows(result: Any) -> list[Any]:
    return [e.to_json() for e in result.episodes]


async def jitter(request: GenerateRequest) -> None:
    await asyncio.sleep(random.random() * 0.01)


@pytest.mark.parametrize("env", [Adder, Watched])
async def test_branches_of_several_calls_are_the_same_whoever_is_answered_first(play, env) -> None:
    plain = await play(numbers(), branches, env=env, tasks=TASKS, n=2)
    assert not any(e.failed for e in plain.episodes)
    assert [s.agent_id for s in plain.episodes[0].committed if s.identity.turn == 1] == [
        "A",
        "C",
        "A",
        "B",
        "D",
        "A",
    ]
    for _ in range(4):
        other = await play(
            numbers(), branches, env=env, tasks=TASKS, n=2, delay=jitter, max_concurrent_episodes=3
        )
        assert rows(other) == rows(plain)
        assert list(other.batch.non_tensor_batch["call"]) == list(plain.batch.non_tensor_batch["call"])
    assert Watched.faults == []


async def test_a_failed_call_returns_only_after_its_simultaneous_calls_are_done(play) -> None:
    async def mends(turn: Turn) -> str:
        async def pair() -> str:
            try:
                await turn.act("A")
            except Exception:
                return (await turn.act("B")).action
            return "A was fine"

        return " ".join(await asyncio.gather(pair(), _action(turn, "C")))

    def script(_prompt: str, request: GenerateRequest) -> str:
        return "13" if request.request_id.endswith(".0") else str(request.seed % 8 + 1)

    plain = await play(script, mends, n=3)
    assert [s.agent_id for s in plain.episodes[0].committed if s.identity.turn == 1] == ["C", "B"]
    second = next(s for s in plain.episodes[0].samples if s.agent_id == "B")
    assert f"said {plain.episodes[0].committed[0].action}." in second.request.prompt_text
    for slow in (".0", ".1"):

        async def one_is_slow(request: GenerateRequest, slow: str = slow) -> None:
            await asyncio.sleep(0.01 * request.request_id.endswith(slow))

        assert rows(await play(script, mends, n=3, delay=one_is_slow)) == rows(plain)


async def test_calls_cancelled_together_do_not_block_the_turn(play) -> None:
    async def gives_up(turn: Turn) -> str:
        try:
            async with asyncio.timeout(0.05):
                await asyncio.gather(turn.act("A"), turn.act("B"))
        except TimeoutError:
            turn.info["gave_up"] = 1
        return "nothing"

    async def b_is_slow(request: GenerateRequest) -> None:
        await asyncio.sleep(60 * request.request_id.endswith(".1"))

    episode = (await play(numbers(), gives_up, delay=b_is_slow, episode_timeout_s=5.0)).episodes[0]
    assert not episode.failed, episode.failure
    assert (episode.info["gave_up"], episode.turns, episode.samples) == (1, 2, ())
    assert Adder.alive == 0


async def test_a_call_cancelled_while_it_waits_for_another_is_left_out_and_the_other_continues(play) -> None:
    async def one_goes(turn: Turn) -> str:
        quick, slow = asyncio.create_task(turn.act("A")), asyncio.create_task(turn.act("B"))
        await asyncio.sleep(0.02)
        quick.cancel()
        return (await slow).action

    async def b_is_slow(request: GenerateRequest) -> None:
        await asyncio.sleep(0.05 * request.request_id.endswith(".1"))

    episode = (await play(numbers(), one_goes, delay=b_is_slow, k=2)).episodes[0]
    assert not episode.failed, episode.failure
    assert [s.agent_id for s in episode.committed] == ["B", "B"]
    assert episode.info["sum"] == sum(int(s.action) for s in episode.committed)
    assert Adder.alive == 0


async def test_a_failed_commit_ends_the_episode_although_its_callers_catch_the_error(play) -> None:
    class BreaksTogether(Adder):
        def act(self, agent_id: str, action: str) -> Outcome:
            if len(self.said) == 1:
                raise ValueError("two in a row")
            return super().act(agent_id, action)

    async def tolerant(turn: Turn) -> str:
        await asyncio.gather(turn.act("A"), turn.act("B"), return_exceptions=True)
        return ""

    episode = (await play(numbers(), tolerant, env=BreaksTogether)).episodes[0]
    assert "two in a row" in episode.failure


class Held(Watched):
    """A fork, or an `act`, says that a thread is in it and stays a while."""

    held = "fork"
    inside = threading.Event()
    threads: ClassVar[set[int]] = set()  # that are in it
    stay = 0.1

    @contextmanager
    def hold(self, what: str) -> Iterator[None]:
        self.threads.add(threading.get_ident())
        try:
            if what == self.held:
                self.inside.set()
                time.sleep(self.stay)
            yield
        finally:
            self.threads.discard(threading.get_ident())

    def fork(self) -> Held:
        with self.hold("fork"):
            return super().fork()  # type: ignore[return-value]

    def act(self, agent_id: str, action: str) -> Outcome:
        with self.hold("act"):
            return super().act(agent_id, action)


async def stops_inside(turn: Turn) -> str:
    """Fails the episode while a thread is at work on a candidate."""
    Held.inside.clear()
    call = asyncio.create_task(turn.act("A"))
    while not Held.inside.is_set():
        await asyncio.sleep(0.001)
    raise RuntimeError(f"enough of {call.get_name()}")


@pytest.mark.parametrize("what", ["fork", "act"])
async def test_an_episode_that_ends_in_the_middle_of_a_trial_leaves_no_fork_behind(
    play, monkeypatch, what: str
) -> None:
    monkeypatch.setattr(Held, "held", what)
    episode = (await play(numbers(), stops_inside, env=Held)).episodes[0]
    assert "enough" in episode.failure
    await until(lambda: not Held.threads)
    await until(lambda: Held.alive == 0)
    assert Watched.faults == []


@pytest.mark.timing
async def test_a_fork_that_hangs_is_abandoned_with_a_warning(play, monkeypatch, caplog) -> None:
    monkeypatch.setattr("agent_system.rollout.forks.CLOSE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(Held, "stay", 3.0)
    began = time.monotonic()
    await play(numbers(), stops_inside, env=Held)
    assert time.monotonic() - began < 3.0
    assert "Held.fork() did not return within 0.05 s; abandoned" in caplog.text
    assert "Held.close() did not return within 0.05 s; abandoned" in caplog.text


async def test_stopping_the_run_while_episodes_are_being_closed_closes_every_world(play) -> None:
    class SlowlyClosed(Watched):
        def close(self) -> None:
            time.sleep(0.05)
            super().close()

    async def a_fails(turn: Turn) -> str:
        return (await turn.act("A")).action

    def script(_prompt: str, request: GenerateRequest) -> str:
        return "13" if request.request_id.startswith("step1/a/0#0") else "9"

    with pytest.raises(TooManyFailuresError, match="unlucky"):
        await play(script, a_fails, env=SlowlyClosed, n=3, max_failure_rate=0.0, env_threads=2)
    await until(lambda: SlowlyClosed.alive == 0)
    assert Watched.faults == []


async def test_losers_are_closed_at_the_same_time_and_only_once(play) -> None:
    meeting = threading.Barrier(3, timeout=30)

    class Meets(Watched):
        def close(self) -> None:
            # two losers and the state before; the last state of the episode is closed alone
            if self.said[-1:] != ("/",):
                meeting.wait()
            super().close()

    async def alone(turn: Turn) -> str:
        return (await turn.act("A")).action

    result = await play(numbers(), alone, env=Meets, k=3, max_steps=1)
    assert not result.episodes[0].failed and not meeting.broken
    assert (Watched.faults, Meets.alive) == ([], 0)


async def test_a_fork_that_cannot_be_closed_is_logged_and_does_not_affect_the_episode(play, caplog) -> None:
    class Clings(Adder):
        def close(self) -> None:
            super().close()
            if self.said and self.said[-1] != "/":
                raise OSError("no")

    episode = (await play(numbers(), branches, env=Clings)).episodes[0]
    assert not episode.failed
    assert "Clings.close() failed on a fork: OSError: no" in caplog.text
    assert Clings.alive == 0


async def test_calls_at_the_same_time_never_use_a_blocking_world_at_the_same_time(play) -> None:
    for tree in (TreeConfig(3), None):
        result = await play(numbers(), branches, env=Watched, n=4, tree=tree)
        assert not any(e.failed for e in result.episodes)
        assert Watched.faults == []


async def test_a_world_that_raises_stop_iteration_is_an_error_and_no_wait_for_ever(play) -> None:
    class Exhausted(Watched):
        def act(self, agent_id: str, action: str) -> Outcome:
            return next(iter(()))

    async def alone(turn: Turn) -> str:
        return (await turn.act("A")).action

    episode = (await play(numbers(), alone, env=Exhausted, episode_timeout_s=5.0)).episodes[0]
    assert "act raised StopIteration" in episode.failure


async def _action(turn: Turn, agent_id: str) -> str:
    return (await turn.act(agent_id)).action
