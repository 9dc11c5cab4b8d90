"""Prompts of a joint critic: the transcript of the episode before a reply, then the agent's own
prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_system.record import EpisodeRecord
from agent_system.rollout.tokens import encode_all


def joint_prompts(
    episodes: Sequence[EpisodeRecord], tokenizers: Mapping[str, Any], limit: int
) -> list[tuple[int, ...]]:
    """Return the token ids of transcript and prompt of every trained sample, in the order of
    `build_batch`.

    The transcript has a block `<agent>: <reply>` for each reply of the episode, earlier turns
    included, that existed when the call's prompt was built. It is encoded with the tokenizer of the
    sample's policy; its oldest tokens are cut so that it fits before the prompt.

    Args:
        episodes: all episodes; failed ones are skipped.
        tokenizers: tokenizer by `wg_id`.
        limit: maximum number of tokens of transcript and prompt together; the prompt is never cut.
    """
    finished_episodes = [e for e in episodes if not e.failed]
    texts = [f"{s.agent_id}: {s.text}\n\n" for e in finished_episodes for s in e.samples]
    encoded = {
        wg: encode_all(tokenizers[wg], texts)
        for wg in dict.fromkeys(
            s.identity.wg_id for e in finished_episodes for s in e.samples if s.identity.trained
        )
    }
    prompts = []
    first = 0
    for episode in finished_episodes:
        for sample in (s for s in episode.samples if s.identity.trained):
            blocks = [
                encoded[sample.identity.wg_id][first + i]
                for i, other in enumerate(episode.samples)
                if other.identity.committed and other.identity.order < sample.identity.prior_replies
            ]
            prompts.append(_end(blocks, limit - len(sample.request.prompt_ids)) + sample.request.prompt_ids)
        first += len(episode.samples)
    return prompts


def _end(blocks: Sequence[tuple[int, ...]], room: int) -> tuple[int, ...]:
    """Return the last `room` tokens of the blocks."""
    last_blocks: list[tuple[int, ...]] = []
    for block in reversed(blocks):
        if room <= 0:
            break
        last_blocks.append(block[-room:])
        room -= len(last_blocks[-1])
    return tuple(token for block in reversed(last_blocks) for token in block)
