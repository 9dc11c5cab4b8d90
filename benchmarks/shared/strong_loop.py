"""A hand-written training loop for a Qwen3-shaped model, as fast as plain torch makes it on a CPU:
the peer of whole training steps.

Prompts are prefilled once for all replies of a group into a static key-value cache, all rows are
decoded together, the three projections of attention and the two of the feed-forward layer are one
product each, norms and AdamW are torch's fused ones, and micro-batches fit into the cache of a
core. It knows rows of one length only, no padding and no stop tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

# Keys and values of one layer, [rows, heads, positions, channels] each.
KeyValues = tuple[torch.Tensor, torch.Tensor]
Attention = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Block:
    """Weights of one layer; those of products with one input are concatenated."""

    input_norm: torch.Tensor
    query_key_value: torch.Tensor
    query_norm: torch.Tensor
    key_norm: torch.Tensor
    output: torch.Tensor
    inner_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class StrongLoop:
    """One model with its optimizer.

    Args:
        model: a Qwen3 model of transformers in fp32 with tied embeddings; its weights are copied.
        lr: learning rate of AdamW, without weight decay.
        micro_rows: rows of a micro-batch.
    """

    def __init__(self, model: Any, lr: float, micro_rows: int) -> None:
        config = model.config
        self.eps = config.rms_norm_eps
        self.channels = config.head_dim
        self.heads = config.num_attention_heads
        self.key_heads = config.num_key_value_heads
        self.micro_rows = micro_rows

        def joined(*modules: torch.nn.Module) -> torch.Tensor:
            return torch.cat([module.weight.detach() for module in modules]).requires_grad_()  # type: ignore[operator]

        self.embedding = joined(model.model.embed_tokens)
        self.final_norm = joined(model.model.norm)
        self.blocks = [
            Block(
                joined(layer.input_layernorm),
                joined(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj),
                joined(layer.self_attn.q_norm),
                joined(layer.self_attn.k_norm),
                joined(layer.self_attn.o_proj),
                joined(layer.post_attention_layernorm),
                joined(layer.mlp.gate_proj, layer.mlp.up_proj),
                joined(layer.mlp.down_proj),
            )
            for layer in model.model.layers
        ]
        self.parameters = [self.embedding, self.final_norm]
        self.parameters += [weight for block in self.blocks for weight in vars(block).values()]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=lr, weight_decay=0.0, fused=True)
        positions = torch.arange(config.max_position_embeddings)[None, :, None]
        with torch.no_grad():
            cos, sin = model.model.rotary_emb(self.embedding[:1], positions[..., 0])
        self.cos = cos[0]
        self.sin = sin[0]

    def _turned(self, states: torch.Tensor, first: int) -> torch.Tensor:
        """Return queries or keys [rows, heads, tokens, channels] with their positions from `first` on."""
        places = slice(first, first + states.shape[2])
        low, high = states.chunk(2, -1)
        return states * self.cos[places] + torch.cat([-high, low], -1) * self.sin[places]

    def _run(self, ids: torch.Tensor, first: int, attend: Attention) -> torch.Tensor:
        """Return the hidden states [rows, tokens, width] of tokens at the positions from `first` on."""
        rows, tokens = ids.shape
        states = F.embedding(ids, self.embedding)
        width = (states.shape[-1],)
        sizes = [self.heads, self.key_heads, self.key_heads]
        for index, block in enumerate(self.blocks):
            inner = F.linear(F.rms_norm(states, width, block.input_norm, self.eps), block.query_key_value)
            parts = inner.view(rows, tokens, -1, self.channels).split(sizes, 2)
            query = F.rms_norm(parts[0], (self.channels,), block.query_norm, self.eps).transpose(1, 2)
            key = F.rms_norm(parts[1], (self.channels,), block.key_norm, self.eps).transpose(1, 2)
            mixed = attend(
                index, self._turned(query, first), self._turned(key, first), parts[2].transpose(1, 2)
            )
            states = states + F.linear(mixed, block.output)
            inner = F.linear(F.rms_norm(states, width, block.inner_norm, self.eps), block.gate_up)
            gate, up = inner.chunk(2, -1)
            states = states + F.linear(F.silu(gate) * up, block.down)
        return F.rms_norm(states, width, self.final_norm, self.eps)

    def hidden(self, ids: torch.Tensor, keep: Callable[[int, KeyValues], None] | None = None) -> torch.Tensor:
        """Return the hidden states of whole rows [rows, tokens]; `keep` gets the keys and values of each
        layer.
        """

        def attend(index: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            if keep is not None:
                keep(index, (key, value))
            out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
            return out.transpose(1, 2).flatten(2)

        return self._run(ids, 0, attend)

    def decode(self, tokens: torch.Tensor, place: int, cache: Sequence[KeyValues]) -> torch.Tensor:
        """Return the logits [rows, words] after one more token of each row, at `place`, and write its keys
        and values to the cache.
        """

        def attend(index: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            keys, values = cache[index]
            keys[:, :, place] = key[:, :, 0]
            values[:, :, place] = value[:, :, 0]
            # Heads that share keys are queries of one product.
            folded = query.reshape(len(tokens), self.key_heads, -1, self.channels)
            seen = slice(0, place + 1)
            out = F.scaled_dot_product_attention(folded, keys[:, :, seen], values[:, :, seen])
            return out.reshape(len(tokens), 1, -1)

        return F.linear(self._run(tokens[:, None], place, attend)[:, 0], self.embedding)

    def _prefilled(
        self, prompts: torch.Tensor, group: int, tokens: int
    ) -> tuple[torch.Tensor, list[KeyValues]]:
        """Return the logits after each prompt and a cache with room for `tokens` more, `group` rows for each
        prompt.
        """
        cache: list[KeyValues] = []
        width = prompts.shape[1]

        def keep(index: int, key_values: KeyValues) -> None:
            rooms = []
            for part in key_values:
                room = part.new_empty(len(part) * group, part.shape[1], width + tokens, part.shape[3])
                room.unflatten(0, (-1, group))[:, :, :, :width] = part[:, None]
                rooms.append(room)
            cache.append((rooms[0], rooms[1]))

        last = self.hidden(prompts, keep)[:, -1]
        return F.linear(last, self.embedding).repeat_interleave(group, 0), cache

    @torch.inference_mode()
    def generate(self, prompts: torch.Tensor, group: int, tokens: int) -> torch.Tensor:
        """Sample `group` replies of `tokens` to each prompt [prompts, width]; returns
        [prompts * group, tokens].
        """
        logits, cache = self._prefilled(prompts, group, tokens)
        replies = torch.empty(len(logits), tokens, dtype=torch.long)
        for count in range(tokens):
            replies[:, count] = logits.softmax(-1).multinomial(1)[:, 0]
            if count + 1 < tokens:
                logits = self.decode(replies[:, count], prompts.shape[1] + count, cache)
        return replies

    def update(self, rows: torch.Tensor, width: int, advantages: torch.Tensor) -> None:
        """Take one optimizer step on rows [rows, tokens] whose replies begin at `width`, with the clipped
        objective, averaged over tokens, of fresh samples.
        """
        replies = rows[:, width:]
        for part in torch.arange(len(rows)).split(self.micro_rows):
            states = self.hidden(rows[part, :-1])[:, width - 1 :]
            logits = F.linear(states, self.embedding).flatten(0, 1)
            losses = F.cross_entropy(logits, replies[part].flatten(), reduction="none").view(len(part), -1)
            ratio = torch.exp(losses.detach() - losses)
            gains = advantages[part, None]
            objective = torch.minimum(gains * ratio, gains * ratio.clamp(0.8, 1.2))
            (-objective.sum() / replies.numel()).backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


@torch.inference_mode()
def largest_difference(loop: StrongLoop, model: Any, rows: int = 4, tokens: int = 48) -> float:
    """Return the largest difference between logits of a loop, computed as whole rows and token by token, and
    those of transformers' model.
    """
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.config.vocab_size, (rows, tokens), generator=generator)
    expected = model(input_ids=ids, use_cache=False).logits
    whole = F.linear(loop.hidden(ids), loop.embedding)
    half = tokens // 2
    logits, cache = loop._prefilled(ids[:, :half], 1, tokens - half)
    steps = [logits]
    steps += [loop.decode(ids[:, place], place, cache) for place in range(half, tokens)]
    differences = (whole - expected, torch.stack(steps, 1) - expected[:, half - 1 :])
    return max(float(difference.abs().max()) for difference in differences)
