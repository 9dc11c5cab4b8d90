"""Decisions of played episodes, and what becomes of them with other replies in their place."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from agent_system.record import EpisodeRecord, Sample
from agent_system.replay.client import NOT_REACHED, Recorded, Replay, Replays, ReplaySpec, generations
from agent_system.rollout.player import EpisodePlayer
from agent_system.rollout.seeds import stable_seed
from verl.protocol.generate import Generation

OTHER_REWARD = "the episode ends with another reward"
NO_ALTERNATIVE = "the engine gave no alternative"
FAILED = "a replay fails"

Key = tuple[str, int, int, int]  # traj_uid, turn, call, candidate: a row of the step


@dataclass(frozen=True)
class AuditSize:
    """How much is replayed.

    Attributes:
        decisions: number of decisions.
        alternatives: other replies that are sampled for each.
        continuations: times that an episode goes on with a reply.
        seed: of the choice of decisions, and of all that is sampled.
    """

    decisions: int = 100
    alternatives: int = 4
    continuations: int = 4
    seed: int = 0


@dataclass(frozen=True)
class Decision:
    """A trained reply of an episode.

    Attributes:
        episode: the episode.
        row: the trained sample.
        reply: its first generation, in whose place others are tried.
        followers: number of calls that may have read it.
    """

    episode: EpisodeRecord
    row: Sample
    reply: Sample
    followers: int

    @property
    def key(self) -> Key:
        """Which row of the step it is."""
        return row_key(self.episode.traj_uid, self.row)

    @property
    def stratum(self) -> tuple[str, int]:
        """Agent and turn, over which decisions are spread."""
        return self.row.agent_id, self.row.identity.turn


@dataclass(frozen=True)
class DecisionOutcome:
    """What became of a decision.

    Attributes:
        decision: the decision.
        rewards: team reward `[1 + alternatives][continuations]`; the first arm has the reply of the
            episode.
        actions: what the agent did in each arm.
        cause: why it could not be restored; empty if it was.
        replies, tokens: what was sampled for it.
    """

    decision: Decision
    rewards: tuple[tuple[float, ...], ...] = ()
    actions: tuple[str, ...] = ()
    cause: str = ""
    replies: int = 0
    tokens: int = 0


def row_key(traj_uid: str, sample: Sample) -> Key:
    """Return which row of a step a sample is."""
    identity = sample.identity
    return traj_uid, identity.turn, identity.call, identity.candidate


def decisions_of(episodes: Sequence[EpisodeRecord], rows: Collection[Key]) -> list[Decision]:
    """Return the decisions of a step: the trained replies with which its episodes went on.

    Args:
        episodes: of the step.
        rows: those that the step trains on.
    """
    decisions = []
    for episode in episodes:
        if episode.failed:
            continue
        for row in episode.committed:
            if row_key(episode.traj_uid, row) not in rows or row.identity.repeated:
                continue
            reply = row.generations[0]
            decisions.append(Decision(episode, row, reply, len(Recorded.of(episode, reply).after)))
    return decisions


def spread(decisions: Sequence[Decision], count: int, seed: int) -> list[Decision]:
    """Draw decisions, as evenly over agents and turns as there are any."""
    strata: dict[tuple[str, int], list[Decision]] = defaultdict(list)
    for decision in decisions:
        strata[decision.stratum].append(decision)
    random = Random(seed)
    queues = [strata[name] for name in sorted(strata)]
    for queue in queues:
        random.shuffle(queue)
    # so that no stratum is always the first that gets one more
    random.shuffle(queues)
    sample: list[Decision] = []
    while queues and len(sample) < count:
        sample += [queue.pop() for queue in queues][: count - len(sample)]
        queues = [queue for queue in queues if queue]
    return sample


def expected_replies(decisions: Sequence[Decision], size: AuditSize) -> int:
    """Return the number of replies that replays sample, if as many calls follow as in the episodes."""
    arms = size.alternatives + 1
    return sum(size.alternatives + arms * size.continuations * d.followers for d in decisions)


@dataclass
class ArmPlayer:
    """Plays the arms of decisions.

    Attributes:
        player: of a collector whose agents have prefixes (`with_prefixes`).
        replays: those of these agents.
        size: how much is replayed.
        step: of the episodes.
        by_prompt: as `Recorded.by_prompt`.
        on_outcome: called after each decision.
    """

    player: EpisodePlayer
    replays: Replays
    size: AuditSize
    step: int
    by_prompt: bool = False
    on_outcome: Callable[[DecisionOutcome], object] = lambda outcome: None
    _number: int = field(default=0, init=False)

    async def play(self, decisions: Sequence[Decision]) -> list[DecisionOutcome]:
        """Return what became of decisions, in their order. Raise as `EpisodePlayer.play` does."""
        return list(await asyncio.gather(*(self._outcome(decision) for decision in decisions)))

    async def _outcome(self, decision: Decision) -> DecisionOutcome:
        counts: Counter[str] = Counter()
        outcome = await self._arms(decision, counts)
        outcome = replace(outcome, replies=counts["replies"], tokens=counts["tokens"])
        self.on_outcome(outcome)
        return outcome

    async def _arms(self, decision: Decision, counts: Counter[str]) -> DecisionOutcome:
        recorded = Recorded.of(decision.episode, decision.reply, self.by_prompt)
        first = await self._replay(decision, recorded, None, 0, 0, counts)
        replay, episode = first
        if replay.cause:
            return DecisionOutcome(decision, cause=replay.cause)
        if not replay.sampled and episode.team_reward != decision.episode.team_reward:
            return DecisionOutcome(decision, cause=OTHER_REWARD)
        alternatives = await self._alternatives(decision, replay, counts)
        if alternatives is None:
            return DecisionOutcome(decision, cause=NO_ALTERNATIVE)
        arms = await asyncio.gather(
            *(
                self._arm(decision, recorded, reply, number, first if number == 0 else None, counts)
                for number, reply in enumerate((None, *alternatives))
            )
        )
        causes = [cause for _, _, cause in arms if cause]
        if causes:
            return DecisionOutcome(decision, cause=causes[0])
        return DecisionOutcome(
            decision, tuple(rewards for rewards, _, _ in arms), tuple(act for _, act, _ in arms)
        )

    async def _alternatives(
        self, decision: Decision, replay: Replay, counts: Counter[str]
    ) -> list[Generation] | None:
        """Sample other replies to the prompt of a decision; None if the engine gives fewer."""
        assert replay.request is not None, "the decision was reached"
        request, client = replay.request
        seed = stable_seed(request.seed, "alternatives", self.size.seed)
        replies = await client.generate(replace(request, n=self.size.alternatives, seed=seed))
        counts.update(replies=len(replies), tokens=sum(len(reply.token_ids) for reply in replies))
        whole = [reply for reply in replies if reply.stop_reason != "abort" and reply.token_ids]
        return whole if len(whole) == self.size.alternatives else None

    async def _arm(
        self,
        decision: Decision,
        recorded: Recorded,
        reply: Generation | None,
        arm: int,
        first: tuple[Replay, EpisodeRecord] | None,
        counts: Counter[str],
    ) -> tuple[tuple[float, ...], str, str]:
        """Return the rewards of an arm, its action, and why it could not be played."""
        times = self.size.continuations
        replay, episode = first or await self._replay(decision, recorded, reply, arm, 0, counts)
        if replay.cause:
            return (), "", replay.cause
        action = next((s.action for s in generations(episode) if s.identity.call_key == replay.place), "")
        if not replay.sampled:  # nothing is left to chance
            return (episode.team_reward,) * times, action, ""
        rest = await asyncio.gather(
            *(self._replay(decision, recorded, reply, arm, number, counts) for number in range(1, times))
        )
        cause = next((other.cause for other, _ in rest if other.cause), "")
        return (episode.team_reward, *(record.team_reward for _, record in rest)), action, cause

    async def _replay(
        self,
        decision: Decision,
        recorded: Recorded,
        reply: Generation | None,
        arm: int,
        continuation: int,
        counts: Counter[str],
    ) -> tuple[Replay, EpisodeRecord]:
        """Play an episode again, with a reply in the place of its decision."""
        episode = decision.episode
        assert episode.task is not None, "episodes that are not read from a trajectory file have tasks"
        self._number += 1
        name = str(self._number)
        replay = Replay(
            recorded, reply, ("replay", self.size.seed, *map(str, decision.key), arm, continuation)
        )
        spec = ReplaySpec(episode.task, episode.uid, episode.index, self.step, False, name=name)
        self.replays.add(name, replay)
        try:
            (record,) = await self.player.play([spec])
        finally:
            self.replays.remove(name)
        counts.update(replies=replay.sampled, tokens=replay.tokens)
        if record.failed:
            replay.cause = replay.cause or f"{FAILED}: {str(record.failure).partition(':')[0]}"
        elif not replay.reached:
            replay.cause = replay.cause or NOT_REACHED
        return replay, record
