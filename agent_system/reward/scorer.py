"""Applies a reward model and reward functions to finished episodes, before `assign_rewards`."""

from __future__ import annotations

import asyncio
import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from agent_system.errors import AgentSystemError
from agent_system.record import EpisodeRecord, RewardTerms, Sample, finite
from agent_system.reward.functions import build_manager, checked, load_function
from agent_system.reward.manager import Reward, number
from agent_system.reward.tokens import Prefix, token_rewards
from agent_system.threads import DaemonExecutor, run_plain, watched
from verl.trainer.config.reward import RewardConfig
from verl.trainer.config.reward_model import TERM
from verl.utils.names import slug

if TYPE_CHECKING:
    from agent_system.reward.model import ReplyScorer


@dataclass(frozen=True)
class Rewarded:
    """What reward functions gave a reward to: the episode, and calls by index."""

    episode: bool
    calls: Collection[int]


class EpisodeScorer:
    """The reward manager and the functions of agents of a run, which are called beside its reward
    model.

    Args:
        settings: the keys under `reward`.
        agent_ids: the agents of the team.
        threads: maximum number of threads for plain functions, started on demand.
        prefix: decodes the beginning of a reply.
        tree_returns: `rollout.tree.returns`.
        experiment_name: `trainer.experiment_name`.

    Raises:
        AgentSystemError: a manager or function that does not exist or has a wrong signature, or a
            pattern that matches no agent.
    """

    def __init__(
        self,
        settings: RewardConfig,
        agent_ids: Sequence[str],
        threads: int,
        prefix: Prefix,
        tree_returns: str = "step",
        experiment_name: str = "",
    ) -> None:
        self._tree_returns = tree_returns
        self._limit = settings.timeout_s
        self._prefix = prefix if settings.granularity == "token" else None
        self._manager = build_manager(settings, experiment_name)
        self._functions: dict[str, list[Callable[..., Any]]] = {agent_id: [] for agent_id in agent_ids}
        for pattern, place in settings.agent_functions.items():
            path, _, name = place.rpartition(":")
            where = f"reward.agent_functions.{pattern}"
            function = checked(load_function(path, name, where), where, "episode", "call")
            matched = [a for a in agent_ids if re.fullmatch(pattern, a) or re.fullmatch(pattern, slug(a))]
            if not matched:
                raise AgentSystemError(
                    f"{where}: the pattern matches no agent; agents: {', '.join(agent_ids)}"
                )
            for agent_id in matched:
                self._functions[agent_id].append(function)
        self._threads = DaemonExecutor(threads)

    @property
    def _has_functions(self) -> bool:
        return self._manager is not None or any(self._functions.values())

    async def score(self, record: EpisodeRecord, model: ReplyScorer | None = None) -> EpisodeRecord:
        """Return the episode with the rewards of the model, if there is one, and of all functions.

        Of a tree with `rollout.tree.returns=committed` the committed replies are rewarded as an
        episode of parallel sampling. With `step` nothing remains to be done: the model has scored
        every candidate when it was tried.

        Raises:
            AgentSystemError: a reward that is not a finite number, or belongs to no call.
            TimeoutError: no result within `reward.timeout_s`, or from a model behind an API within
                `rollout.call_timeout_s`.
            Exception: whatever a function or the model raises.
        """
        if (
            not record.samples
            or not (model or self._has_functions)
            or (record.branched and self._tree_returns == "step")
        ):
            return record
        rewarded_record = await self._rewarded(record.as_played(), model)
        return _with_committed(record, rewarded_record) if record.branched else rewarded_record

    async def _rewarded(self, record: EpisodeRecord, model: ReplyScorer | None) -> EpisodeRecord:
        if model is None:
            return (await self._by_functions(record))[0]
        if model.settings.scope == "episode":
            score = await model.of_episode(record)
            record, functions = await self._by_functions(replace(record, reward_terms={TERM: score}))
            return model.with_team_score(record, score, functions.episode)
        # loaded already, by the model
        from agent_system.reward.model import with_call_scores

        scores = await model.of_calls(record)
        record, functions = await self._by_functions(with_call_scores(record, scores))
        return model.with_local_scores(record, scores, functions.calls)

    async def _by_functions(self, record: EpisodeRecord) -> tuple[EpisodeRecord, Rewarded]:
        """Return the episode with the rewards of all functions, and what they rewarded."""
        waiting_for = "the reward manager"
        try:
            async with asyncio.timeout(self._limit) as clock:
                reward = (
                    Reward()
                    if self._manager is None
                    else self._manager.read(await self._run(self._manager.score, record))
                )
                calls: dict[int, list[Reward]] = {i: [] for i in range(len(record.samples))}
                for i, sample in enumerate(record.samples):
                    for function in self._functions[sample.agent_id] if sample.identity.ends_call else ():
                        waiting_for = _name(function)
                        calls[i].append(_of_call(await self._run(function, record, sample), _name(function)))
        except TimeoutError as error:
            # A function's own TimeoutError.
            if not clock.expired():
                raise
            raise TimeoutError(
                f"no reward within reward.timeout_s={self._limit:g} s, waiting for {waiting_for}"
            ) from error
        record = _with_episode(record, reward)
        generation_rewards = _of_generations(record.samples, reward, calls, self._prefix)
        rewarded = tuple(
            _with_local(s, rewards, self._prefix)
            for s, rewards in zip(record.samples, generation_rewards, strict=True)
        )
        by_function = {
            i for i, rewards in enumerate(generation_rewards) if any(r.value is not None for r in rewards)
        }
        return replace(record, samples=rewarded), Rewarded(reward.value is not None, by_function)

    async def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Await an async function, run a plain one in a thread."""
        try:
            if inspect.iscoroutinefunction(function):
                return await watched(function(*args))
            result = await asyncio.wrap_future(self._threads.submit(run_plain, function, *args))
            return await watched(result) if inspect.isawaitable(result) else result
        # It would end the event loop, and the run with it.
        except SystemExit as error:
            raise AgentSystemError(f"{_name(function)} called sys.exit({error.code!r})") from error


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))


def _of_call(result: Any, where: str) -> Reward:
    """Return the result of an agent's function for one call: a mapping holds terms, whose sum is
    the reward.
    """
    if isinstance(result, Mapping):
        terms = _terms(result, where)
        return Reward(sum(terms.values()), terms)
    reward = result if isinstance(result, Reward) else Reward(number(result, where))
    if reward.local:
        raise AgentSystemError(
            f"{where} gave Reward.local, but it is called for one call, whose reward is Reward.value"
        )
    return reward


def _terms(terms: Mapping[str, Any], where: str) -> dict[str, float]:
    for name in terms:
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
            raise AgentSystemError(
                f"{where} gave a term named {name!r:.80}; expected letters, digits, '_', '-' and '.'"
            )
    return {name: finite(value, f"the term {name}", where) for name, value in terms.items()}


def _with_episode(record: EpisodeRecord, reward: Reward) -> EpisodeRecord:
    """Return the record with the terms and the team reward, which arrives at the end of the
    episode.
    """
    record = replace(
        record, reward_terms={**record.reward_terms, **_terms(reward.terms, "the reward manager")}
    )
    if reward.value is None:
        return record
    if getattr(reward.value, "ndim", isinstance(reward.value, (list, tuple))):
        raise AgentSystemError(
            "the reward manager gave a list as the team reward; rewards of tokens or spans are of "
            "one call: with the manager `episode` return a mapping that names it, such as {0: "
            f"[...]}} or {{{record.samples[0].agent_id!r}: [...]}}"
        )
    return record.with_team_reward(finite(reward.value, "the team reward", "the reward manager"))


def _of_generations(
    samples: Sequence[Sample], reward: Reward, calls: Mapping[int, list[Reward]], prefix: Prefix | None
) -> list[list[Reward]]:
    """Return the rewards of every generation, which add up and replace the environment's.

    An earlier generation of a call has the sum of the last one's; a reward that the manager gave to
    itself replaces the last one's.
    """
    paid: dict[int, list[Reward]] = {i: [] for i in range(len(samples))}
    for place, value in reward.local.items():
        for i in _calls_of(samples, place):
            paid[i].append(Reward(number(value, f"the reward manager, for {place!r},")))
    last = {s.identity.call_key: i for i, s in enumerate(samples) if s.identity.ends_call}
    generation_rewards = []
    sums = dict[tuple[int, bool], RewardTerms]()
    for i, sample in enumerate(samples):
        final = i if sample.identity.ends_call else last.get(sample.identity.whole_call, i)
        if final == i:
            generation_rewards.append([*calls[i], *paid[i]])
            continue
        which = final, bool(paid[i])
        if which not in sums:
            sums[which] = _with_local(
                replace(samples[final], rewards=RewardTerms()),
                calls[final] if paid[i] else [*calls[final], *paid[final]],
                prefix,
            ).rewards
        generation_rewards.append(
            [*([Reward(sums[which].local_reward)] if sums[which].local_given else []), *paid[i]]
        )
    return generation_rewards


def _calls_of(samples: Sequence[Sample], place: int | str) -> Iterable[int]:
    """Return the indices of the calls that a key of `Reward.local` names."""
    if isinstance(place, str):
        call_indices = [i for i, s in enumerate(samples) if s.agent_id == place and s.identity.ends_call]
        if not call_indices:
            raise AgentSystemError(
                f"a local reward names {place!r}, which made no call; agents: "
                f"{sorted({s.agent_id for s in samples})}"
            )
        return call_indices
    if isinstance(place, bool) or not isinstance(place, int) or not 0 <= place < len(samples):
        raise AgentSystemError(
            f"a local reward names call {place!r}, but the episode had {len(samples)} calls (numbered from 0)"
        )
    return [place]


def _with_local(sample: Sample, rewards: Sequence[Reward], prefix: Prefix | None) -> Sample:
    where = f"the reward of {sample.agent_id} in turn {sample.identity.turn}"
    terms: dict[str, float] = {}
    for reward in rewards:
        for name, value in _terms(reward.terms, where).items():
            terms[name] = terms.get(name, 0.0) + value
    local_rewards: list[float] = []
    by_token: list[list[float]] = []
    for value in [r.value for r in rewards if r.value is not None]:
        if not isinstance(value, (list, tuple, np.ndarray)):
            local_rewards.append(finite(value, "a local reward", where))
        elif prefix is None:
            raise AgentSystemError(
                f"{where} is a list; rewards of tokens or spans need reward.granularity=token"
            )
        else:
            by_token.append(token_rewards(list(value), sample, prefix, where))
            local_rewards.append(math.fsum(by_token[-1]))
    changes: dict[str, Any] = {}
    if local_rewards:
        changes |= {"local_reward": sum(local_rewards), "local_given": True}
    if by_token and sample.generation.token_ids:
        changes["token_rewards"] = tuple(map(sum, zip(*by_token, strict=True)))
    return replace(
        sample,
        rewards=replace(sample.rewards, **changes),
        reward_terms={**sample.reward_terms, **terms},
    )


def _with_committed(tree: EpisodeRecord, committed_episode: EpisodeRecord) -> EpisodeRecord:
    """Return a tree with the rewards of its committed replies as an episode; the rewards on their
    own forks stay.
    """
    committed = {id(s): p for s, p in zip(tree.committed, committed_episode.samples, strict=True)}
    return replace(
        committed_episode,
        samples=tuple(_with_played(s, committed[id(s)]) if s.identity.committed else s for s in tree.samples),
    )


def _with_played(sample: Sample, committed_sample: Sample) -> Sample:
    rewards = replace(
        committed_sample.rewards,
        local_reward=sample.rewards.local_reward,
        fork_reward=sample.rewards.fork_reward,
        episode_local=committed_sample.rewards.local_reward,
    )
    return replace(sample, rewards=rewards, reward_terms=committed_sample.reward_terms)
