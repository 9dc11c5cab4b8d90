"""A change of all weights in place, undone to the bit without a second copy: shows whether an
engine gets what is sent.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import torch

from verl.workers.engine.fsdp_engine import FSDPEngine
from verl.workers.engine.sharding import free_gathered, local

# The sign of every such element of a row changes, beginning with one that depends on the tensor's
# name.
STRIDE = 3
# Value of tensors that are zero, as the second factor of an adapter is at first.
FILL = 0.1


class WeightChange:
    """Changes the sign of a third of the elements of every tensor that is sent, and fills tensors
    of zeros.

    A change of signs is exact in every dtype, overflows nowhere and is its own inverse; unlike a
    factor per tensor it is not cancelled by the normalisation that follows. The positions differ
    between tensors, so that the signs of two tensors that are multiplied differ too.

    Args:
        engine: the trained model; its optimizers are not read.
    """

    def __init__(self, engine: FSDPEngine) -> None:
        self._engine = engine
        self._zeros: dict[str, torch.Tensor] = {}
        self._changed: list[str | None] = []

    @torch.no_grad()
    def apply(self, adapters: Sequence[str | None]) -> None:
        """Change these adapters, or the model (None); all ranks must call this together.

        Raises RuntimeError if a change is in place.
        """
        if self._changed:
            raise RuntimeError("the weights are changed already; call undo first")
        for adapter in adapters:
            for name, value in self._tensors(adapter):
                if value.numel() and not bool(value.any()):
                    self._zeros[_key(adapter, name)] = value.to("cpu", copy=True)
                    value.fill_(FILL)
                _flip(name, value)
            self._changed.append(adapter)

    @torch.no_grad()
    def undo(self) -> None:
        """Restore the weights; without a change this does nothing."""
        for adapter in self._changed:
            for name, value in self._tensors(adapter):
                zeros = self._zeros.get(_key(adapter, name))
                if zeros is None:
                    _flip(name, value)
                else:
                    value.copy_(zeros)
        self._changed = []
        self._zeros = {}

    def _tensors(self, adapter: str | None) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield this rank's part of every tensor that is sent, while it is on the engine's device."""
        model = self._engine.model
        if adapter is not None:
            tensors: dict[str, torch.Tensor] = dict(self._engine.adapters[adapter].parameters)
        else:
            tensors = dict(model.named_parameters())
            tensors |= {
                name: value for name, value in self._engine.buffers.items() if value.is_floating_point()
            }
        with self._engine.loaded():
            free_gathered(model)
            for name in tensors:
                yield name, local(tensors[name].detach())


def _key(adapter: str | None, name: str) -> str:
    return f"{adapter or ''}/{name}"


def _flip(name: str, value: torch.Tensor) -> None:
    if not value.numel():
        return
    rows = value.view(1) if value.ndim == 0 else value
    first = zlib.crc32(name.encode()) % min(STRIDE, rows.shape[-1])
    rows[..., first::STRIDE].neg_()
