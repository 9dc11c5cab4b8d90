"""A saved team behind the protocol of OpenAI: `python -m agent_system.serve CHECKPOINT --openai`."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from agent_system.conversation import Conversation
from agent_system.environment import Task
from agent_system.errors import AgentSystemError
from agent_system.gateway.served_team import ServedTeam
from agent_system.gateway.server import TeamServer
from agent_system.gateway.team_model import TeamModel
from agent_system.launch.serving import LoadedTeam, loaded_team
from agent_system.rollout.call import EpisodeSpec
from verl.trainer.config.spec import ConfigError
from verl.trainer.serving import Engines
from verl.utils.names import slug

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Address:
    """Where a server listens.

    Attributes:
        host: of the interface.
        port: 0 is a free one.
        key_env: environment variable with the key that requests must have; empty: any key is
            accepted.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    key_env: str = ""

    def key(self) -> str:
        """Return the key. Raise ConfigError if the variable is empty, and for other interfaces than
        loopback without a key.
        """
        key = os.environ.get(self.key_env, "").strip() if self.key_env else ""
        if self.key_env and not key:
            raise ConfigError(f"--api-key-env {self.key_env}: the environment variable is not set")
        if not key and not _is_loopback(self.host):
            raise ConfigError(
                f"--host {self.host} can be reached from other machines, which needs a key: set an "
                "environment variable to one and add --api-key-env with its name"
            )
        return key


def serve_openai(
    checkpoint: str,
    address: Address,
    *,
    greedy: bool,
    device: str,
    engine: str,
    say: Callable[[str], object] = logger.info,
) -> None:
    """Serve the team of a checkpoint until SIGINT or SIGTERM.

    Args:
        checkpoint: `global_step_N`, or the folder of a run.
        address: where.
        greedy: decode greedily where a request says nothing.
        device: auto, cpu or cuda.
        engine: hf | vllm; empty: as in training.
        say: gets the address and the names of the models once requests are answered.

    Raises as `loaded_team` does; ConfigError for an address that cannot be used, EngineGoneError
    when an engine has ended.
    """
    key = address.key()
    with (
        loaded_team(checkpoint, device, Engines(engine, None)) as team,
        asyncio.Runner() as runner,
        suppress(KeyboardInterrupt),
    ):
        runner.run(_serve(team, address, key, greedy, say))


async def _serve(
    team: LoadedTeam, address: Address, key: str, greedy: bool, say: Callable[[str], object]
) -> None:
    async with listening(team, address, key, greedy) as (url, served_team):
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, _end, ended)
        say(f"{url}/v1 answers for: {', '.join(served_team.agents)}")
        await asyncio.wait([ended, served_team.gone], return_when=asyncio.FIRST_COMPLETED)
        if served_team.gone.done():
            served_team.gone.result()


@asynccontextmanager
async def listening(
    team: LoadedTeam, address: Address, key: str, greedy: bool
) -> AsyncIterator[tuple[str, ServedTeam]]:
    """Answer requests to a team, in this event loop; yield the URL, without /v1, and what answers.

    Args:
        team: the team.
        address: where.
        key: what requests must have; empty: any.
        greedy: decode greedily where a request says nothing.

    Raises ConfigError for an address that cannot be used.
    """
    spec = EpisodeSpec(Task("served", ""), "served", 0, 0, validate=True, greedy=greedy)
    # keeps connections to servers between questions
    async with team.collector.playing(1):
        served_team = ServedTeam(
            team.collector.runtimes,
            team.config.gateway,
            spec,
            limit_s=team.config.rollout.call_timeout_s,
            team=_team_model(team, greedy),
        )
        server = TeamServer(served_team, address.host, address.port, key)
        try:
            url = await server.start()
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"--host {address.host} --port {address.port}: {error}; use 0 for a free port"
            ) from error
        try:
            yield url, served_team
        finally:
            await server.stop()


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _team_model(team: LoadedTeam, greedy: bool) -> TeamModel | None:
    """Return the whole team as a model, named by its orchestra; None if its environment takes no
    questions.
    """
    name = team.config.agent.orchestra_type
    try:
        questions = Conversation(team.collector, team.env, greedy)
    except AgentSystemError as error:
        logger.warning("only the agents are served, not the team: %s", error)
        return None
    is_agent_name = slug(name) in map(slug, team.collector.runtimes)
    return TeamModel(f"{name}-team" if is_agent_name else name, questions.ask)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
