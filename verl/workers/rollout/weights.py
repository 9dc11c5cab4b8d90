"""New weights for a model in use: buckets of named tensors, checked as a whole before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from verl.protocol.generate import RolloutError


def _some(names: set[str]) -> str:
    shown = sorted(names)[:3]
    return ", ".join(shown) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def check_bucket(named_tensors: Mapping[str, torch.Tensor], shapes: Mapping[str, Sequence[int]], what: str = "weight update") -> None:
    """Raise `RolloutError` for names that `shapes` has not, and for tensors of another shape."""
    unknown = set(named_tensors) - set(shapes)
    if unknown:
        raise RolloutError(f"{what} has unknown names: {_some(unknown)}; the model has {_some(set(shapes))}")
    for name, tensor in named_tensors.items():
        if tuple(tensor.shape) != tuple(shapes[name]):
            raise RolloutError(f"{what} of {name} has shape {tuple(tensor.shape)}, expected {tuple(shapes[name])}")


def check_complete(missing: set[str], what: str = "weight update") -> None:
    """Raise `RolloutError` when there are names of tensors that never came."""
    if missing:
        raise RolloutError(f"{what} is incomplete: {_some(missing)} never came; send them, then a final bucket")


class WeightLoader:
    """Copies buckets into a model's parameters in place and knows whether an update is complete."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        self._received: set[int] = set()
        self.open = False

    def load(self, named_tensors: Mapping[str, torch.Tensor], final: bool) -> None:
        """Copy one bucket; the update is open until the final one. Tied parameters may come under any of their names.

        Raises `RolloutError` for unknown names and wrong shapes (nothing of the bucket is then copied), and at the final bucket
        when parameters never came (the update then stays open).
        """
        check_bucket(named_tensors, {name: parameter.shape for name, parameter in self._parameters.items()})
        with torch.no_grad():
            for name, tensor in named_tensors.items():
                parameter = self._parameters[name]
                parameter.copy_(tensor)
                self._received.add(id(parameter))
        self.open = self.open or bool(named_tensors)
        if final:
            check_complete({name for name, parameter in self._parameters.items() if id(parameter) not in self._received})
            self._received.clear()
            self.open = False
