"""What a critic of the whole team reads before a reply: all that was said in the episode so far, then the agent's own prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_system.record import EpisodeRecord
from agent_system.rollout.tokens import encode_all


def joint_prompts(episodes: Sequence[EpisodeRecord], tokenizers: Mapping[str, Any], limit: int) -> list[tuple[int, ...]]:
    """Return the token ids of the transcript and prompt of every sample to train on, in the order of `build_batch`.

    The transcript has a block `<agent>: <reply>` for each reply that had been given when the call's prompt was built, in earlier turns
    as well, in the tokenizer of the policy that is called. Its oldest tokens are cut so that it fits before the prompt.

    Args:
        episodes: failed ones have no samples in a batch, and none here.
        tokenizers: by `wg_id`.
        limit: most tokens of transcript and prompt together; the prompt is never cut.
    """
    played = [e for e in episodes if not e.failed]
    texts = [f"{s.agent_id}: {s.text}\n\n" for e in played for s in e.samples]
    encoded = {wg: encode_all(tokenizers[wg], texts) for wg in dict.fromkeys(s.wg_id for e in played for s in e.samples if s.trained)}
    prompts, first = [], 0
    for episode in played:
        for sample in (s for s in episode.samples if s.trained):
            blocks = [
                encoded[sample.wg_id][first + i]
                for i, other in enumerate(episode.samples)
                if other.committed and other.order < sample.heard
            ]
            prompts.append(_end(blocks, limit - len(sample.prompt_ids)) + sample.prompt_ids)
        first += len(episode.samples)
    return prompts


def _end(blocks: Sequence[tuple[int, ...]], room: int) -> tuple[int, ...]:
    """The last `room` tokens of the blocks."""
    kept: list[tuple[int, ...]] = []
    for block in reversed(blocks):
        if room <= 0:
            break
        kept.append(block[-room:])
        room -= len(kept[-1])
    return tuple(token for block in reversed(kept) for token in block)
