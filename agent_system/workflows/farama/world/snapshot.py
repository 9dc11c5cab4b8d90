"""Copies of running environments, by pickling.

`copy.deepcopy` and plain `pickle` lose state: classes that derive from Gymnasium's `EzPickle` (most of PettingZoo) are rebuilt from their
constructor's arguments, so that a copy is silently a new game. Here their state is kept. Wrappers that look names up in what they wrap
(`__getattr__`) cannot be unpickled by their class's rules: they are asked for a method before they have anything. Here they get their
attributes without being asked.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from typing import Any

import cloudpickle
from gymnasium.utils import EzPickle

from agent_system.errors import AgentSystemError


class _Plain:
    pass


_PLAIN_SIZE = _Plain.__basicsize__


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, EzPickle) and type(obj).__getstate__ is EzPickle.__getstate__:
            return copyreg.__newobj__, (type(obj),), obj.__dict__, None, None, _restore  # type: ignore[attr-defined]
        if _is_wrapper(obj):
            return copyreg.__newobj__, (type(obj),), obj.__dict__, None, None, _restore  # type: ignore[attr-defined]
        return super().reducer_override(obj)


def _is_wrapper(obj: Any) -> bool:
    """Return whether an object looks names up by `__getattr__`, and has no rules of its own for copies, nor slots."""
    cls = type(obj)
    own = [name for base in cls.__mro__[:-1] for name in vars(base)]
    rules = {"__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__", "__slots__", "__new__"}
    plain = cls.__basicsize__ == _PLAIN_SIZE and "__dict__" in dir(cls)
    return plain and "__getattr__" in own and not rules & set(own)


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
        raise _no_copy(name, error) from error
    return buffer.getvalue()


def thaw(frozen: bytes, name: str) -> Any:
    """Return a new copy of a frozen value. For trusted bytes only: they are unpickled.

    Raises:
        AgentSystemError: an object in it can be written and not read.
    """
    try:
        return pickle.loads(frozen)
    except Exception as error:  # any constructor may run
        raise _no_copy(name, error) from error


def _no_copy(name: str, error: Exception) -> AgentSystemError:
    return AgentSystemError(
        f"{name} cannot be copied: {type(error).__name__}: {error}; tree sampling needs copies: use rollout.sampling=parallel, or a world "
        "without such parts"
    )
