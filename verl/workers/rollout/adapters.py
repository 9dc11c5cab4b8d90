"""LoRA adapters of the `hf` engine: every row of a forward pass has its own, or none.

All adapters of a layer are concatenated: their `lora_A` are the rows of one matrix, their `lora_B`
the columns of another. A row runs through all of them and a mask keeps the part of its own adapter,
so that shapes never depend on the other rows of the batch, no weights are gathered by row, and a
row without an adapter gets an exact zero. The cost is that of the sum of the ranks instead of one
rank, which is small compared with the width of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from verl.models.lora import LoraSpec, adapter_shapes, lora_targets, tensor_name
from verl.protocol.generate import RolloutError
from verl.workers.rollout.weights import AdapterInbox


@dataclass(frozen=True)
class _Adapter:
    """One adapter: its slice of the concatenated ranks, and its layers."""

    columns: slice
    scaling: float
    layers: frozenset[str]


class RowAdapters:
    """The adapters of one model, added to its layers' outputs by forward hooks; the model's
    parameters keep their names.

    Args:
        model: on its device, without adapters.
        specs: by adapter name.
        slots: rows of a decode step.

    Raises:
        LoraTargetError: an adapter does not fit the model.
    """

    def __init__(self, model: torch.nn.Module, specs: Mapping[str, LoraSpec], slots: int) -> None:
        weight = next(model.parameters())
        self._device = weight.device
        self._dtype = weight.dtype
        self._total = sum(spec.rank for spec in specs.values())
        self._down: dict[str, torch.Tensor] = {}
        self._up: dict[str, torch.Tensor] = {}
        self._adapters: dict[str, _Adapter] = {}
        shapes: dict[str, dict[str, tuple[int, ...]]] = {}
        start = 0
        for name, spec in specs.items():
            targets = lora_targets(model, spec)
            shapes[name] = adapter_shapes(targets, spec.rank)
            for layer, linear in targets.items():
                if layer not in self._down:
                    inputs = shapes[name][tensor_name(layer, "lora_A")][-1]
                    outputs = shapes[name][tensor_name(layer, "lora_B")][0]
                    self._down[layer] = torch.zeros(
                        self._total, inputs, dtype=self._dtype, device=self._device
                    )
                    self._up[layer] = torch.zeros(
                        outputs, self._total, dtype=self._dtype, device=self._device
                    )
                    linear.register_forward_hook(self._hook(layer))
            self._adapters[name] = _Adapter(slice(start, start + spec.rank), spec.scaling, frozenset(targets))
            start += spec.rank
        self._inbox = AdapterInbox(shapes)
        self._slots = torch.zeros(slots, self._total, dtype=self._dtype, device=self._device)
        self._of_slots: list[str | None] = [None] * slots
        self._rows: torch.Tensor | None = None
        self._tokens = 1

    def version(self, name: str) -> int:
        """Return the version of an adapter's weights. Raises `RolloutError` for an unknown adapter
        or one without weights.
        """
        return self._inbox.version(name)

    def load(self, name: str, tensors: Mapping[str, torch.Tensor], version: int, final: bool) -> None:
        """Load one bucket; all of an adapter's tensors take effect together with the final one, and
        only its own rows use them.

        Raises `RolloutError` as `AdapterInbox.take` does.
        """
        received = self._inbox.take(
            name, {key: value.to(self._device, self._dtype) for key, value in tensors.items()}, final
        )
        if received is None:
            return
        adapter = self._adapters[name]
        with torch.no_grad():
            for layer in adapter.layers:
                self._down[layer][adapter.columns] = received[tensor_name(layer, "lora_A")]
                self._up[layer][:, adapter.columns] = received[tensor_name(layer, "lora_B")]
        self._inbox.set_version(name, version)

    def assign(self, slots: Sequence[int], names: Sequence[str | None]) -> None:
        """Set the adapters of slots in which replies start."""
        for slot, name in zip(slots, names, strict=True):
            if self._of_slots[slot] != name:
                self._slots[slot] = self._mask(name)
                self._of_slots[slot] = name

    def use_slots(self, rows: int) -> None:
        """Prepare a forward pass with one token of each of the first slots."""
        self._tokens = 1
        self._rows = self._slots[:rows] if any(name is not None for name in self._of_slots[:rows]) else None

    def use_slot(self, slot: int) -> None:
        """Prepare a forward pass with one row, that of a slot."""
        self._rows = None if self._of_slots[slot] is None else self._slots[slot : slot + 1]

    def use_rows(self, names: Sequence[str | None], rows: int, tokens: int) -> None:
        """Prepare a forward pass of `tokens` per row with these adapters in its first rows and none
        in the others.
        """
        self._tokens = tokens
        self._rows = None
        if any(name is not None for name in names):
            self._rows = torch.zeros(rows, self._total, dtype=self._dtype, device=self._device)
            for row, name in enumerate(names):
                self._rows[row] = self._mask(name)

    def _mask(self, name: str | None) -> torch.Tensor:
        """Return `[total rank]`: the adapter's scaling in its own columns, else 0."""
        mask = torch.zeros(self._total, dtype=self._dtype, device=self._device)
        if name is not None:
            mask[self._adapters[name].columns] = self._adapters[name].scaling
        return mask

    def _hook(self, layer: str) -> Callable[[torch.nn.Module, Any, Any], Any]:
        """Return a forward hook that adds the output of each row's own adapter to a layer's output.

        The input is [rows, ..., in], such as [rows, tokens, in], or [rows * tokens, in] row by row;
        of a tuple, the first output is the layer's.
        """
        down = self._down[layer]
        up = self._up[layer]

        def add(module: torch.nn.Module, args: Any, output: Any) -> Any:
            if self._rows is None:
                return None
            change = F.linear(F.linear(args[0], down) * self._masks(layer, args[0]), up)
            return (output[0] + change, *output[1:]) if isinstance(output, tuple) else output + change

        return add

    def _masks(self, layer: str, states: torch.Tensor) -> torch.Tensor:
        """Return the masks of the rows in the shape of a layer's input. Raises RolloutError if its
        rows cannot be told apart.
        """
        assert self._rows is not None
        rows = len(self._rows)
        if rows == 1 or (states.ndim > 2 and len(states) == rows):
            return self._rows.view(rows, *[1] * (states.ndim - 2), -1)
        if states.ndim == 2 and len(states) == rows * self._tokens:
            return self._rows if self._tokens == 1 else self._rows.repeat_interleave(self._tokens, 0)
        raise RolloutError(
            f"the hf engine cannot give every row its own adapter in layer {layer}, whose input "
            f"has the shape {list(states.shape)} for {rows} rows of {self._tokens} tokens; leave "
            "it out with actor_rollout_ref.model.exclude_modules"
        )
