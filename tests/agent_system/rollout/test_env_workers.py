"""Environments in worker processes: the same episodes as in the driver, and what is left when a
worker dies.
"""

import asyncio
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent_system import BaseOrchestra, EnvRegistry, Task, Turn
from agent_system.env_workers import EnvSource, EnvWorkerError, EnvWorkers, ProcessWorker, host
from agent_system.env_workers.host import EnvHost
from agent_system.env_workers.messages import Transport
from agent_system.projection import Projection
from agent_system.rollout import Collector, CollectResult, TreeConfig
from agent_system.rollout.player import EpisodePlayer, TooManyFailuresError
from tests.agent_system.rollout.conftest import Solver, Verifier
from tests.agent_system.rollout.worlds import Dice
from tests.waiting import wait_until
from verl.trainer.config.reward import RewardConfig
from verl.trainer.ppo.controller import import_path

WORLDS = "tests.agent_system.rollout.worlds"


class Roller(BaseOrchestra):
    agents = ("Solver", "Verifier")

    async def run(self, turn: Turn) -> str:
        await turn.act("Verifier")
        return (await turn.act("Solver")).action


@contextmanager
def workers(
    num: int, name: str = "dice", start: Callable[[bytes], Transport] = ProcessWorker, **source: Any
) -> Iterator[EnvWorkers]:
    payload = pickle.dumps(EnvSource(name, plugins=(WORLDS,), **source))
    started = EnvWorkers(EnvRegistry.get(name), num, lambda: start(payload))
    try:
        yield started
    finally:
        started.close()


@pytest.fixture(scope="module")
def pair() -> Iterator[EnvWorkers]:
    with workers(2) as started:
        yield started


Play = Callable[..., CollectResult]


@pytest.fixture
def play(make_collector: Callable[..., Collector], scripted: Callable[..., Any]) -> Play:
    def run(prompts: list[str], started: EnvWorkers | None, n: int = 1, **settings: Any) -> CollectResult:
        env = Dice if started is None else started.env_class
        if settings.get("tree"):
            settings["reward"] = RewardConfig(team_scope="call")
        engine = scripted(*settings.pop("script", []))
        options = {"max_steps": 3, "max_failure_rate": 1.0, **settings}
        collector = make_collector(engine, orchestra=Roller(), env=env, workers=started, **options)
        return asyncio.run(collector.collect([Task(f"{i}", p) for i, p in enumerate(prompts)], n, step=1))

    return run


@pytest.mark.parametrize("tree", [None, TreeConfig(k=3, select="softmax")])
def test_the_same_seed_gives_the_same_episodes_with_0_1_and_4_workers(
    play: Play, tree: TreeConfig | None
) -> None:
    prompts = ["fine", "step:raise", "fine", "reset:raise", "fork:raise"]
    at_home = play(prompts, None, n=2, tree=tree)
    assert at_home.metrics["episode/count"] == (4 if tree else 6)
    for num in (1, 4):
        with workers(num) as started:
            away = play(prompts, started, n=2, tree=tree)
        assert away.episodes == at_home.episodes
        assert away.metrics == at_home.metrics


@pytest.mark.parametrize("method", ["reset", "observe", "step", "fork", "score"])
def test_an_episode_that_kills_two_workers_fails_and_both_are_replaced(
    play: Play, pair: EnvWorkers, method: str
) -> None:
    tree = TreeConfig(k=2) if method in ("fork", "score") else None
    failures = [episode.failure for episode in play(["fine", f"{method}:kill"], pair, tree=tree).episodes]
    assert failures[0] is None and failures[1] is not None
    assert f"Dice.{method}() was lost with its environment worker: it died (SIGKILL)" in failures[1]
    assert [episode.failure for episode in play(["fine"] * 4, pair).episodes] == [None] * 4


@pytest.mark.parametrize(
    "method", ["reset", "observe", "act", "step", "close", "fork", "score", "close of a fork"]
)
def test_episodes_of_a_killed_worker_are_played_again_to_the_bit(
    play: Play, pair: EnvWorkers, method: str, tmp_path: Path
) -> None:
    tree = TreeConfig(k=2) if "fork" in method or method == "score" else None
    method = method.partition(" ")[0]
    prompts = ["fine", f"{method}:kill once {tmp_path / 'killed'}", "fine", "fine"]
    away = play(prompts, pair, n=2, tree=tree, max_failure_rate=0.0)
    assert (tmp_path / "killed").exists()
    at_home = play(prompts, None, n=2, tree=tree)
    assert away.episodes == at_home.episodes and away.metrics == at_home.metrics
    assert away.metrics["episode/failed"] == 0


def kill(workers: EnvWorkers) -> None:
    """Kill the processes of all workers, and wait until the driver has seen their end."""
    for worker in workers._workers:
        with suppress(ProcessLookupError):  # an earlier test has killed it
            os.kill(worker._transport.pid, signal.SIGKILL)
    wait_until(lambda: all(worker.dead is not None for worker in workers._workers))


def test_the_socket_of_a_dead_worker_is_closed_after_its_last_frame_was_sent() -> None:
    """Its descriptor may be that of another file afterwards."""
    with workers(1) as started:
        worker, begun, sent = started._workers[0]._transport, threading.Event(), threading.Event()

        class Slow:
            recv_bytes, real = worker._connection.recv_bytes, worker._connection

            def send_bytes(self, frame: bytes) -> None:
                begun.set()
                time.sleep(0.3)
                sent.set()

            def close(self) -> None:
                closed.set_result(sent.is_set())
                self.real.close()

        closed = Future[bool]()
        worker._connection = Slow()
        worker.send(99, b"late")
        assert begun.wait(30)
        worker.kill()
        assert closed.result(30), "closed while the frame was being sent"


def test_an_episode_is_not_played_again_during_a_validation(
    play: Play, pair: EnvWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, seen = EpisodePlayer._run, list[str]()

    async def lost_once(player: EpisodePlayer, spec: Any) -> Any:
        seen.append("begins" if player._open.is_set() else "begins in a validation")
        if len(seen) > 1:
            return await run(player, spec)
        player.set_open(False)
        asyncio.get_running_loop().call_later(0.2, player.set_open, True)
        lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        lost.set_exception(EnvWorkerError("killed"))
        return None, lost

    monkeypatch.setattr(EpisodePlayer, "_run", lost_once)
    assert [episode.failure for episode in play(["fine"], pair).episodes] == [None]
    assert seen == ["begins", "begins"]


def test_workers_that_die_while_nobody_asks_them_are_replaced(play: Play, pair: EnvWorkers) -> None:
    at_home, left = play(["fine"] * 2, None, n=2), [3]

    def reply(prompt: str, _request: Any) -> str:
        left[0] -= 1
        if left[0] == 0:
            kill(pair)
        return "<verify>approve</verify>" if "Check:" in prompt else "so \\boxed{4}"

    kill(pair)  # between two collections; then while replies are generated
    assert play(["fine"] * 2, pair, n=2, script=[reply], max_failure_rate=0.0).episodes == at_home.episodes
    assert left[0] < 0


def test_starts_that_fail_use_up_the_tries_of_episodes_and_then_the_rate_of_failures(
    play: Play, pair: EnvWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, fatal, starts = pair._start, range(2), 0

    def dying() -> Transport:
        nonlocal starts
        worker, starts = start(), starts + 1
        if starts - 1 in fatal:
            worker.kill()
            # else an episode may ask for a second one before its end is known
            wait([worker.started], 20 if fatal == range(2) else 0)
        return worker

    monkeypatch.setattr(pair, "_start", dying)
    kill(pair)
    assert [episode.failure for episode in play(["fine"] * 4, pair, max_failure_rate=0.0).episodes] == [
        None
    ] * 4
    assert starts == 4
    kill(pair)
    play(["fine"], pair)
    assert starts == 5, "an episode replaces the worker that it uses, and no other"
    kill(pair)
    fatal = range(10**6)
    with pytest.raises(
        TooManyFailuresError,
        match=r"Dice.reset\(\) was lost with its environment worker: it could not start: it died",
    ):
        play(["fine"] * 20, pair, max_failure_rate=0.5)
    assert starts <= 5 + 2 * 20, "an episode asks for a worker twice"


@pytest.mark.parametrize(
    "prompt, cause",
    [
        ("step:raise", "KeyError: 'no such die' (worlds.py:"),
        ("step:wrong type", "AgentSystemError: Dice.step() must return Outcome, found str (env_caller.py:"),
        (
            "step:cannot be pickled",
            "the value that Dice.step() returned cannot be pickled, which env.workers.num>0 needs: TypeError",
        ),
        (
            "step:hang",
            "TimeoutError: episode took longer than rollout.episode_timeout_s=2 s, waiting for the "
            "environment's step 1",
        ),
    ],
)
def test_what_fails_in_a_worker_has_its_cause(
    play: Play, pair: EnvWorkers, prompt: str, cause: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr("agent_system.rollout.forks.CLOSE_TIMEOUT_S", 0.2)
    play(["fine"] * 2, pair)  # starts what an earlier test has killed, which takes its time
    limit = {"episode_timeout_s": 2.0} if prompt == "step:hang" else {}
    bad, good = play([prompt, "fine"], pair, **limit).episodes
    assert bad.failure is not None and cause in bad.failure
    assert "\n" not in bad.failure and good.failure is None


def test_an_action_that_cannot_be_pickled_names_the_method(
    play: Play, pair: EnvWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(self: Roller, turn: Turn) -> Any:
        return lambda: None

    monkeypatch.setattr(Roller, "run", run)
    (episode,) = play(["fine"], pair).episodes
    assert episode.failure is not None and "an argument of Dice.step() cannot be pickled" in episode.failure


def test_a_worker_above_its_memory_limit_is_replaced(play: Play) -> None:
    with workers(1, memory_bytes=2**28) as started:
        (bad,) = play(["step:grow"], started).episodes
        assert bad.failure is not None and "more than env.workers.memory_gib=0.25" in bad.failure
        assert play(["fine"], started).episodes[0].failure is None


def test_by_default_workers_share_half_of_the_memory_of_a_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def limit(node: str, **source: Any) -> int | None:
        (tmp_path / "memory.max").write_text(node)
        return EnvHost(EnvSource("dice", plugins=(WORLDS,), workers=4, **source))._memory_bytes

    monkeypatch.setattr(host, "CGROUP_LIMITS", (tmp_path / "memory.max", tmp_path / "none"))
    monkeypatch.setattr(
        host.os, "sysconf", lambda name: {"SC_PHYS_PAGES": 2**25, "SC_PAGE_SIZE": 2**12}[name]
    )
    assert [limit(node) for node in ("max", str(2**35), str(2**33))] == [2**34, 2**32, 2**31]
    assert [limit("max", memory_bytes=given) for given in (0, 2**28)] == [0, 2**28]


def test_a_worker_that_does_not_answer_is_replaced(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_system.rollout.forks.CLOSE_TIMEOUT_S", 0.2)
    monkeypatch.setattr("agent_system.env_workers.pool.ANSWER_S", 0.2)
    with workers(1, "spin") as started:
        (bad,) = play(["fine"], started, episode_timeout_s=1.5).episodes
        assert bad.failure is not None and "waiting for the environment's step 1" in bad.failure
        (worker,) = started._workers
        assert worker.dead is not None and "does a method of Spin with blocking=False block?" in worker.dead


def test_programs_run_in_the_sandbox_of_the_worker() -> None:
    with workers(1, "judge") as started:

        async def first() -> str:
            env = started.env(0)
            seen = await env.observation("reset", Task("0", str(os.getpid())))
            await env.close(1.0)
            return seen.text

        assert asyncio.run(first()) == "42 in True"


def test_a_worker_that_cannot_start_says_why() -> None:
    expected = (
        r"worker 0 cannot be used: it could not start: AgentSystemError: env.params.faces is not an option"
    )
    with pytest.raises(EnvWorkerError, match=expected), workers(1, params={"faces": 6}):
        pass


def test_no_process_is_left_at_the_end() -> None:
    with workers(2, "judge") as started:
        own = [psutil.Process(worker._transport.pid) for worker in started._workers]
        mine = [*own, *(child for process in own for child in process.children(recursive=True))]
        assert len(mine) >= 2
    assert not psutil.wait_procs(mine, timeout=240)[1]


@pytest.mark.ray
def test_ray_actors_play_the_same_episodes_and_are_replaced(play: Play, ray_cluster: None) -> None:
    import ray

    from agent_system.env_workers.ray_actor import RayWorker

    prompts, free, tree = (
        ["fine", "step:raise", "fork:raise"],
        ray.available_resources()["CPU"],
        TreeConfig(k=2),
    )

    def actor(source: bytes) -> RayWorker:
        return RayWorker(source, 0.5, {"PYTHONPATH": import_path()})

    with workers(2, start=actor) as started:
        assert ray.available_resources()["CPU"] == free - 1.0
        assert play(prompts, started, n=2, tree=tree).episodes == play(prompts, None, n=2, tree=tree).episodes
        killed, _ = play(["step:kill", "fine"], started).episodes
        assert (
            killed.failure is not None
            and "Dice.step() was lost with its environment worker: its Ray actor died" in killed.failure
        )
        ray.kill(started._workers[0]._transport._actor)
        assert [episode.failure for episode in play(["fine"] * 4, started).episodes] == [None] * 4
    with (
        pytest.raises(EnvWorkerError, match=r"env.params.faces is not an option"),
        workers(1, start=actor, params={"faces": 6}),
    ):
        pass


class Counter(Solver):
    """An agent whose prompt depends on its own replies."""

    def start(self, task: Task) -> None:
        self.said: list[str] = []

    def project(self, text: str) -> Projection:
        self.said.append(text)
        return super().project(text)

    def messages(self, variables: Any) -> Any:
        return [*super().messages(variables), {"role": "user", "content": "; ".join(self.said)}]


def test_agents_with_state_play_the_same_episodes_with_workers(
    play: Play, pair: EnvWorkers, tmp_path: Path
) -> None:
    agents = {"Solver": Counter("Solver"), "Verifier": Verifier("Verifier")}
    at_home = play(["fine"], None, n=2, agents=agents)
    away = play([f"act:kill once {tmp_path / 'killed'}", "fine"], pair, n=2, agents=agents)
    assert away.metrics["episode/count"] == 4, "an episode that loses its worker begins anew"
    replies = [
        [s.request.prompt_text.count("boxed") for s in e.samples if s.agent_id == "Solver"]
        for e in (*at_home.episodes, *away.episodes)
    ]
    assert replies == [[0, 1, 2]] * 6
