"""Milliseconds that the gateway adds to a call, and its CPU time per call, beside a bare aiohttp server.

    python benchmarks/gateway.py

Programs in a process of their own send 100 requests per second, at equal intervals, to engines that answer
after 5 s, so that 500 are open. Half of them begin a conversation with 2,000 tokens of new text, half
continue one by a short message. The time of a request is measured in the server, from its body read to the
first byte of the answer, less the 5 s, so it contains the delay of a busy event loop. The echo reads the same
bodies and answers after the same time. Rounds alternate; the last line has the medians of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import aiohttp
from aiohttp import web

from agent_system import AgentRegistry, BaseEnv, Observation, OrchestraRegistry, Outcome, Task
from agent_system.gateway.server import Server
from agent_system.gateway.session import Session
from agent_system.gateway.team import GatewayOptions, GatewayOrchestra
from agent_system.rollout import AgentBinding, Collector, CollectorSettings, EnvFactory
from agent_system.testing import make_tokenizer
from benchmarks.shared.short import parse_args
from verl.protocol.generate import GenerateRequest, Generation, SamplingParams

logger = logging.getLogger("gateway")
EPISODES = 50
MORE = "Now check the last step again and say what is wrong with it."
DOCS = sorted((Path(__file__).resolve().parents[1] / "docs").glob("*.md"))
_begun: ContextVar[float] = ContextVar("begun")


@dataclass
class Clock:
    """Measures the requests of a server: its middleware and its signal before the first byte.

    Attributes:
        delay_s: what the engine needs.
        added_ms: what each answered request took besides.
    """

    delay_s: float
    added_ms: list[float] = field(default_factory=list)

    def attach(self, app: web.Application) -> web.Application:
        """Measure an application."""
        app.middlewares.insert(0, self._middleware())
        app.on_response_prepare.append(self._answered)
        return app

    def _middleware(self) -> Any:
        @web.middleware
        async def read_first(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            await request.read()
            _begun.set(time.perf_counter())
            return await handler(request)

        return read_first

    async def _answered(self, request: web.Request, response: web.StreamResponse) -> None:
        assert response.status == 200, response
        self.added_ms.append(1000 * (time.perf_counter() - _begun.get() - self.delay_s))


class MeasuredServer(Server):
    """The gateway's server with a clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def _app(self) -> web.Application:
        return self._clock.attach(super()._app())


class Delayed:
    """A `RolloutClient` that gives every request one reply after a time."""

    def __init__(self, reply: Generation, delay_s: float) -> None:
        self._reply, self._delay_s = reply, delay_s

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Return the reply."""
        await asyncio.sleep(self._delay_s)
        return [self._reply]


class Nothing(BaseEnv):
    """An environment that does nothing."""

    blocking = False

    def reset(self, task: Task) -> Observation:
        """Show the prompt."""
        return Observation(task.prompt)

    def step(self, action: str) -> Outcome:
        """End."""
        return Outcome(done=True)


def words() -> list[str]:
    """Return the words of the documentation, with their punctuation."""
    return " ".join(path.read_text(encoding="utf-8") for path in DOCS).split()


async def send(url: str, keys: Sequence[str], seconds: float, rate: float, length: int, seed: int) -> None:
    """Send requests at a rate for some seconds: every second one continues an answered conversation, if there
    is one.
    """
    rng, vocabulary, answered = random.Random(seed), words(), deque[tuple[str, list[dict[str, Any]]]]()

    async def one(
        key: str, messages: list[dict[str, Any]], http: aiohttp.ClientSession, goes_on: bool
    ) -> None:
        headers = {"Authorization": f"Bearer {key}"}
        async with http.post(
            f"{url}/chat/completions", json={"model": "Writer", "messages": messages}, headers=headers
        ) as answer:
            body = await answer.json()
            assert answer.status == 200, body
        if goes_on:
            answered.append(
                (key, [*messages, body["choices"][0]["message"], {"role": "user", "content": MORE}])
            )

    begun, open_calls = time.monotonic(), set()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(None)) as http:
        for number in range(int(seconds * rate)):
            again = number % 2 == 1 and bool(answered)
            text = " ".join(rng.choice(vocabulary) for _ in range(0 if again else length))
            key, messages = (
                answered.popleft() if again else (rng.choice(keys), [{"role": "user", "content": text}])
            )
            await asyncio.sleep(begun + number / rate - time.monotonic())
            open_calls.add(asyncio.create_task(one(key, messages, http, not again)))
        await asyncio.gather(*open_calls)


async def load(
    url: str, keys: Sequence[str], length: int, seed: int, args: argparse.Namespace, clock: Clock
) -> dict[str, float]:
    """Let another process send requests; return what was measured while `args.seconds` passed with all calls
    open.
    """
    given = json.dumps([url, list(keys), args.delay + args.seconds + 1, args.rate, length, seed])
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, "--send", given)
    while not clock.added_ms and process.returncode is None:
        await asyncio.sleep(0.02)
    clock.added_ms.clear()
    begun = time.process_time()
    await asyncio.sleep(args.seconds)
    cpu, added = time.process_time() - begun, sorted(clock.added_ms)
    assert await process.wait() == 0, "the process that sends requests has failed"
    places = {"p50": added[len(added) // 2], "p99": added[int(len(added) * 0.99)]}
    return {"ms_p50": places["p50"], "ms_p99": places["p99"], "cpu_ms": 1000 * cpu / len(added)}


async def gateway(length: int, seed: int, args: argparse.Namespace, tokenizer: Any) -> dict[str, float]:
    """Measure the gateway under load."""
    clock, ready, over = Clock(args.delay), asyncio.Queue[Session](), asyncio.Event()

    async def team(task: Task, session: Session) -> float:
        ready.put_nowait(session)
        await over.wait()
        return 0.0

    ids = (*tokenizer.encode(" ".join(words()[:40]), add_special_tokens=False), tokenizer.eos_token_id)
    engine = Delayed(Generation(ids, (-0.5,) * len(ids), "stop"), args.delay)
    sampling = SamplingParams(max_tokens=256)
    OrchestraRegistry.get("gateway")
    agents = {"Writer": AgentRegistry.get("Writer", orchestra="gateway")("Writer")}
    orchestra = GatewayOrchestra(GatewayOptions(team))
    orchestra._server = MeasuredServer(clock)
    bindings = {
        "Writer": AgentBinding("Writer", "writer", "writer", engine, tokenizer, sampling, sampling, 4096)
    }
    settings = CollectorSettings(max_concurrent_episodes=EPISODES, max_failure_rate=0.0)
    collector = Collector(orchestra, agents, EnvFactory(Nothing), bindings, settings)
    played = asyncio.create_task(
        collector.collect([Task(f"task-{i}", "") for i in range(EPISODES)], 1, step=seed)
    )
    sessions = [await ready.get() for _ in range(EPISODES)]
    found = await load(
        sessions[0].base_url, [session.api_key for session in sessions], length, seed, args, clock
    )
    over.set()
    result = await played
    prompts = [len(sample.request.prompt_ids) for episode in result.episodes for sample in episode.samples]
    continued = sum(count for name, count in result.metrics.items() if name.startswith("gateway/rewritten"))
    assert continued == 0, result.metrics
    return found | {"prompt_tokens": statistics.median(prompts)}


async def echo(length: int, seed: int, args: argparse.Namespace) -> dict[str, float]:
    """Measure a server that reads a body and answers."""
    clock = Clock(args.delay)
    answer = {"choices": [{"message": {"role": "assistant", "content": " ".join(words()[:40])}}]}

    async def reply(request: web.Request) -> web.Response:
        await request.json()
        await asyncio.sleep(args.delay)
        return web.json_response(answer)

    app = web.Application(client_max_size=16 << 20)
    app.router.add_post("/v1/chat/completions", reply)
    runner = web.AppRunner(clock.attach(app), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    try:
        return await load(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", ["any"], length, seed, args, clock)
    finally:
        await runner.cleanup()


def main() -> None:
    """Measure both servers in turn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=float, default=100.0, help="requests per second")
    parser.add_argument(
        "--delay", type=float, default=5.0, help="seconds that the engine needs; rate x delay calls are open"
    )
    parser.add_argument("--tokens", type=int, default=2000, help="tokens of a prompt")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--send", help=argparse.SUPPRESS)
    args = parse_args(parser, seconds=5.0, repeats=1)
    if args.send:
        asyncio.run(send(*json.loads(args.send)))
        return
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    vocabulary = words()
    tokenizer = make_tokenizer([" ".join(vocabulary)], vocab_size=8192)
    drawn = random.Random(0).choices(vocabulary, k=10_000)
    length = round(args.tokens * len(drawn) / len(tokenizer.encode(" ".join(drawn))))
    found: dict[str, list[float]] = {}
    for seed in range(args.repeats):
        measured = {
            "server": asyncio.run(gateway(length, seed, args, tokenizer)),
            "echo": asyncio.run(echo(length, seed, args)),
        }
        for server, values in measured.items():
            logger.info(
                "round %d, %s: %s",
                seed,
                server,
                ", ".join(f"{name} {value:.2f}" for name, value in values.items()),
            )
            for name, value in values.items():
                found.setdefault(f"{server}_{name}", []).append(value)
    names = {
        "server_ms_p50": "server_ms_p50",
        "server_ms_p99": "server_ms_p99",
        "cpu_ms_per_call": "server_cpu_ms",
    }
    names |= {
        "echo_ms_p50": "echo_ms_p50",
        "echo_ms_p99": "echo_ms_p99",
        "echo_cpu_ms_per_call": "echo_cpu_ms",
    }
    result: dict[str, Any] = {name: round(statistics.median(found[key]), 3) for name, key in names.items()}
    spread = {name: [round(min(found[key]), 3), round(max(found[key]), 3)] for name, key in names.items()}
    sizes = {
        "open": round(args.rate * args.delay),
        "prompt_tokens": statistics.median(found["server_prompt_tokens"]),
    }
    logger.info(json.dumps(result | sizes | {"spread": spread, "load": round(os.getloadavg()[0], 1)}))


if __name__ == "__main__":
    main()
