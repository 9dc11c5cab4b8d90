"""A team that is a program, its client without a library, and an engine that remembers what it sampled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from agent_system import AgentRegistry, BaseEnv, Observation, OrchestraRegistry, Outcome, Task
from agent_system.gateway.session import Session
from agent_system.gateway.team import GatewayOptions, GatewayOrchestra
from agent_system.rollout import AgentBinding, Collector, CollectorSettings, EnvFactory
from agent_system.testing import ScriptedEngine, make_tokenizer
from verl.protocol.generate import GenerateRequest, Generation, SamplingParams
from verl.trainer.config import GatewayConfig

TASK = Task("a", "2+2?", "sums", "4")
USER = [{"role": "user", "content": "2+2?"}]


class Graded(BaseEnv):
    """One turn, or as many as the task's `turns`."""

    blocking = False

    def reset(self, task: Task) -> Observation:
        self.task, self.left = task, int(task.extra.get("turns", 1))
        return Observation(task.prompt)

    def step(self, action: str) -> Outcome:
        self.left -= 1
        right = action == self.task.ground_truth
        return Outcome(float(right), {}, self.left == 0, {"success": right}, Observation(f"{self.left} left"))


class Recorder(ScriptedEngine):
    """Remembers every prompt with what it sampled for it, and how many requests it had at a time."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sampled: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self.open = self.most_open = 0

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """As a scripted engine."""
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        try:
            found = await super().generate(request)
        finally:
            self.open -= 1
        self.sampled += [(request.prompt_ids, reply.token_ids) for reply in found]
        return found


@dataclass
class Answer:
    """An HTTP answer."""

    status: int
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def message(self) -> dict[str, Any]:
        """The first reply."""
        return self.body["choices"][0]["message"]

    @property
    def text(self) -> str:
        """Its content."""
        return self.message["content"]


@asynccontextmanager
async def posted(
    session: Session, body: Any, path: str = "/v1/chat/completions", key: str | None = None, **headers: str
) -> AsyncIterator[Any]:
    """An answer that is being read."""
    url = session.base_url.removesuffix("/v1") + path
    given = {"Authorization": f"Bearer {session.api_key if key is None else key}"} | headers
    async with aiohttp.ClientSession(headers=given) as http:
        sent = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with http.post(url, **sent) as answer:
            yield answer


async def send(session: Session, body: Any, **options: Any) -> Answer:
    """The answer to a body."""
    async with posted(session, body, **options) as answer:
        return Answer(answer.status, dict(answer.headers), await answer.json())


async def say(session: Session, agent: str, messages: Sequence[Any] = USER, **more: Any) -> Answer:
    """The answer to a request that must succeed."""
    answer = await send(session, {"model": agent, "messages": list(messages), **more})
    assert answer.status == 200, answer.body
    return answer


def requests_of(session: Session) -> list[Any]:
    """The requests of an episode that have come, those with equal bodies together."""
    requests = session._episode._orchestra._server._open[session.api_key]
    return [request for same in requests._requests.values() for request in same]


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return make_tokenizer()


def build(
    tokenizer: Any,
    team: Any,
    replies: Any = lambda prompt, request: "4",
    *,
    agents: Sequence[str] = ("Writer", "Editor"),
    env: type[BaseEnv] = Graded,
    limits: tuple[int, int] = (4000, 400),
    delay: Any = None,
    template_kwargs: Any = None,
    team_command: Sequence[str] = (),
    able: Sequence[str] = (),
    **settings: Any,
) -> tuple[Collector, Recorder]:
    """A collector of a program, and the engine of its agents; `limits` are those of prompt and reply, `able`
    agents can follow a form.
    """
    keys = GatewayConfig(
        **{name: settings.pop(name) for name in list(settings) if name in vars(GatewayConfig())}
    )
    engine, sampling = Recorder(tokenizer, replies, delay=delay), SamplingParams(limits[1])
    more = (tokenizer, sampling, sampling, limits[0], None, template_kwargs or {})
    bindings = {
        name: AgentBinding(name, name.lower(), name.lower(), engine, *more, structured=name in able)
        for name in agents
    }
    OrchestraRegistry.get("gateway")
    roles = {name: AgentRegistry.get(name, orchestra="gateway")(name) for name in agents}
    orchestra = GatewayOrchestra(GatewayOptions(team_command or team, keys))
    return Collector(orchestra, roles, EnvFactory(env), bindings, CollectorSettings(**settings)), engine


@pytest.fixture
def make_team(tokenizer: Any) -> Callable[..., tuple[Collector, Recorder]]:
    """`build` with a tokenizer, unless the test has one of its own."""

    def make(*args: Any, chat: Any = None, **options: Any) -> tuple[Collector, Recorder]:
        return build(chat or tokenizer, *args, **options)

    return make


@pytest.fixture
def play(make_team: Any) -> Callable[..., Any]:
    """Play one episode of a program; returns its record, the metrics and the engine."""

    async def go(
        team: Any, *args: Any, task: Task = TASK, **options: Any
    ) -> tuple[Any, dict[str, float], Recorder]:
        collector, engine = make_team(team, *args, **({"max_failure_rate": 1.0} | options))
        result = await asyncio.wait_for(collector.collect([task], 1, step=1), 120)
        return result.episodes[0], result.metrics, engine

    return go
