"""Copies of running environments, by pickling.

`copy.deepcopy` and plain `pickle` lose state: classes that derive from Gymnasium's `EzPickle` (most
of PettingZoo) are rebuilt from their constructor's arguments, so that a copy is silently a new
game. Here their state is kept. Wrappers that look names up in what they wrap (`__getattr__`) cannot
be unpickled by their class's rules: they are asked for a method before they have anything. Here
they get their attributes without being asked. An object that cannot be pickled, as a handle of a
simulator, is copied within the process by its own `__deepcopy__`.
"""

from __future__ import annotations

import copy
import copyreg
import enum
import gc
import io
import logging
import pickle
import types
from collections.abc import Iterable
from typing import Any

import cloudpickle
from gymnasium.utils import EzPickle

from agent_system.errors import AgentSystemError


class _Plain:
    pass


# Shared by all copies, as by the original.
_STATELESS = (
    type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType, enum.Enum,
    logging.Logger,
)  # fmt: skip
_PLAIN_SIZE = _Plain.__basicsize__


class _Pickler(cloudpickle.Pickler):
    """Pickler of games.

    Args:
        buffer: receives the bytes.
        parts: receives the objects with their own `__deepcopy__`, which the bytes then refer to;
            None pickles them too.
    """

    def __init__(self, buffer: io.BytesIO, parts: list[Any] | None = None) -> None:
        super().__init__(buffer)
        self._parts = parts
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        """Return the number of an object among the parts; None for one that is pickled."""
        if self._parts is None or isinstance(obj, type) or not hasattr(type(obj), "__deepcopy__"):
            return None
        if id(obj) not in self._numbers:
            self._numbers[id(obj)] = len(self._parts)
            self._parts.append(obj)
        return self._numbers[id(obj)]

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, EzPickle) and type(obj).__getstate__ is EzPickle.__getstate__:
            return copyreg.__newobj__, (type(obj),), obj.__dict__, None, None, _restore  # type: ignore[attr-defined]
        if _is_wrapper(obj):
            return copyreg.__newobj__, (type(obj),), obj.__dict__, None, None, _restore  # type: ignore[attr-defined]
        return super().reducer_override(obj)


class _Unpickler(pickle.Unpickler):
    """Reader of bytes of this process alone, with a copy of each part."""

    def __init__(self, frozen: bytes, parts: list[Any]) -> None:
        super().__init__(io.BytesIO(frozen))
        self._copies = copy.deepcopy(parts)

    def persistent_load(self, pid: int) -> Any:
        """Return the copy of a part."""
        return self._copies[pid]


def _is_wrapper(obj: Any) -> bool:
    """Return whether an object looks names up by `__getattr__`, and has no rules of its own for
    copies, nor slots.
    """
    cls = type(obj)
    attributes = [name for base in cls.__mro__[:-1] for name in vars(base)]
    rules = {
        "__reduce__",
        "__reduce_ex__",
        "__getstate__",
        "__setstate__",
        "__getnewargs__",
        "__getnewargs_ex__",
        "__slots__",
        "__new__",
    }
    plain = cls.__basicsize__ == _PLAIN_SIZE and "__dict__" in dir(cls)
    return plain and "__getattr__" in attributes and not rules & set(attributes)


def _restore(obj: Any, state: dict[str, Any]) -> None:
    obj.__dict__.update(state)


def freeze(value: Any, name: str) -> bytes:
    """Return `value` as bytes; `name` describes it in messages.

    Raises:
        AgentSystemError: `value` holds an object that cannot be copied, such as a window or a
            handle of a simulator.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(value)
    except (
        pickle.PicklingError,
        TypeError,
        AttributeError,
        ValueError,
        NotImplementedError,
        RecursionError,
    ) as error:
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


def duplicate(value: Any, name: str) -> Any:
    """Return a copy of `value`: by pickling, or where that fails with the own `__deepcopy__` of the
    objects that have one.

    Raises:
        AgentSystemError: `value` holds an object that cannot be copied either way.
    """
    try:
        return thaw(freeze(value, name), name)
    except AgentSystemError:
        parts: list[Any] = []
        buffer = io.BytesIO()
        try:
            _Pickler(buffer, parts).dump(value)
            if parts and not _shared(value, parts):
                return _Unpickler(buffer.getvalue(), parts).load()
        except Exception:
            # any method of a game may run; the first error says what is wrong
            pass
        raise


def _shared(value: Any, parts: list[Any]) -> bool:
    """Return whether a part that is copied by itself refers to an object of the rest, as to its
    game: the copy would go on with another one.
    """
    inside = _reachable(parts, ())
    return bool((inside & _reachable([value], parts)) - {id(part) for part in parts})


def _reachable(start: list[Any], stop: Iterable[Any]) -> set[int]:
    """Return the ids of the objects with a state that are reached from some, not through those of
    `stop`.
    """
    left = list(start)
    ended = {id(one) for one in stop}
    visited_ids: set[int] = set()
    stateful_ids: set[int] = set()
    while left:
        one = left.pop()
        if id(one) in visited_ids or id(one) in ended or isinstance(one, _STATELESS):
            continue
        visited_ids.add(id(one))
        if isinstance(one, (list, dict, set, bytearray)) or hasattr(one, "__dict__"):
            stateful_ids.add(id(one))
        left += gc.get_referents(one)
    return stateful_ids


def _no_copy(name: str, error: Exception) -> AgentSystemError:
    return AgentSystemError(
        f"{name} cannot be copied: {type(error).__name__}: {error}; tree sampling needs copies: "
        "use rollout.sampling=parallel, or a world without such parts"
    )
