"""Copies of running environments, by pickling.

`copy.deepcopy` and plain `pickle` lose state: classes that derive from Gymnasium's `EzPickle` (most of PettingZoo) are rebuilt from their
constructor's arguments, so that a copy is silently a new game. Here their state is kept.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from typing import Any

import cloudpickle
from gymnasium.utils import EzPickle

from agent_system.errors import AgentSystemError


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, EzPickle) and type(obj).__getstate__ is EzPickle.__getstate__:
            return copyreg.__newobj__, (type(obj),), obj.__dict__, None, None, _restore  # type: ignore[attr-defined]
        return super().reducer_override(obj)


def _restore(obj: Any, state: dict[str, Any]) -> None:
    obj.__dict__.update(state)


def freeze(value: Any, name: str) -> bytes:
    """Return `value` as bytes; `name` describes it in messages.

    Raises:
        AgentSystemError: `value` holds an object that cannot be copied, such as a window or a handle of a simulator.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, NotImplementedError, RecursionError) as error:
        raise AgentSystemError(
            f"{name} cannot be copied: {error}; tree sampling needs copies: use rollout.sampling=parallel, or a world without such parts"
        ) from error
    return buffer.getvalue()


def thaw(frozen: bytes) -> Any:
    """Return a new copy of a frozen value. For trusted bytes only: they are unpickled."""
    return pickle.loads(frozen)
