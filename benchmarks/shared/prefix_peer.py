"""A policy update with the package `prefix_grouper`, for `policy_update.py`.

The package joins the replies to a prompt behind it in one row and splits attention in two calls: the prompt
alone, and the replies over prompt and own tokens. Its attention for transformers calls flash-attn; here both
calls are torch's `scaled_dot_product_attention`, passed to the package's `AttentionForward`.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from benchmarks.shared.peers import installed

PACKAGE = "prefix_grouper==0.0.1.post1"
ATTENTION = "prefix_grouper_sdpa"


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _padding: torch.Tensor, scaling: float
) -> torch.Tensor:
    """Return `[batch, queries, heads, width]`: queries are the last of the keys; rows are not padded."""
    queries, keys = query.shape[2], key.shape[2]
    is_prompt = queries == keys
    mask = None if is_prompt else torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    attended = scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=is_prompt, scale=scaling, enable_gqa=True
    )
    return attended.transpose(1, 2)


def _layer(
    _module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: torch.Tensor | None,
    *,
    prefix_grouper: Any,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    return prefix_grouper.forward(_attend, query, key, value, scaling), None


class PrefixGrouperUpdate:
    """Updates of a model on groups of replies of equal length to prompts of equal length.

    Args:
        model: a transformers model; its attention is replaced.
        group: replies to a prompt.
    """

    def __init__(self, model: Any, group: int) -> None:
        sys.path.append(str(installed(PACKAGE)))
        import prefix_grouper

        self.groups_of = prefix_grouper.PrefixGrouper.from_ungrouped_masks
        AttentionInterface.register(ATTENTION, _layer)
        model.set_attn_implementation(ATTENTION)
        self.model = model
        self.group = group

    def backward(self, rows: dict[str, torch.Tensor], micro_batches: int) -> None:
        """Add the gradient of the clipped loss of all rows, as `policy_update.bare_update` has it.

        Args:
            rows: as those of `make_groups`; replies of a group lie together.
            micro_batches: number of forward and backward passes, of whole groups.
        """
        total = rows["response_mask"].sum()
        replies = rows["responses"].shape[1]
        groups = torch.arange(len(rows["input_ids"])).view(-1, self.group)
        for part in groups.chunk(micro_batches):
            index = part.flatten()
            log_probs = self.log_probs(rows["input_ids"][part[:, 0], :-replies], rows["responses"][index])
            ratio = torch.exp((log_probs - rows["old_log_probs"][index]).clamp(-20, 20))
            advantages = rows["advantages"][index]
            losses = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2))
            (losses.sum() / float(total)).backward()

    def log_probs(self, prompts: torch.Tensor, replies: torch.Tensor) -> torch.Tensor:
        """Return `[groups * group, reply]` log-probs of replies to prompts `[groups, prompt]`."""
        prompt_mask = torch.ones_like(prompts)
        reply_mask = torch.ones_like(replies)
        grouper = self.groups_of(prompt_mask, reply_mask, self.group)
        ids = grouper.concat_input(prompts, prompt_mask, replies, reply_mask)
        of_reply = torch.arange(prompts.shape[1], prompts.shape[1] + replies.shape[1])
        positions = torch.cat([torch.arange(prompts.shape[1]), of_reply.repeat(self.group)])
        hidden = self.model.model(
            input_ids=ids, position_ids=positions.expand_as(ids), prefix_grouper=grouper, use_cache=False
        ).last_hidden_state
        # The head is wanted behind the last token of the prompt and those of the reply only.
        _, _, states, _ = grouper.split_output(hidden, include_prefix_last=1)
        log_probs = torch.log_softmax(self.model.lm_head(states[:, :-1]).float(), -1)
        return log_probs.gather(-1, replies[..., None]).squeeze(-1)
