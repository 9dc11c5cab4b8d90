"""Metrics of one collection, per agent and for the team."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Sequence

import numpy as np

from agent_system.record import PROGRAM_ERROR, EpisodeRecord, Sample
from agent_system.rollout.remote import RemoteGeneration
from agent_system.sandbox import shared_failures
from verl.utils.names import slug

# Terms of a sample's reward, each with its own metric.
REWARD_TERMS = (
    "local_reward",
    "team_reward",
    "step_reward",
    "mixed_reward",
    "invalid_penalty",
    "overlong_penalty",
)


def collect_metrics(
    episodes: Sequence[EpisodeRecord],
    agent_ids: Sequence[str],
    branching: Collection[str] = (),
    in_workers: Sequence[float] = (),
) -> dict[str, float]:
    """Return `episode/*`, `env/*` and `agent/<name>/*` over the episodes that did not fail, and the
    sandbox's failures since its start.

    Args:
        episodes: all episodes of one collection.
        agent_ids: agents of the team; an agent without calls has `calls` 0 and no other metric.
        branching: the agents whose calls have several candidates (`rollout.sampling=tree`); tree
            metrics are over their calls.
        in_workers: the sandbox's failures in each environment worker.
    """
    finished_episodes = [e for e in episodes if not e.failed]
    failed = len(episodes) - len(finished_episodes)
    metrics: dict[str, float] = {
        "episode/count": float(len(finished_episodes)),
        "episode/failed": float(failed),
        "episode/failure_rate": failed / len(episodes) if episodes else 0.0,
    }
    if (sandbox_failures := shared_failures()) is not None:
        metrics["training/sandbox_failures"] = sandbox_failures + sum(in_workers)
    if finished_episodes:
        metrics["episode/calls/mean"] = _mean([len(e.committed) for e in finished_episodes])
        metrics["episode/turns/mean"] = _mean([e.turns for e in finished_episodes])
        metrics["episode/tokens"] = _mean([_tokens(e.committed) for e in finished_episodes])
        metrics["episode/critical_tokens"] = _mean([critical_tokens(e) for e in finished_episodes])
        metrics |= (
            _info_means(finished_episodes)
            | _tree_metrics(finished_episodes, branching)
            | _reward_terms(finished_episodes)
        )
    by_agent: dict[str, list[Sample]] = defaultdict(list)
    for episode in finished_episodes:
        for sample in episode.samples:
            if not sample.identity.greedy:
                by_agent[sample.agent_id].append(sample)
    for agent_id in agent_ids:
        prefix = f"agent/{slug(agent_id)}"
        samples = by_agent[agent_id]
        metrics[f"{prefix}/calls"] = float(sum(s.identity.committed for s in samples))
        if samples:
            metrics |= {
                f"{prefix}/{k}": v for k, v in _agent_metrics(samples, len(finished_episodes)).items()
            }
    return metrics


def critical_tokens(episode: EpisodeRecord) -> int:
    """Return the reply tokens of the longest chain of calls of which each read, or could read, the
    reply of the one before: the critical path, with which the time of an episode grows where
    engines are never full.
    """
    calls: dict[tuple[int, int], list[Sample]] = defaultdict(list)
    for sample in episode.committed:
        calls[sample.identity.whole_call].append(sample)
    spans = sorted(
        (
            max(s.identity.order for s in rounds),
            min(s.identity.prior_replies for s in rounds),
            _tokens(rounds),
        )
        for rounds in calls.values()
    )
    ends: list[int] = []  # orders of replies
    longest = [0]  # chains among the first replies, by their number
    for end, replies_read, tokens in spans:
        before = longest[bisect_left(ends, replies_read)]
        ends.append(end)
        longest.append(max(longest[-1], before + tokens))
    return longest[-1]


def _tokens(samples: Sequence[Sample]) -> int:
    return sum(s.response_tokens for s in samples)


def _agent_metrics(calls: Sequence[Sample], episodes: int) -> dict[str, float]:
    # a reply that episodes share counts once
    samples = [s for s in calls if not s.identity.repeated]
    response = np.array([s.response_tokens for s in samples])
    prompt = np.array([s.prompt_tokens for s in samples])
    retries = [s.generation.retries for s in samples if isinstance(s.generation, RemoteGeneration)]
    invalid = sum(not s.valid for s in samples)
    reward = np.array([s.rewards.reward for s in samples])
    return {
        "calls_per_episode": sum(s.identity.committed for s in calls) / episodes,
        "valid_rate": 1.0 - invalid / len(samples),
        "unparsable": float(invalid),
        "truncated_replies": _mean([s.generation.stop_reason == "length" for s in samples]),
        "truncated_prompts": _mean([s.request.dropped_context > 0 for s in samples]),
        "dropped_context": float(sum(s.request.dropped_context for s in samples)),
        **({"endpoint_retries": float(sum(retries))} if retries else {}),
        "response_length/mean": float(response.mean()),
        "response_length/max": float(response.max()),
        "prompt_length/mean": float(prompt.mean()),
        "prompt_length/max": float(prompt.max()),
        "reward/mean": float(reward.mean()),
        "reward/std": float(reward.std()),
        **{f"{term}/mean": _mean([getattr(s.rewards, term) for s in samples]) for term in REWARD_TERMS},
        "local_reward/std": float(np.std([s.rewards.local_reward for s in samples])),
        **_tool_metrics(samples, episodes),
    }


def _tool_metrics(samples: Sequence[Sample], episodes: int) -> dict[str, float]:
    """Return counts of a `ToolAgent`: tool calls per episode, failed ones by kind, rounds per call,
    conversations restarted or cut off.
    """
    uses = [s.tools for s in samples if s.tools is not None]
    if not uses:
        return {}
    totals = {
        name: float(sum(getattr(use, name) for use in uses))
        for name in ("malformed", "errors", "timeouts", "restarted", "cut")
    }
    return {
        "tools/calls_per_episode": sum(use.calls for use in uses) / episodes,
        "tools/rounds/mean": sum(len(s.generations) for s in samples if s.tools is not None)
        / sum(s.identity.ends_call for s in samples),
        **{f"tools/{name}": total for name, total in totals.items()},
    }


def _reward_terms(episodes: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Return mean and standard deviation of every term of reward functions, over episodes and
    calls, and per agent over its calls.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        for name, value in episode.reward_terms.items():
            values[f"reward/{name}"].append(value)
        # a reply that episodes share counts once, with the mean of its terms
        for sample in (s for s in episode.samples if not s.identity.repeated):
            for name, value in sample.reward_terms.items():
                values[f"reward/{name}"].append(value)
                values[f"agent/{slug(sample.agent_id)}/reward/{name}"].append(value)
    return {
        f"{name}/{statistic}": number
        for name, term_values in sorted(values.items())
        for statistic, number in (("mean", _mean(term_values)), ("std", float(np.std(term_values))))
    }


def _tree_metrics(episodes: Sequence[EpisodeRecord], branching: Collection[str]) -> dict[str, float]:
    """Return candidates per call, candidates that could not be scored, and shares of calls whose
    candidates differ or tie in reward.
    """
    if not branching:
        return {}
    # of trees alone
    from agent_system.rollout.tied_candidates import candidates_of, tied, tied_shares

    calls = {
        key: call_candidates
        for key, call_candidates in candidates_of(episodes).items()
        if call_candidates[0].agent_id in branching
    }
    if not calls:
        return {}
    return {
        "tree/candidates/mean": _mean([len(candidates) for candidates in calls.values()]),
        "tree/left_out": float(sum(e.left_out for e in episodes)),
        "tree/signal_rate": _mean([not tied(candidates) for candidates in calls.values()]),
        **{f"agent/{slug(agent_id)}/tied_calls": share for agent_id, share in tied_shares(calls).items()},
    }


def _info_means(episodes: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Return the mean of every score over the episodes that report it; `success` and the team
    reward are under `episode/`, counts of the gateway under `gateway/`.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        for name, value in episode.scores.items():
            values[name].append(value)
    # the environment has not scored programs that raised
    if "success" in values:
        values["success"] += [0.0 for e in episodes if PROGRAM_ERROR in e.info and "success" not in e.info]
    means = {
        name if name.startswith("gateway/") else f"env/{name}": _mean(v) for name, v in sorted(values.items())
    }
    means["episode/team_reward/mean"] = means.pop("env/team_reward")
    if "env/success" in means:
        means["episode/success_rate"] = means.pop("env/success")
    return means


def _mean(values: Sequence[float]) -> float:
    return float(sum(values)) / len(values)
