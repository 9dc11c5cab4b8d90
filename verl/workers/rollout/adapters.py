"""LoRA adapters of the `hf` engine: every row of a forward pass has its own, or none.

All adapters of a layer stand side by side: their `lora_A` are the rows of one matrix, their `lora_B` the columns of another. A row runs
through all of them and a mask keeps the part of its own adapter, so that shapes never depend on who shares the batch, nothing is
gathered by row, and a row without an adapter gets an exact zero. It costs the sum of the ranks instead of one rank, which is small
beside the width of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from verl.models.lora import PEFT_PREFIX, LoraSpec, lora_targets
from verl.protocol.generate import RolloutError
from verl.workers.rollout.weights import check_bucket, check_complete


@dataclass
class _Adapter:
    """One adapter: its columns of the stacked ranks, its tensors as they came so far, and the version of those in use."""

    columns: slice
    scaling: float
    shapes: dict[str, tuple[int, ...]]
    received: dict[str, torch.Tensor] = field(default_factory=dict)
    version: int | None = None


class RowAdapters:
    """The adapters of one model, added to its layers' outputs by forward hooks; the model's parameters keep their names.

    Args:
        model: on its device, without adapters.
        specs: by adapter name.
        slots: rows of a decode step.

    Raises:
        LoraTargetError: an adapter does not fit the model.
    """

    def __init__(self, model: torch.nn.Module, specs: Mapping[str, LoraSpec], slots: int) -> None:
        weight = next(model.parameters())
        self._device, self._dtype = weight.device, weight.dtype
        self._total = sum(spec.rank for spec in specs.values())
        self._down: dict[str, torch.Tensor] = {}
        self._up: dict[str, torch.Tensor] = {}
        self._adapters: dict[str, _Adapter] = {}
        start = 0
        for name, spec in specs.items():
            shapes: dict[str, tuple[int, ...]] = {}
            for layer, linear in lora_targets(model, spec).items():
                shapes[_tensor_name(layer, "lora_A")] = (spec.rank, linear.in_features)
                shapes[_tensor_name(layer, "lora_B")] = (linear.out_features, spec.rank)
                if layer not in self._down:
                    self._down[layer] = torch.zeros(self._total, linear.in_features, dtype=self._dtype, device=self._device)
                    self._up[layer] = torch.zeros(linear.out_features, self._total, dtype=self._dtype, device=self._device)
                    linear.register_forward_hook(self._hook(layer))
            self._adapters[name] = _Adapter(slice(start, start + spec.rank), spec.scaling, shapes)
            start += spec.rank
        self._slots = torch.zeros(slots, self._total, dtype=self._dtype, device=self._device)
        self._of_slots: list[str | None] = [None] * slots
        self._rows: torch.Tensor | None = None

    def version(self, name: str) -> int:
        """Version of the weights of an adapter. Raises `RolloutError` for one that is unknown, or whose weights never came."""
        if name not in self._adapters:
            raise RolloutError(f"there is no adapter {name!r}; the engine has {sorted(self._adapters) or 'none'}")
        version = self._adapters[name].version
        if version is None:
            raise RolloutError(f"adapter {name!r} has no weights yet; send them with update_weights(adapter={name!r})")
        return version

    def load(self, name: str, tensors: Mapping[str, torch.Tensor], version: int, final: bool) -> None:
        """Take in one bucket; all of an adapter's tensors take effect together with the final one, and only its own rows see them.

        Raises `RolloutError` for an unknown adapter, unknown names, wrong shapes or numbers that are not finite (nothing of the bucket is
        then kept), and at the final bucket when tensors never came.
        """
        if name not in self._adapters:
            raise RolloutError(f"there is no adapter {name!r} to update; the engine has {sorted(self._adapters) or 'none'}")
        adapter = self._adapters[name]
        check_bucket(tensors, adapter.shapes, f"update of adapter {name!r}")
        for key, value in tensors.items():
            if not bool(torch.isfinite(value).all()):
                raise RolloutError(f"update of adapter {name!r}: {key} is not finite, and would reach the rows of other adapters")
        adapter.received |= {key: value.to(self._device, self._dtype) for key, value in tensors.items()}
        if not final:
            return
        check_complete(set(adapter.shapes) - set(adapter.received), f"update of adapter {name!r}")
        with torch.no_grad():
            for layer in self._down:
                if (key := _tensor_name(layer, "lora_A")) in adapter.shapes:
                    self._down[layer][adapter.columns] = adapter.received[key]
                    self._up[layer][:, adapter.columns] = adapter.received[_tensor_name(layer, "lora_B")]
        adapter.received, adapter.version = {}, version

    def assign(self, slots: Sequence[int], names: Sequence[str | None]) -> None:
        """Give slots the adapter of the replies that start there."""
        for slot, name in zip(slots, names, strict=True):
            if self._of_slots[slot] != name:
                self._slots[slot] = self._mask(name)
                self._of_slots[slot] = name

    def use_slots(self, rows: int) -> None:
        """The coming forward pass has a row for each of the first slots."""
        self._rows = self._slots[:rows] if any(name is not None for name in self._of_slots[:rows]) else None

    def use_rows(self, names: Sequence[str | None], rows: int) -> None:
        """The coming forward pass has these adapters in its first rows and none in the others."""
        self._rows = None
        if any(name is not None for name in names):
            self._rows = torch.zeros(rows, self._total, dtype=self._dtype, device=self._device)
            for row, name in enumerate(names):
                self._rows[row] = self._mask(name)

    def _mask(self, name: str | None) -> torch.Tensor:
        """`[total rank]`: the adapter's scaling in its own columns, else 0."""
        mask = torch.zeros(self._total, dtype=self._dtype, device=self._device)
        if name is not None:
            mask[self._adapters[name].columns] = self._adapters[name].scaling
        return mask

    def _hook(self, layer: str) -> Callable[[torch.nn.Module, Any, torch.Tensor], torch.Tensor | None]:
        """Adds to a layer's output `[rows, tokens, out]` what the row's own adapter makes of its input."""
        down, up = self._down[layer], self._up[layer]

        def add(module: torch.nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor | None:
            if self._rows is None:
                return None
            return output + F.linear(F.linear(args[0], down) * self._rows[:, None], up)

        return add


def _tensor_name(layer: str, part: str) -> str:
    return f"{PEFT_PREFIX}{layer}.{part}.weight"
