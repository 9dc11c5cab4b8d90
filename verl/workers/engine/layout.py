"""How the trainer lays out rows for a model's forward pass, so that the numbers of a row depend on
that row alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

Form = Literal["packed", "padded", "equal"]
Sharing = Literal["none", "chains", "trie"]


@dataclass(frozen=True)
class RowLayout:
    """The layout of the rows of a micro-batch.

    Attributes:
        form: `packed` is one sequence without padding, `padded` is `[rows, width]` with masked
            padding, `equal` is `[rows, length]` with rows of one length, without padding and
            without a mask.
        attention: name of transformers' attention implementation.
        limits: ascending lengths; rows of one micro-batch are on the same side of each. Ropes that
            switch their frequencies by the longest position of a batch are exact only then.
        sharing: how often tokens that rows have in common are run: once for each row (`none`), once
            for rows that begin others (`chains`, see `verl.workers.engine.chains`), or once
            (`trie`, see `verl.workers.engine.trie`).
    """

    form: Form
    attention: str
    limits: tuple[int, ...] = ()
    sharing: Sharing = "none"

    @property
    def packed(self) -> bool:
        """Whether rows are one sequence without padding."""
        return self.form == "packed"

    def groups(self, lengths: Sequence[int]) -> list[list[int]]:
        """Return the indices of rows that may share a micro-batch, given the number of tokens of
        each row.
        """
        if self.form != "equal" and not self.limits:
            return [list(range(len(lengths)))]
        groups: dict[int, list[int]] = {}
        for index, length in enumerate(lengths):
            side = length if self.form == "equal" else bisect_left(self.limits, length)
            groups.setdefault(side, []).append(index)
        return [groups[side] for side in sorted(groups)]

    def describe(self) -> str:
        """Return the layout in words, with its cost if it is not the fastest one."""
        forms = {
            "packed": "rows packed without padding",
            "padded": "rows padded to the longest of their micro-batch",
            "equal": "micro-batches of rows of one length, which are small where lengths differ",
        }
        sides = " and ".join(str(limit) for limit in self.limits)
        split = f", those of at most {sides} tokens apart from longer ones" if sides else ""
        shared = {
            "none": "",
            "chains": ", rows that begin others run within them",
            "trie": ", shared beginnings run once",
        }
        return f"{forms[self.form]}{split}{shared[self.sharing]}, attention by {self.attention}"


class RopeState:
    """Frequencies that rope modules change while they run, as a dynamic rope does; `reset` makes
    each pass independent of earlier ones.

    Args:
        model: before its first forward pass.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._initial = [
            (module, _state(module)) for module in model.modules() if hasattr(module, "max_seq_len_cached")
        ]

    def reset(self) -> None:
        """Restore the frequencies of a model that has not run yet."""
        for module, (buffers, numbers) in self._initial:
            for name, buffer in buffers.items():
                current = module._buffers[name]
                if current is not buffer:
                    device = buffer.device if current is None else current.device
                    module._buffers[name] = buffer.to(device)
            for name, number in numbers.items():
                setattr(module, name, number)


def _state(module: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    buffers = {name: buffer for name, buffer in module._buffers.items() if buffer is not None}
    numbers = {name: value for name, value in vars(module).items() if type(value) in (int, float)}
    return buffers, numbers


def rope_limits(config: Any) -> tuple[int, ...]:
    """Return the ascending numbers of positions beyond which a model's rope may use other
    frequencies.

    Args:
        config: of the text model.
    """
    limits: set[int] = set()
    for rope in _ropes(getattr(config, "rope_parameters", None)):
        if rope.get("rope_type", "default") == "default":
            continue
        original = rope.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        limits |= {
            value
            for value in (original, getattr(config, "max_position_embeddings", None))
            if isinstance(value, int)
        }
    return tuple(sorted(limits))


def _ropes(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the parameters of every rope: one for all layers, or one for each kind of layer."""
    if not isinstance(value, Mapping):
        return
    if "rope_type" in value:
        yield value
    for nested in value.values():
        yield from _ropes(nested)
