"""LoRA adapters of the `hf` engine: every row of a forward pass has its own, or none.

Shapes of a row's products never depend on the other rows of the batch, and a row without an adapter
gets an exact zero. There are two ways, chosen once:

- All adapters of a layer are concatenated: their `lora_A` are the rows of one matrix, their
  `lora_B` the columns of another. A row runs through all of them and a mask keeps the part of its
  own adapter. The cost is that of the sum of the ranks instead of one rank, which is small compared
  with the width of a layer as long as the sum is.
- Above `MASKED_RANKS` on a CPU, rows of one adapter run together, in groups of a fixed size that
  are filled up with copies: the cost is that of one rank, and of the groups. On a GPU, where a
  decode step is bound by the number of kernels, the mask stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from verl.models.lora import LoraSpec, adapter_shapes, lora_targets, tensor_name
from verl.models.packed import plain_rounds_alike
from verl.protocol.generate import RolloutError
from verl.workers.rollout.chunks import CHUNK
from verl.workers.rollout.weights import AdapterInbox

# Sum of ranks up to which a mask is the faster way on a CPU; it also takes fewer kernels.
MASKED_RANKS = 64
# Rows of a group; 16 adapters in 64 rows took 1.12 times the time of one, with 8 rows 1.16, with 2
# rows 1.31.
GROUP_ROWS = 4


class RowAdapters:
    """The adapters of one model, added to its layers' outputs by forward hooks; the model's
    parameters keep their names.

    Args:
        model: on its device, without adapters.
        specs: by adapter name.
        slots: rows of a decode step.

    Attributes:
        rounds_alike: a row's change has the same bits beside any number of other rows, and in a
            decode step and a chunk.

    Raises:
        LoraTargetError: an adapter does not fit the model.
    """

    def __init__(self, model: torch.nn.Module, specs: Mapping[str, LoraSpec], slots: int) -> None:
        weight = next(model.parameters())
        self._device = weight.device
        self._dtype = weight.dtype
        total = sum(spec.rank for spec in specs.values())
        # By the adapters that there are, never by the rows of a batch: bits would depend on these.
        way = _Grouped if total > MASKED_RANKS and self._device.type == "cpu" else _Masked
        self._rows: _Masked | _Grouped = way(specs, slots, weight)
        self.rounds_alike = True
        self._layers: dict[str, frozenset[str]] = {}
        shapes: dict[str, dict[str, tuple[int, ...]]] = {}
        hooked_layers: set[str] = set()
        for name, spec in specs.items():
            targets = lora_targets(model, spec)
            shapes[name] = adapter_shapes(targets, spec.rank)
            for layer, linear in targets.items():
                if layer not in hooked_layers:
                    hooked_layers.add(layer)
                    self.rounds_alike &= self._rows.add_layer(
                        layer,
                        shapes[name][tensor_name(layer, "lora_A")][-1],
                        shapes[name][tensor_name(layer, "lora_B")][0],
                    )
                    linear.register_forward_hook(self._hook(layer))
            self._layers[name] = frozenset(targets)
        self._inbox = AdapterInbox(shapes)
        self._of_slots: list[str | None] = [None] * slots
        self._active = False

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
        with torch.no_grad():
            for layer in self._layers[name]:
                self._rows.load(
                    layer,
                    name,
                    received[tensor_name(layer, "lora_A")],
                    received[tensor_name(layer, "lora_B")],
                )
        self._inbox.set_version(name, version)

    def assign(self, slots: Sequence[int], names: Sequence[str | None]) -> None:
        """Set the adapters of slots in which replies start."""
        for slot, name in zip(slots, names, strict=True):
            if self._of_slots[slot] != name:
                self._rows.assign(slot, name)
                self._of_slots[slot] = name

    def use_slots(self, rows: int) -> None:
        """Prepare a forward pass with one token of each of the first slots."""
        self._active = any(name is not None for name in self._of_slots[:rows])
        if self._active:
            self._rows.use_slots(slice(0, rows))

    def use_slot(self, slot: int) -> None:
        """Prepare a forward pass with one row, that of a slot."""
        self._active = self._of_slots[slot] is not None
        if self._active:
            self._rows.use_slots(slice(slot, slot + 1))

    def use_rows(self, names: Sequence[str | None], rows: int, tokens: int) -> None:
        """Prepare a forward pass of `tokens` per row with these adapters in its first rows and none
        in the others.
        """
        self._active = any(name is not None for name in names)
        if self._active:
            self._rows.use_rows([*names, *[None] * (rows - len(names))], tokens)

    def _hook(self, layer: str) -> Callable[[torch.nn.Module, Any, Any], Any]:
        """Return a forward hook that adds the output of each row's own adapter to a layer's output.

        The input is [rows, ..., in], such as [rows, tokens, in], or [rows * tokens, in] row by row;
        of a tuple, the first output is the layer's.
        """

        def add(module: torch.nn.Module, args: Any, output: Any) -> Any:
            if not self._active:
                return None
            change = self._rows.change(layer, args[0])
            return (output[0] + change, *output[1:]) if isinstance(output, tuple) else output + change

        return add


class _Masked:
    """Rows that run through all adapters of a layer, and a mask that keeps the part of their own.

    Args:
        specs: by adapter name.
        slots: rows of a decode step.
        weight: of the model, for device and dtype.
    """

    def __init__(self, specs: Mapping[str, LoraSpec], slots: int, weight: torch.Tensor) -> None:
        self._total = sum(spec.rank for spec in specs.values())
        self._columns: dict[str, slice] = {}
        start = 0
        for name, spec in specs.items():
            self._columns[name] = slice(start, start + spec.rank)
            start += spec.rank
        self._scaling = {name: spec.scaling for name, spec in specs.items()}
        self._weight = weight
        self._down: dict[str, torch.Tensor] = {}
        self._up: dict[str, torch.Tensor] = {}
        self._slots = weight.new_zeros(slots, self._total)
        self._rows = self._slots
        self._tokens = 1

    def add_layer(self, layer: str, inputs: int, outputs: int) -> bool:
        """Make room for the adapters of a layer with so many channels, and return whether rows are
        rounded alike.
        """
        self._down[layer] = self._weight.new_zeros(self._total, inputs)
        self._up[layer] = self._weight.new_zeros(outputs, self._total)
        return plain_rounds_alike(self._down[layer]) and plain_rounds_alike(self._up[layer])

    def load(self, layer: str, name: str, down: torch.Tensor, up: torch.Tensor) -> None:
        """Set the `lora_A` and `lora_B` of an adapter in a layer."""
        self._down[layer][self._columns[name]] = down
        self._up[layer][:, self._columns[name]] = up

    def assign(self, slot: int, name: str | None) -> None:
        """Set the adapter of a slot."""
        self._slots[slot] = self._mask(name)

    def use_slots(self, slots: slice) -> None:
        """Prepare a pass with one row of each of these slots."""
        self._tokens = 1
        self._rows = self._slots[slots]

    def use_rows(self, names: Sequence[str | None], tokens: int) -> None:
        """Prepare a pass of `tokens` per row under these adapters."""
        self._tokens = tokens
        self._rows = torch.stack([self._mask(name) for name in names])

    def change(self, layer: str, states: torch.Tensor) -> torch.Tensor:
        """Return what the adapters add to a layer's output."""
        mask = self._masks(layer, states)
        return F.linear(F.linear(states, self._down[layer]) * mask, self._up[layer])

    def _mask(self, name: str | None) -> torch.Tensor:
        """Return `[total rank]`: the adapter's scaling in its own columns, else 0."""
        mask = self._weight.new_zeros(self._total)
        if name is not None:
            mask[self._columns[name]] = self._scaling[name]
        return mask

    def _masks(self, layer: str, states: torch.Tensor) -> torch.Tensor:
        """Return the masks of the rows in the shape of a layer's input."""
        rows = len(self._rows)
        if rows == 1 or (states.ndim > 2 and len(states) == rows):
            return self._rows.view(rows, *[1] * (states.ndim - 2), -1)
        if states.ndim == 2 and len(states) == rows * self._tokens:
            return self._rows if self._tokens == 1 else self._rows.repeat_interleave(self._tokens, 0)
        raise _unknown_rows(layer, states, rows, self._tokens)


class _Grouped:
    """Rows of one adapter that run together; those of a decode step in groups of `GROUP_ROWS`.

    A group is filled up with copies of a row, so that the shape of a row's products, and with it
    its bits, does not depend on how many rows have its adapter.

    Args:
        specs: by adapter name.
        slots: rows of a decode step.
        weight: of the model, for device and dtype.
    """

    def __init__(self, specs: Mapping[str, LoraSpec], slots: int, weight: torch.Tensor) -> None:
        # The last one is none, whose weights are zero.
        self._number: dict[str | None, int] = {name: number for number, name in enumerate((*specs, None))}
        self._specs = specs
        self._weight = weight
        # A product with one column has other bits alone than in a batch.
        self._rank = max(2, *(spec.rank for spec in specs.values()))
        self._down: dict[str, torch.Tensor] = {}
        self._up: dict[str, torch.Tensor] = {}
        self._of_slots = [self._number[None]] * slots
        self._slots = slice(0, 0)
        self._changed = True
        self._rows = 0
        self._tokens = 1
        self._adapters: slice | torch.Tensor = slice(0, 0)
        self._gather: torch.Tensor | None = None
        self._scatter: torch.Tensor | None = None
        self._zeros = False

    def add_layer(self, layer: str, inputs: int, outputs: int) -> bool:
        """Make room for the adapters of a layer with so many channels, and return whether rows are
        rounded alike.
        """
        self._down[layer] = self._weight.new_zeros(len(self._number), self._rank, inputs)
        self._up[layer] = self._weight.new_zeros(len(self._number), self._rank, outputs)
        return _groups_round_alike(inputs, self._rank, outputs, self._weight.dtype)

    def load(self, layer: str, name: str, down: torch.Tensor, up: torch.Tensor) -> None:
        """Set the `lora_A` and `lora_B` of an adapter in a layer."""
        number = self._number[name]
        self._down[layer][number, : len(down)] = down
        self._up[layer][number, : len(down)] = up.t() * self._specs[name].scaling

    def assign(self, slot: int, name: str | None) -> None:
        """Set the adapter of a slot."""
        self._of_slots[slot] = self._number[name]
        self._changed = True

    def use_slots(self, slots: slice) -> None:
        """Prepare a pass with one row of each of these slots."""
        self._tokens = 1
        if slots != self._slots or self._changed:
            self._slots = slots
            self._changed = False
            self._group(self._of_slots[slots])

    def use_rows(self, names: Sequence[str | None], tokens: int) -> None:
        """Prepare a pass of `tokens` per row under these adapters."""
        self._tokens = tokens
        self._changed = True
        self._rows = len(names)
        self._adapters = _selection([self._number[name] for name in names])
        self._gather = None
        self._scatter = None

    def _group(self, numbers: Sequence[int]) -> None:
        """Set the groups of rows with these adapters; rows without one are in none."""
        self._rows = len(numbers)
        members: dict[int, list[int]] = {}
        for row, number in enumerate(numbers):
            if number != self._number[None]:
                members.setdefault(number, []).append(row)
        adapters: list[int] = []
        gather: list[int] = []
        # Behind the groups stands a row of zeros.
        places = [-1] * len(numbers)
        for number, rows in sorted(members.items()):
            for start in range(0, len(rows), GROUP_ROWS):
                group = rows[start : start + GROUP_ROWS]
                for place, row in enumerate(group, len(gather)):
                    places[row] = place
                gather += group + group[:1] * (GROUP_ROWS - len(group))
                adapters.append(number)
        self._adapters = _selection(adapters)
        self._gather = torch.tensor(gather)
        self._scatter = torch.tensor([len(gather) if place < 0 else place for place in places])
        self._zeros = -1 in places

    def change(self, layer: str, states: torch.Tensor) -> torch.Tensor:
        """Return what the adapters add to a layer's output."""
        inputs = states.shape[-1]
        if len(states) != self._rows and (states.ndim > 2 or len(states) != self._rows * self._tokens):
            raise _unknown_rows(layer, states, self._rows, self._tokens)
        rows = states.reshape(self._rows, -1, inputs)
        down = self._down[layer][self._adapters].transpose(1, 2)
        up = self._up[layer][self._adapters]
        if self._gather is None or self._scatter is None:
            return torch.bmm(torch.bmm(rows, down), up).reshape(*states.shape[:-1], -1)
        groups = rows.index_select(0, self._gather).reshape(len(up), -1, inputs)
        changes = torch.bmm(torch.bmm(groups, down), up).view(len(self._gather), rows.shape[1], -1)
        if self._zeros:
            changes = F.pad(changes, (0, 0, 0, 0, 0, 1))
        return changes.index_select(0, self._scatter).view(*states.shape[:-1], -1)


@cache
@torch.no_grad()
def _groups_round_alike(inputs: int, rank: int, outputs: int, dtype: torch.dtype) -> bool:
    """Return whether a group of a decode step has the bits of the same rows in a chunk."""
    generator = torch.Generator().manual_seed(inputs + outputs)
    states = torch.randn(2, CHUNK, inputs, generator=generator).to(dtype)
    down = torch.randn(2, rank, inputs, generator=generator).to(dtype).transpose(1, 2)
    up = torch.randn(2, rank, outputs, generator=generator).to(dtype)
    chunks = torch.bmm(torch.bmm(states, down), up)
    groups = torch.bmm(torch.bmm(states[:, 5 : 5 + GROUP_ROWS], down), up)
    return torch.equal(groups, chunks[:, 5 : 5 + GROUP_ROWS])


def _selection(numbers: Sequence[int]) -> slice | torch.Tensor:
    """Return an index of these adapters, a slice where one is enough, which copies no weights."""
    first = numbers[0]
    if list(numbers) == list(range(first, first + len(numbers))):
        return slice(first, first + len(numbers))
    return torch.tensor(numbers)


def _unknown_rows(layer: str, states: torch.Tensor, rows: int, tokens: int) -> RolloutError:
    """Return the error of a layer whose rows cannot be told apart."""
    return RolloutError(
        f"the hf engine cannot give every row its own adapter in layer {layer}, whose input "
        f"has the shape {list(states.shape)} for {rows} rows of {tokens} tokens; leave "
        "it out with actor_rollout_ref.model.exclude_modules"
    )
