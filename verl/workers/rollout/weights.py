"""New weights for a model in use: buckets of named tensors, checked as a whole before anything is
written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from verl.models.loader import persistent_buffers
from verl.protocol.generate import RolloutError
from verl.workers.weight_transfer.base import ReceivedWeights


def _some(names: set[str]) -> str:
    first_names = sorted(names)[:3]
    return ", ".join(first_names) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def shapes_of(tensors: Mapping[str, torch.Tensor]) -> Mapping[str, Sequence[int]]:
    """Return the shapes of tensors, by name, without receiving those that have not arrived yet."""
    return (
        tensors.shapes
        if isinstance(tensors, ReceivedWeights)
        else {name: tensor.shape for name, tensor in tensors.items()}
    )


def check_bucket(
    bucket_shapes: Mapping[str, Sequence[int]],
    shapes: Mapping[str, Sequence[int]],
    what: str = "weight update",
) -> None:
    """Raise `RolloutError` for names that are not in `shapes`, and for shapes that differ from it."""
    unknown = set(bucket_shapes) - set(shapes)
    if unknown:
        raise RolloutError(f"{what} has unknown names: {_some(unknown)}; the model has {_some(set(shapes))}")
    for name, shape in bucket_shapes.items():
        if tuple(shape) != tuple(shapes[name]):
            raise RolloutError(f"{what} of {name} has shape {tuple(shape)}, expected {tuple(shapes[name])}")


def check_complete(missing: set[str], what: str = "weight update") -> None:
    """Raise `RolloutError` when names of tensors are missing."""
    if missing:
        raise RolloutError(
            f"{what} is incomplete: {_some(missing)} never came; send them, then a final bucket"
        )


class AdapterInbox:
    """Tensors of adapters as they are received, bucket by bucket, and the versions of their current
    weights.

    Args:
        shapes: of every adapter's tensors, by the adapter's name and their names in PEFT's files.
    """

    def __init__(self, shapes: Mapping[str, Mapping[str, Sequence[int]]]) -> None:
        self._shapes = shapes
        self._received: dict[str, dict[str, torch.Tensor]] = {name: {} for name in shapes}
        self._versions: dict[str, int] = {}

    def version(self, name: str) -> int:
        """Return the version of an adapter's weights. Raises `RolloutError` for an unknown adapter
        or one without weights.
        """
        if name not in self._shapes:
            raise RolloutError(
                f"there is no adapter {name!r}; the engine has {sorted(self._shapes) or 'none'}"
            )
        if name not in self._versions:
            raise RolloutError(
                f"adapter {name!r} has no weights yet; send them with update_weights(adapter={name!r})"
            )
        return self._versions[name]

    def take(
        self, name: str, tensors: Mapping[str, torch.Tensor], final: bool
    ) -> dict[str, torch.Tensor] | None:
        """Keep one bucket; with the final one, return all of the adapter's tensors, to be loaded.

        Raises `RolloutError` for an unknown adapter, unknown names, wrong shapes or non-finite
        values (nothing of the bucket is then kept), and at the final bucket when tensors are
        missing.
        """
        if name not in self._shapes:
            raise RolloutError(
                f"there is no adapter {name!r} to update; the engine has {sorted(self._shapes) or 'none'}"
            )
        what = f"update of adapter {name!r}"
        received = self._received[name]
        check_bucket(shapes_of(tensors), self._shapes[name], what)
        for key, value in tensors.items():
            if not bool(torch.isfinite(value).all()):
                raise RolloutError(f"{what}: {key} is not finite, and would reach the rows of other adapters")
        received |= tensors
        if not final:
            return None
        check_complete(set(self._shapes[name]) - set(received), what)
        self._received[name] = {}
        return received

    def set_version(self, name: str, version: int) -> None:
        """Set the version of an adapter's weights, after the tensors that `take` returned are
        loaded.
        """
        self._versions[name] = version


class WeightNames:
    """Tracks which tensors of a model an update has sent: parameters, and the buffers of a
    checkpoint.

    Tied parameters may be sent under any of their names.

    Args:
        model: the model; it may be on the meta device.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._tensors = dict(model.named_parameters(remove_duplicate=False)) | persistent_buffers(model)
        self._shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
        # Of tied tensors the first name stays: a later one would replace it.
        self._first = {id(tensor): name for name, tensor in reversed(self._tensors.items())}
        self._received: set[str] = set()

    def check(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, str]:
        """Record one bucket and return the first name of each of its tensors. Raises `RolloutError`
        as `check_bucket` does.
        """
        check_bucket(shapes, self._shapes)
        names = {name: self._first[id(self._tensors[name])] for name in shapes}
        self._received |= set(names.values())
        return names

    def check_complete(self) -> None:
        """End the update. Raises `RolloutError` when tensors are missing; the update then continues
        with the next bucket.
        """
        check_complete(set(self._first.values()) - self._received)
        self._received.clear()


class WeightLoader:
    """Copies buckets into a model's parameters and buffers in place and tracks whether an update is
    complete.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._tensors = dict(model.named_parameters()) | persistent_buffers(model)
        self._names = WeightNames(model)
        self.open = False

    def load(self, named_tensors: Mapping[str, torch.Tensor], final: bool) -> None:
        """Copy one bucket; the update is open until the final one. Tied parameters may be sent
        under any of their names.

        Raises `RolloutError` for unknown names and wrong shapes (nothing of the bucket is then
        copied), and at the final bucket when parameters are missing (the update then stays open).
        """
        names = self._names.check(shapes_of(named_tensors))
        # Before the copies: after one that fails the weights are of no version.
        self.open = self.open or bool(named_tensors)
        with torch.no_grad():
            for name, tensor in named_tensors.items():
                self._tensors[names[name]].copy_(tensor)
        if final:
            self._names.check_complete()
            self.open = False
