"""A model that scores replies (`reward.model`): which replies it gets, the cache of its scores, and
their place among the rewards.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Protocol

from agent_system.agent import Message
from agent_system.environment import Task
from agent_system.errors import AgentSystemError
from agent_system.projection import strip_thinking
from agent_system.record import EpisodeRecord, Sample, finite
from agent_system.reward import MODEL_COUNTS
from agent_system.tools.formats import with_calls
from verl.protocol.generate import priority_of
from verl.trainer.config.reward_model import TERM, RewardModelConfig
from verl.utils.names import slug

# A digest with its number takes about 150 bytes: 15 MB, for the replies of many steps.
SCORES_KEPT = 100_000


@dataclass(frozen=True)
class ScoredConversation:
    """What a model scores.

    Attributes:
        messages: the chat before the reply.
        reply: the reply without its thinking.
        task: the task.
    """

    messages: tuple[Message, ...]
    reply: str
    task: Task

    @property
    def digest(self) -> str:
        """Hash of the content; equal conversations have equal scores."""
        content = [self.messages, self.reply, self.task.prompt, self.task.ground_truth]
        return blake2b(
            json.dumps(content, default=str).encode("utf-8", "surrogatepass"), digest_size=16
        ).hexdigest()


class RewardModel(Protocol):
    """A model that scores one conversation at a time; its engine batches concurrent ones."""

    async def score(self, conversation: ScoredConversation, counts: Counter[str], priority: int = 0) -> float:
        """Return the score, which depends on the conversation alone; `counts` takes named counts
        for the metrics.

        `priority` is that of the requests.

        Raises RolloutError or AgentSystemError when there is none.
        """
        ...

    async def close(self) -> None:
        """Close connections, which belong to the event loop of a collection."""
        ...


class ReplyScorer:
    """The reward model of a run with the keys under `reward.model`.

    Args:
        settings: the keys.
        model: the model.
        agent_ids: agents of the team.
        limit_s: `rollout.call_timeout_s`, for a model behind an API; an engine's client applies it
            itself.

    Raises:
        AgentSystemError: `reward.model.agents` matches no agent.
    """

    def __init__(
        self, settings: RewardModelConfig, model: RewardModel, agent_ids: Sequence[str], limit_s: float
    ) -> None:
        self.settings = settings
        self._model = model
        self._limit_s = limit_s
        # that of the answers of episodes matches nobody
        pattern = settings.agents or ""
        self._agents = {a for a in agent_ids if re.fullmatch(pattern, a) or re.fullmatch(pattern, slug(a))}
        if settings.scope == "call" and not self._agents:
            raise AgentSystemError(
                f"reward.model.agents={settings.agents} matches no agent; agents: {', '.join(agent_ids)}"
            )
        self._scores: OrderedDict[str, float] = OrderedDict()
        self._running: dict[str, asyncio.Task[float]] = {}
        self._counts: Counter[str] = Counter()
        self._priority = priority_of(validate=False)
        self._scored_at = [0.0]  # monotonic time of the model's last score
        self._stopped: Callable[[], AbstractContextManager[None]] = nullcontext

    def takes(self, agent_id: str) -> bool:
        """Return whether the calls of an agent are scored."""
        return self.settings.scope == "call" and agent_id in self._agents

    async def of_reply(self, messages: Sequence[Message], text: str, task: Task) -> float:
        """Return the score of a reply to chat messages.

        Raises:
            TimeoutError: a model behind an API gave no score, of this reply or another, for
                `rollout.call_timeout_s`.
            AgentSystemError: a score that is not a finite number.
            Exception: whatever the model raises.
        """
        return await self._score(
            ScoredConversation(tuple(map(_readable, messages)), strip_thinking(text), task)
        )

    async def of_calls(self, record: EpisodeRecord) -> dict[int, float]:
        """Return the scores of an episode's calls, by index. The rounds of a `ToolAgent`'s call
        have the score of the last one.
        """
        assert record.task is not None, "the collector sets the task"
        scored = [i for i, s in enumerate(record.samples) if self.takes(s.agent_id) and s.identity.ends_call]
        score_coroutines = [self._of_sample(record.samples[i], record.task) for i in scored]
        scores = dict(zip(scored, await _all(score_coroutines), strict=True))
        last = {record.samples[i].identity.call_key: score for i, score in scores.items()}
        rounds = {i: s.identity.whole_call for i, s in enumerate(record.samples) if not s.identity.ends_call}
        return scores | {i: last[call] for i, call in rounds.items() if call in last}

    async def of_episode(self, record: EpisodeRecord) -> float:
        """Return the score of an episode's answer to its task, or of its last reply if it ended
        before the orchestra answered.
        """
        assert record.task is not None, "the collector sets the task"
        text = record.answer or record.samples[-1].generations[-1].text
        return await self.of_reply([{"role": "user", "content": record.task.prompt}], text, record.task)

    def combined(self, reward: float, score: float, by_function: bool = False) -> float:
        """Return a reward with the model's, `weight * score`: added, or with
        `reward.model.combine=replace` in place of the environment's.

        The reward of a function (`by_function`), which has replaced the environment's itself, is
        added to.
        """
        weighted_score = self.settings.weight * score
        if not self.settings.weight:
            return reward
        return (
            weighted_score
            if self.settings.combine == "replace" and not by_function
            else reward + weighted_score
        )

    def with_local_scores(
        self, record: EpisodeRecord, scores: Mapping[int, float], by_function: Collection[int]
    ) -> EpisodeRecord:
        """Return the episode with the model's part of the local rewards; `by_function` are the
        calls that functions have rewarded.
        """
        if not self.settings.weight:
            return record
        samples = [
            s.with_rewards(
                local_reward=self.combined(s.rewards.local_reward, scores[i], i in by_function),
                local_given=True,
            )
            if i in scores
            else s
            for i, s in enumerate(record.samples)
        ]
        return replace(record, samples=tuple(samples))

    def with_team_score(self, record: EpisodeRecord, score: float, by_function: bool) -> EpisodeRecord:
        """Return the episode with the model's part of the team reward, which arrives at the end of
        the last turn.
        """
        team = self.combined(record.team_reward, score, by_function)
        if self.settings.combine == "replace" and self.settings.weight:
            return record.with_team_reward(team)
        *earlier, last = record.turn_rewards
        return replace(record, team_reward=team, turn_rewards=(*earlier, self.combined(last, score)))

    def apart(self) -> ReplyScorer:
        """Return the same scorer for a validation, with its cache and its scores in progress, and
        counts of its own.
        """
        scorer = copy(self)
        scorer._counts = Counter()
        scorer._priority = priority_of(validate=True)
        return scorer

    def stopping(self, stopped: Callable[[], AbstractContextManager[None]]) -> ReplyScorer:
        """Return the same scorer for an episode whose clock stands still within `stopped()`, while
        a score is awaited.
        """
        scorer = copy(self)
        scorer._stopped = stopped
        return scorer

    def take_counts(self) -> dict[str, float]:
        """Return counts since the last call: `requests`, `cache_hits`, and those of the model."""
        counts = {
            f"{MODEL_COUNTS}{name}": float(self._counts[name])
            for name in {"requests", "cache_hits", *self._counts}
        }
        self._counts.clear()  # scores in progress go on counting
        return counts

    async def close(self) -> None:
        """End the scores that no episode waits for any more, and close connections."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        await self._model.close()

    async def _of_sample(self, sample: Sample, task: Task) -> float:
        # a committed candidate of a tree
        recorded_score = sample.reward_terms.get(TERM)
        last = sample.generations[-1]
        return (
            await self.of_reply(last.request.messages, last.text, task)
            if recorded_score is None
            else recorded_score
        )

    async def _score(self, conversation: ScoredConversation) -> float:
        digest = conversation.digest
        self._counts["requests"] += 1
        if digest in self._scores:
            self._counts["cache_hits"] += 1
            # The score that was not used for longest is forgotten first.
            self._scores.move_to_end(digest)
            return self._scores[digest]
        task = self._running.get(digest)
        if task is None:
            task = self._running[digest] = asyncio.create_task(
                self._ask(conversation), name=f"score {digest}"
            )
            task.add_done_callback(lambda finished_task: self._finished(digest, finished_task))
        else:
            self._counts["cache_hits"] += 1
        with self._stopped():
            # other episodes may wait for the same score
            return await asyncio.shield(task)

    async def _ask(self, conversation: ScoredConversation) -> float:
        kind = self.settings.kind
        limit = self._limit_s
        began = time.monotonic()
        score_task = asyncio.ensure_future(self._model.score(conversation, self._counts, self._priority))
        try:
            while not score_task.done():
                left = (
                    math.inf if kind != "api" else limit + max(began, self._scored_at[0]) - time.monotonic()
                )
                if left <= 0:
                    raise TimeoutError(f"no score within rollout.call_timeout_s={limit:g} s from the {kind}")
                await asyncio.wait([score_task], timeout=None if left == math.inf else left)
            score = finite(score_task.result(), "a score", f"reward.model.kind={kind}")
        finally:
            score_task.cancel()
        self._scored_at[0] = time.monotonic()
        return score

    def _finished(self, digest: str, task: asyncio.Task[float]) -> None:
        del self._running[digest]
        # What failed is asked for again.
        if task.cancelled() or task.exception() is not None:
            return
        self._scores[digest] = task.result()
        if len(self._scores) > SCORES_KEPT:
            self._scores.popitem(last=False)


def with_call_scores(record: EpisodeRecord, scores: Mapping[int, float]) -> EpisodeRecord:
    """Return the episode with scores of calls, by index, among their terms; a `ToolAgent`'s call
    counts once.
    """
    samples = [
        replace(s, reward_terms={**s.reward_terms, TERM: scores[i]})
        if i in scores and s.identity.ends_call
        else s
        for i, s in enumerate(record.samples)
    ]
    return replace(record, samples=tuple(samples))


def _readable(message: Message) -> Message:
    """Return a message that every chat template shows: results of tools are the user's, calls of
    tools are in the text.
    """
    calls: Any = message.get("tool_calls", ())
    role = "user" if message["role"] == "tool" else message["role"]
    return {"role": role, "content": with_calls(message["content"], calls)}


async def _all(scores: Sequence[object]) -> list[float]:
    """Await all scores; raise the error of the first, in their order, that has one."""
    results = await asyncio.gather(*scores, return_exceptions=True)  # type: ignore[call-overload]
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return list(results)
