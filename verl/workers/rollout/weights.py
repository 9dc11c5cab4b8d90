"""New weights for a model in use: buckets of named tensors, checked as a whole before anything is written."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from verl.protocol.generate import RolloutError


def _some(names: set[str]) -> str:
    shown = sorted(names)[:3]
    return ", ".join(shown) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


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
        unknown = set(named_tensors) - set(self._parameters)
        if unknown:
            raise RolloutError(f"weight update has unknown names: {_some(unknown)}; the model has {_some(set(self._parameters))}")
        for name, tensor in named_tensors.items():
            expected = self._parameters[name].shape
            if tensor.shape != expected:
                raise RolloutError(f"weight update of {name} has shape {tuple(tensor.shape)}, expected {tuple(expected)}")
        with torch.no_grad():
            for name, tensor in named_tensors.items():
                parameter = self._parameters[name]
                parameter.copy_(tensor)
                self._received.add(id(parameter))
        self.open = self.open or bool(named_tensors)
        if final:
            missing = {name for name, parameter in self._parameters.items() if id(parameter) not in self._received}
            if missing:
                raise RolloutError(f"weight update is incomplete: {_some(missing)} never came; send them, then a final bucket")
            self._received.clear()
            self.open = False
