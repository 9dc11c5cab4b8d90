"""Rewards of single tokens of a reply, given by token or by span of characters."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.record import Sample, finite

# Returns the text of the first `count` tokens of a reply.
Prefix = Callable[[Sample, int], str]


def token_rewards(reward_items: Sequence[Any], sample: Sample, prefix: Prefix, where: str) -> list[float]:
    """Return one reward per token of the reply, `[response_len]`.

    Args:
        reward_items: one number per token, or triples (start, end, reward) of characters in
            `Sample.text`. A span's reward is placed on the token that completes its text, the last
            token whose text is in it; spans may overlap, and rewards of one token add up. No span
            at all, as for a reply without text, is a reward of 0. Tokens that were not sampled have
            none: a span that ends in a tool message is placed on the last token before it.
        sample: the reply. One without token ids, from behind an API, has a single place for the
            sum.
        prefix: decodes the beginning of a reply.
        where: origin of the rewards, for messages.

    Raises:
        AgentSystemError: a wrong number of rewards, one on a token that was not sampled, a span
            outside the text, or a reward that is not a finite number.
    """
    count = len(sample.generation.token_ids)
    if len(reward_items) and not any(isinstance(item, (tuple, list)) for item in reward_items):
        if len(reward_items) != count:
            raise AgentSystemError(
                f"{where} has {len(reward_items)} token rewards, but the reply has {count} tokens"
            )
        values = [finite(value, "a token reward", where) for value in reward_items]
        if any(value for value, sampled in zip(values, sample.response_mask, strict=False) if not sampled):
            raise AgentSystemError(
                f"{where} has a reward on a token that was not sampled, where Sample.response_mask is 0"
            )
        return values
    rewards = [0.0] * max(count, 1)
    for item in reward_items:
        start, end, value = _span(item, len(sample.text), where)
        text = sample.text[:end]
        last = (
            bisect_left(range(1, count), True, key=lambda n: prefix(sample, n).startswith(text))
            if count
            else 0
        )
        while (
            text.endswith("\ufffd")
            and last + 1 < count
            and prefix(sample, last + 2) == text
            and _has_text(sample, last + 1, prefix)
        ):
            last += 1  # further bytes of a character that is not complete
        while sample.response_mask and not sample.response_mask[last]:
            last -= 1
        rewards[last] += finite(value, f"the reward of characters {start} to {end}", where)
    return rewards


def _has_text(sample: Sample, index: int, prefix: Prefix) -> bool:
    """Return whether a token is text, as opposed to a special token."""
    alone = replace(sample.generation, token_ids=sample.generation.token_ids[index : index + 1], earlier=())
    return bool(prefix(replace(sample, generation=alone), 1))


def _span(item: Any, length: int, where: str) -> tuple[int, int, Any]:
    whole = isinstance(item, (tuple, list)) and len(item) == 3 and all(type(at) is int for at in item[:2])
    if not whole or not 0 <= item[0] < item[1] <= length:
        raise AgentSystemError(
            f"{where} has the span {item!r:.80}; expected (start, end, reward) with 0 <= start < "
            f"end <= {length}, the characters of the reply"
        )
    return item[0], item[1], item[2]
