"""The generations of one call of a `ToolAgent` as one sample
(`actor_rollout_ref.rollout.tool_samples=sequence`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest

from agent_system.record import CallTimes, Sample
from agent_system.tool_use import ToolUse
from verl.protocol.generate import Generation


def join_generations(
    samples: Sequence[Sample], agents: Collection[str], text_of: Callable[[str, Generation], str]
) -> list[Sample]:
    """Return samples of one episode, ordered by turn and call, in which those of each call of the
    `agents` are joined.

    The joined sample has the first prompt; its response is all generations with the tokens between
    them, which `Sample.response_mask` leaves out. A generation whose prompt does not continue the
    tokens of the last prompt and reply begins a sample of its own, with the rewards of an earlier
    generation of the call. A sample has the call number of its first generation; the tokens of tool
    messages belong to the version of the weights that sampled those before. Prompts have at most
    `max_prompt_length` tokens, so that prompt and response together have at most that many and
    those of one reply.

    Args:
        samples: with the rewards of `Ledger.credit`.
        agents: agents with `tool_samples=sequence`; samples of others, and of agents without tools,
            stay as they are.
        text_of: decodes a response of an agent.
    """
    calls: dict[tuple[int, int], list[Sample]] = defaultdict(list)
    others = []
    for sample in samples:
        if sample.agent_id in agents and sample.tools is not None:
            calls[sample.identity.whole_call].append(sample)
        else:
            others.append(sample)
    final = dict[tuple[int, int | None], int]()
    joined = []
    for (turn, last), generations in calls.items():
        parts = [_joined(part, text_of) for part in _parts(generations)]
        final[turn, last] = parts[-1].identity.call
        joined += [*(part.with_identity(final_call=final[turn, last]) for part in parts[:-1]), parts[-1]]
    summaries = [
        s.with_identity(final_call=final.get((s.identity.turn, s.identity.final_call), s.identity.final_call))
        for s in others
    ]
    return sorted([*summaries, *joined], key=lambda s: (*s.identity.call_key, s.identity.candidate))


def _parts(generations: Sequence[Sample]) -> list[list[Sample]]:
    """Return the generations in runs whose prompts each continue the tokens of the last prompt and
    reply.
    """
    parts = [[generations[0]]]
    for before, after in pairwise(generations):
        so_far = before.request.prompt_ids + before.generation.token_ids
        if after.request.prompt_ids[: len(so_far)] == so_far:
            parts[-1].append(after)
        else:
            parts.append([after])
    return parts


def _joined(rounds: Sequence[Sample], text_of: Callable[[str, Generation], str]) -> Sample:
    first = rounds[0]
    last = rounds[-1]
    if first is last:
        return first
    tokens = last.request.prompt_ids[len(first.request.prompt_ids) :] + last.generation.token_ids
    mask = list[int]()
    log_probs = list[float]()
    spans = list[tuple[int, int]]()
    for sample, following in zip_longest(rounds, rounds[1:]):
        reply = sample.generation
        message = (
            0
            if following is None
            else len(following.request.prompt_ids) - len(sample.request.prompt_ids) - len(reply.token_ids)
        )
        mask += [1] * len(reply.token_ids) + [0] * message
        log_probs += (*reply.log_probs, *(0.0,) * message)
        *earlier, (version, count) = reply.spans
        spans += [*earlier, (version, count + message)]
    whole = replace(
        last.generation,
        token_ids=tokens,
        log_probs=tuple(log_probs),
        stop_reason="length"
        if any(s.generation.stop_reason == "length" for s in rounds)
        else last.generation.stop_reason,
        earlier=tuple(spans[:-1]),
    )
    return replace(
        last,
        text=text_of(first.agent_id, whole),
        valid=all(s.valid for s in rounds),
        identity=replace(
            last.identity,
            call=first.identity.call,
            anchor=first.identity.anchor,
            prior_replies=first.identity.prior_replies,
        ),
        request=replace(first.request, dropped_context=last.request.dropped_context),
        generation=whole,
        times=_whole_time(rounds),
        tools=_total([s.tools for s in rounds if s.tools is not None]),
        rounds=tuple(rounds),
        response_mask=tuple(mask),
    )


def _whole_time(rounds: Sequence[Sample]) -> CallTimes | None:
    times = [s.times for s in rounds if s.times is not None]
    if not times:
        return None
    return CallTimes(began=times[0].began, ended=times[-1].ended, waited=sum(t.waited for t in times))


def _total(uses: Sequence[ToolUse]) -> ToolUse:
    counts = {
        name: sum(getattr(use, name) for use in uses) for name in ("calls", "malformed", "errors", "timeouts")
    }
    return ToolUse(uses[0].round, **counts, restarted=uses[0].restarted, cut=uses[-1].cut)
