"""The orchestra that is a program: a function `team(task, session)`, which plays a whole episode."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_system.agent import BaseAgent
from agent_system.environment import BaseEnv, Outcome
from agent_system.errors import AgentSystemError
from agent_system.gateway.command import is_command, load_command
from agent_system.gateway.conversations import AgentConversations
from agent_system.gateway.episode_requests import EpisodeRequests
from agent_system.gateway.program_error import WrongResultError, caused_by_a_reply, described
from agent_system.gateway.prompt_continuation import PromptContinuation, continuation_of
from agent_system.gateway.request_fields import Notices
from agent_system.gateway.server import Server
from agent_system.gateway.session import Session
from agent_system.orchestra import BaseOrchestra, EpisodeTurns
from agent_system.record import PROGRAM_ERROR
from agent_system.rollout.episode import Episode
from agent_system.threads import DaemonExecutor, run_plain, watched
from agent_system.tools.agent import ToolAgent
from agent_system.turn import Turn
from verl.trainer.config.gateway import GatewayConfig, reward_of_error

GATEWAY = "gateway"
# programs that are plain functions, each in a thread for its whole episode
MOST_THREADS = 4096

_threads = DaemonExecutor(MOST_THREADS)


@dataclass(frozen=True)
class GatewayOptions:
    """Options of a gateway, which the run fills in.

    Attributes:
        team: `agent.team`: the program as `module:function`, the function, or a command, in one text
            as in a shell or in parts.
        keys: the keys under `gateway`.
    """

    team: Any = None
    keys: GatewayConfig = field(default_factory=GatewayConfig)


class GatewayOrchestra(BaseOrchestra):
    """Runs the program of each episode, whose requests an HTTP server answers."""

    config_class = GatewayOptions
    uses_prompts = False  # the program sends them

    def __init__(self, config: GatewayOptions | None = None) -> None:
        """Import the program. Raise AgentSystemError if there is none."""
        super().__init__(config)
        team = self.config.team
        self.team = load_command(team) if is_command(team) else load_team(team)
        self._server = Server()
        self._continuations: dict[str, PromptContinuation] = {}
        self._notices = Notices()

    def check(
        self, agents: Mapping[str, BaseAgent], make_env: Callable[[int], BaseEnv], *, forks: bool
    ) -> None:
        """Reject tree sampling, and agents that do more than the program asks of them."""
        if forks:
            raise AgentSystemError(
                "agent.orchestra_type=gateway with rollout.sampling=tree: a program cannot be "
                "forked in the middle of its run, so its calls have no candidates; use "
                "rollout.sampling=parallel"
            )
        for name, agent in agents.items():
            if isinstance(agent, ToolAgent) or agent.memory_class is not None:
                raise AgentSystemError(
                    f"agent.orchestra_type=gateway with {type(agent).__name__} for {name!r}: its "
                    "tools and its memory would not be used, because the program sends the "
                    "messages and calls the tools; register a BaseAgent without a memory, or none"
                )

    async def run(self, turn: Turn) -> Any:
        """Not used: `play_episode` runs the program."""
        raise NotImplementedError

    async def play_episode(self, episode: EpisodeTurns) -> None:
        """Run the program and end the episode with what it returns."""
        assert isinstance(episode, Episode)
        url = await self._server.start()
        requests = EpisodeRequests(
            episode, self.config.keys, lambda agent_id: self._conversations(episode, agent_id), self._notices
        )
        self._server.open(requests)
        session = Session(episode, url, requests)
        try:
            result = await _run(self.team, session, requests.failed, episode)
            _check_result(result, episode)
        except Exception as error:
            result = self._reward_of(error, requests)
            requests.counts["gateway/program_errors"] += 1
            self._notices.failed(described(error))
            episode.info[PROGRAM_ERROR] = described(error)
        finally:
            await session.clients.close()
            self._server.end(requests)
            await requests.close()
            episode.info.update(requests.counts)
        await _end(episode, requests, result)

    def _reward_of(self, error: Exception, requests: EpisodeRequests) -> _ProgramError:
        """Return how an episode ends whose program raised because of a reply. Raise the error if it
        is left out.
        """
        reward = reward_of_error(self.config.keys.program_error)
        if reward is None or not caused_by_a_reply(error, requests):
            raise error
        return _ProgramError(reward)

    async def release(self) -> None:
        """Stop the server."""
        await self._server.stop()

    def _conversations(self, episode: Episode, agent_id: str) -> AgentConversations:
        if agent_id not in self._continuations:
            binding = episode.runtimes[agent_id].binding
            self._continuations[agent_id] = continuation_of(binding, self.config.keys)
        return AgentConversations(self._continuations[agent_id])


def load_team(team: Any) -> Callable[..., Any]:
    """Return the program. Raise AgentSystemError if it is no function."""
    if isinstance(team, str):
        module, _, name = team.partition(":")
        try:
            program = getattr(importlib.import_module(module), name) if name else None
        except (ImportError, AttributeError) as error:
            raise AgentSystemError(
                f"agent.team={team}: {error}; expected module:function that Python can import"
            ) from error
    else:
        program = team
    if not callable(program):
        raise AgentSystemError(
            f"agent.team={team}: agent.orchestra_type=gateway needs the program of the team as "
            "module:function, `async def function(task, session)`, or a plain function, which runs "
            "in a thread; or a command, such as [python,my_team.py]"
        )
    return program


async def _run(
    team: Callable[..., Any], session: Session, failed: asyncio.Future[None], episode: Episode
) -> Any:
    """Run the program until it returns, or a call fails. Raises its error, or that of the call.

    A plain function cannot be cancelled: its thread goes on until its next request, which is
    refused.
    """

    async def guarded() -> Any:
        try:
            if inspect.iscoroutinefunction(team):
                return await watched(team(session.task, session))
            result = await asyncio.wrap_future(_threads.submit(run_plain, team, session.task, session))
            # of an object that is called, or a lambda
            return await watched(result) if inspect.isawaitable(result) else result
        except (KeyboardInterrupt, SystemExit) as error:  # it would end the event loop
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    work = episode.tasks.start(guarded())
    try:
        await asyncio.wait([work, failed], return_when=asyncio.FIRST_COMPLETED)
        # The error of a call ends the episode, whatever the program makes of the refusal that it
        # got.
        if failed.done():
            failed.result()
        return await work
    finally:
        work.cancel()


@dataclass(frozen=True)
class _ProgramError:
    """The end of a program that raised because of a reply, and the reward for it."""

    reward: float


def _check_result(result: Any, episode: Episode) -> None:
    """Raise WrongResultError for a result that ends no episode, unless the environment has ended
    it.
    """
    fits = isinstance(result, (str, Outcome, int, float)) and not isinstance(result, bool)
    if not fits and episode.turn is not None and not episode.turn.done:
        raise WrongResultError(
            f"the team returned {type(result).__name__}; expected its answer as text, which the "
            "environment scores, a reward, or an Outcome"
        )


async def _end(episode: Episode, requests: EpisodeRequests, result: Any) -> None:
    """End the episode, unless the environment has, with the program's result."""
    if isinstance(result, _ProgramError):
        if episode.turn is not None and not episode.turn.done:
            episode.finish(Outcome(result.reward, done=True))
        elif episode.turn is not None:
            await episode.step("")
    elif episode.turn is None or episode.turn.done:
        if isinstance(result, (Outcome, int, float)) and not isinstance(result, bool):
            raise AgentSystemError(
                "the team returned a reward after the environment had ended the episode; return None"
            )
        if episode.turn is not None:
            await episode.step(result)
    elif isinstance(result, str):
        await episode.step(result)
    elif isinstance(result, Outcome):
        local = requests.local_rewards(result.local) if isinstance(result.local, dict) else result.local
        episode.finish(Outcome(result.team, local, True, result.info))
    else:
        episode.finish(Outcome(float(result), done=True))
