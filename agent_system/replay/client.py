"""Episodes that are played again up to a decision: calls before it get their recorded replies.

An episode runs again from its reset, with the seeds of its environment, so that the world, the
orchestra, memories and programs come to the state of the decision by themselves. A call before the
decision is answered from the record if its prompt is the recorded one, token by token. Otherwise
the episode is *not restored*: it would be another one. The decision is answered with the reply that
is tried; every call that may have read it is sampled anew, with seeds of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from agent_system.record import EpisodeRecord, Sample
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.call import EpisodeSpec
from agent_system.rollout.collector import Collector
from agent_system.rollout.ledger import NEVER
from agent_system.rollout.prompt import Prompt
from agent_system.rollout.remote import RemoteBinding
from agent_system.rollout.seeds import stable_seed
from verl.protocol.generate import GenerateRequest, Generation, RolloutClient, RolloutError, SamplingParams

if TYPE_CHECKING:
    from agent_system.env_workers import EnvWorkers
    from agent_system.reward.model import RewardModel

MARK = "~"  # between the id of an episode and the name of a replay of it
# Why a decision could not be restored.
OTHER_PROMPT = "the prompt of a call differs"
OTHER_AGENT = "a call is made by another agent"
UNKNOWN_CALL = "a call that the record lacks"
NOT_REACHED = "the decision is not reached"

Place = tuple[int, int]  # turn, call


class NotRestoredError(RolloutError):
    """A replay came to another call than the recorded one."""


@dataclass(frozen=True)
class ReplaySpec(EpisodeSpec):
    """An episode that is played again: seeds are those of the recorded one, requests are marked.

    Attributes:
        name: of the replay, without `MARK`.
    """

    name: str = ""

    @property
    def traj_uid(self) -> str:
        """Id of the episode, with the name of the replay."""
        return f"{self.uid}#{self.index}{MARK}{self.name}"


def generations(episode: EpisodeRecord) -> list[Sample]:
    """Return the replies with which an episode went on, each with its own prompt, and those that
    nobody heard.
    """
    return [g for s in (*episode.committed, *episode.unheard) for g in s.generations]


@dataclass(frozen=True)
class Recorded:
    """An episode as seen from a decision in it.

    Attributes:
        decision: the reply in whose place others are tried.
        before: replies to prompts that cannot have shown it, by place; the decision among them.
        after: places of the others.
        by_prompt: calls are numbered by their arrival, as those of a program are: a call is the
            recorded one if agent and prompt are.
    """

    decision: Sample
    before: Mapping[Place, Sample]
    after: frozenset[Place]
    by_prompt: bool = False

    @classmethod
    def of(cls, episode: EpisodeRecord, decision: Sample, by_prompt: bool = False) -> Recorded:
        """Return an episode as seen from `decision`, one of its `generations`."""
        of_call = decision.identity.whole_call
        order = decision.identity.order
        place = decision.identity.call_key
        before: dict[Place, Sample] = {}
        after = set()
        for sample in sorted(generations(episode), key=lambda s: s.identity.call_key):
            key = sample.identity.call_key
            # the reply after a summary, which has its place in the order, and later rounds
            same_call = sample.identity.whole_call == of_call and key > place
            heard = order != NEVER and sample.identity.prior_replies > order and key != place
            if heard or same_call:
                after.add(key)
            else:
                before[key] = sample
        return cls(decision, before, frozenset(after), by_prompt)


@dataclass(eq=False)
class Replay:
    """One episode that is played again.

    Attributes:
        recorded: what is restored.
        reply: takes the place of the decision's reply; None: that reply itself.
        salt: parts of the seeds of calls after the decision.
        cause: why it is not restored; empty while it is.
        request: the request of the decision, and the client that got it, once it is reached.
        place: where the decision was met.
        sampled: number of replies that were sampled.
        tokens: their tokens.
    """

    recorded: Recorded
    reply: Generation | None = None
    salt: tuple[int | str, ...] = ()
    cause: str = ""
    request: tuple[GenerateRequest, RolloutClient] | None = None
    place: Place | None = None
    sampled: int = 0
    tokens: int = 0
    _used: set[Place] = field(default_factory=set)

    @property
    def reached(self) -> bool:
        """Whether the decision was answered."""
        return self.place is not None

    def answer(self, agent_id: str, place: Place, prompt: Any, n: int) -> list[Generation] | None:
        """Return the replies to a request for `n` replies; None: sample them.

        Args:
            agent_id: the agent that is called.
            place: turn and number of the (first) call.
            prompt: token ids of its prompt; its text for an agent behind an API.
            n: number of calls.

        Raises NotRestoredError.
        """
        samples = self._samples(agent_id, place, prompt, n)
        if samples is None:
            return None
        replies = []
        for offset, sample in enumerate(samples):
            if sample.agent_id != agent_id:
                raise self._not_restored(OTHER_AGENT)
            if _prompt_of(sample) != prompt:
                raise self._not_restored(OTHER_PROMPT)
            generation = sample.generation
            if sample.identity.call_key == self.recorded.decision.identity.call_key:
                self.place = (place[0], place[1] + offset)
                generation = self.reply or generation
            replies.append(generation)
        return replies

    def _samples(self, agent_id: str, place: Place, prompt: Any, n: int) -> list[Sample] | None:
        """Return the recorded calls of a request, or None if it comes after the decision."""
        before = self.recorded.before
        if self.recorded.by_prompt:
            equal = [
                key
                for key, sample in before.items()
                if key not in self._used and sample.agent_id == agent_id and _prompt_of(sample) == prompt
            ]
            places = equal[:n]
        else:
            places = [key for key in ((place[0], place[1] + i) for i in range(n)) if key in before]
        if len(places) == n:
            self._used.update(places)
            return [before[key] for key in places]
        if self.reached or (not self.recorded.by_prompt and place in self.recorded.after):
            return None
        raise self._not_restored(OTHER_PROMPT if self.recorded.by_prompt else UNKNOWN_CALL)

    def _not_restored(self, cause: str) -> NotRestoredError:
        self.cause = self.cause or cause
        return NotRestoredError(f"not restored: {cause}")


def _prompt_of(sample: Sample) -> Any:
    """Return the prompt of a recorded call as `Replay.answer` takes it."""
    return sample.request.prompt_ids or sample.request.prompt_text


class Replays:
    """The replays in progress, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Replay] = {}

    def add(self, name: str, replay: Replay) -> None:
        """Answer the requests of a replay from now on."""
        self._by_name[name] = replay

    def remove(self, name: str) -> None:
        """End a replay."""
        del self._by_name[name]

    def of(self, request_id: str) -> tuple[Replay, Place]:
        """Return the replay that a request belongs to, and the place of its call. Raise
        RolloutError for one that has ended, whose requests are late.
        """
        episode, _, place = request_id.rpartition("/")
        name = episode.rpartition(MARK)[2]
        replay = self._by_name.get(name)
        if replay is None:
            raise RolloutError(f"replay {name} has ended")
        turn, _, call = place.partition(".")
        return replay, (int(turn), int(call))


class PrefixClient:
    """A `RolloutClient` of an agent in replays: calls before the decision get recorded replies."""

    def __init__(self, client: RolloutClient, agent_id: str, replays: Replays) -> None:
        """Ask `client` for what is not recorded."""
        self._client = client
        self._agent_id = agent_id
        self._replays = replays

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        """Return the replies. Raise NotRestoredError, or as the engine does."""
        replay, place = self._replays.of(request.request_id)
        was_reached = replay.reached
        replies = replay.answer(self._agent_id, place, request.prompt_ids, request.n)
        if replies is not None:
            if replay.reached and not was_reached:
                replay.request = (request, self._client)
            # calls that begin together do so before one of them ends, as with an engine
            await asyncio.sleep(0)
            return replies
        seed = stable_seed(request.seed, *replay.salt)
        replies = await self._client.generate(replace(request, seed=seed))
        replay.sampled += len(replies)
        replay.tokens += sum(len(reply.token_ids) for reply in replies)
        return replies


@dataclass(frozen=True)
class PrefixBinding(RemoteBinding):
    """An agent behind an API in replays: it is asked after the decision only.

    Attributes:
        replays: those in progress.
    """

    replays: Replays = field(default_factory=Replays)

    async def replies(
        self, prompt: Prompt, sampling: SamplingParams, n: int, seed: int, request_id: str, priority: int = 0
    ) -> Sequence[Generation]:
        """As `RemoteBinding.replies`; raise NotRestoredError as well."""
        replay, place = self.replays.of(request_id)
        recorded = replay.answer(self.agent_id, place, prompt.text, n)
        if recorded is not None:
            await asyncio.sleep(0)
            return recorded
        seed = stable_seed(seed, *replay.salt)
        replies = await RemoteBinding.replies(self, prompt, sampling, n, seed, request_id, priority)
        replay.sampled += len(replies)
        replay.tokens += sum(int(getattr(reply, "reply_tokens", 0)) for reply in replies)
        return replies


def replayer(
    collector: Collector,
    replays: Replays,
    workers: EnvWorkers | None = None,
    model: RewardModel | None = None,
) -> Collector:
    """Return a collector that plays episodes of `collector` again: one reply a call, no rows.

    Args:
        collector: played them.
        replays: what its agents are answered from.
        workers, model: those of `collector`.
    """
    settings = replace(
        collector.settings, tree=None, tool_sequences=(), repeat_calls={}, max_failure_rate=1.0
    )
    runtimes = collector.runtimes
    return Collector(
        collector.orchestra,
        {name: runtime.agent for name, runtime in runtimes.items()},
        collector.env,
        with_prefixes({name: runtime.binding for name, runtime in runtimes.items()}, replays),
        settings,
        workers,
        model,
    )


def with_prefixes(
    bindings: Mapping[str, AgentBinding | RemoteBinding], replays: Replays
) -> dict[str, AgentBinding | RemoteBinding]:
    """Return the agents of a run as replays call them."""
    prefixed: dict[str, AgentBinding | RemoteBinding] = {}
    for name, binding in bindings.items():
        if isinstance(binding, RemoteBinding):
            values = {f.name: getattr(binding, f.name) for f in fields(RemoteBinding)}
            prefixed[name] = PrefixBinding(**values, replays=replays)
        else:
            prefixed[name] = replace(binding, client=PrefixClient(binding.client, binding.agent_id, replays))
    return prefixed
