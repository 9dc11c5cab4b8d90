"""Batches on disk without pickled objects: only tensors and plain values are written and read
(`torch.load(weights_only=True)`).

A malicious file cannot run code.
"""

from __future__ import annotations

import datetime
import os
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

_PLAIN = (str, int, float, bool, bytes, type(None))
# Types that a file may name; no other name is ever looked up or called.
_SEQUENCES: dict[str, type] = {kind.__name__: kind for kind in (list, tuple, set, frozenset)}
_FACTORIES: dict[str, type] = {
    kind.__name__: kind for kind in (list, tuple, set, frozenset, dict, str, int, float, bool, bytes)
}
_DTYPES: dict[str, torch.dtype] = {
    str(kind): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)
}
_DATES: dict[str, type[datetime.date]] = {kind.__name__: kind for kind in (datetime.date, datetime.datetime)}


def encode_plain(value: Any, where: str) -> Any:
    """Return nested data as tagged tuples of plain values and tensors.

    Raises TypeError naming `where` for a value that is not a number, text, container, array or
    tensor.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            kind = "jagged" if value.layout == torch.jagged else "strided"
            return (kind, [encode_plain(part, where) for part in value.unbind()])
        return ("tensor", value.detach().cpu().clone(memory_format=torch.contiguous_format))
    if isinstance(value, np.ndarray):
        return _encode_array(value, where)
    if isinstance(value, np.generic) and value.dtype.kind in "biufcUS":
        return ("scalar", value.dtype.str, value.item())
    if isinstance(value, torch.Size):
        return ("tuple", list(value))
    if type(value) in _SEQUENCES.values():
        return (type(value).__name__, [encode_plain(item, where) for item in value])
    if type(value) in (dict, OrderedDict, defaultdict):
        return _encode_dict(value, where)
    if isinstance(value, torch.dtype):
        return ("dtype", str(value))
    if isinstance(value, torch.device):
        return ("device", str(value))
    if type(value) is slice:
        return ("slice", [encode_plain(bound, where) for bound in (value.start, value.stop, value.step)])
    if type(value) in _DATES.values() and getattr(value, "tzinfo", None) in (None, datetime.UTC):
        return ("date", type(value).__name__, value.isoformat())
    raise TypeError(
        f"{where} holds a {type(value).__module__}.{type(value).__qualname__}, which cannot be "
        "saved; convert it to numbers, text, lists, dicts, arrays or tensors, or pop it before "
        "saving"
    )


def _encode_dict(value: dict[Any, Any], where: str) -> tuple[Any, ...]:
    entries = [(encode_plain(k, where), encode_plain(v, f"{where}[{k!r}]")) for k, v in value.items()]
    if not isinstance(value, defaultdict):
        return ("ordered" if isinstance(value, OrderedDict) else "dict", entries)
    factory = value.default_factory
    if factory is not None and factory not in _FACTORIES.values():
        raise TypeError(
            f"{where} is a defaultdict of {factory!r}, which cannot be saved; save dict(...) of it"
        )
    return ("default", None if factory is None else factory.__name__, entries)  # type: ignore[attr-defined]


def _encode_array(array: np.ndarray, where: str) -> tuple[Any, ...]:
    if array.dtype.kind in "biufcUSMm":
        contiguous = np.ascontiguousarray(array)
        return (
            "array",
            array.dtype.str,
            list(array.shape),
            torch.frombuffer(bytearray(contiguous.tobytes()) or bytearray(1), dtype=torch.uint8),
        )
    if array.dtype != object:
        raise TypeError(
            f"{where} is an array of dtype {array.dtype}, which cannot be saved; use numbers, text "
            "or object entries"
        )
    return ("objects", list(array.shape), [encode_plain(item, where) for item in array.flat])


def decode_plain(value: Any) -> Any:
    """Return the data encoded by `encode_plain`. Raise ValueError for a tag that it never writes."""
    if type(value) in _PLAIN:
        return value
    if not isinstance(value, tuple) or not value:
        raise ValueError(f"not a saved batch: found a bare {type(value).__name__}")
    tag, *rest = value
    if tag == "tensor":
        return rest[0]
    if tag in ("jagged", "strided"):
        parts = [decode_plain(part) for part in rest[0]]
        return torch.nested.as_nested_tensor(parts, layout=torch.jagged if tag == "jagged" else torch.strided)
    if tag == "array":
        dtype = np.dtype(rest[0])
        shape = tuple(rest[1])
        buffer = rest[2].numpy()
        if dtype.hasobject:
            raise ValueError("not a saved batch: an array of raw bytes claims to hold objects")
        count = int(np.prod(shape))
        return np.frombuffer(buffer.tobytes(), dtype=dtype, count=count).reshape(shape).copy()
    if tag == "objects":
        array = np.empty(len(rest[1]), dtype=object)
        for i, item in enumerate(rest[1]):
            array[i] = decode_plain(item)
        return array.reshape(tuple(rest[0]))
    if tag == "scalar":
        return np.dtype(rest[0]).type(rest[1])
    if tag in _SEQUENCES:
        return _SEQUENCES[tag](decode_plain(item) for item in rest[0])
    if tag in ("dict", "ordered", "default"):
        entries = ((decode_plain(k), decode_plain(v)) for k, v in rest[-1])
        if tag == "default":
            return defaultdict(None if rest[0] is None else _named(_FACTORIES, rest[0]), entries)
        return OrderedDict(entries) if tag == "ordered" else dict(entries)
    if tag == "dtype":
        return _named(_DTYPES, rest[0])
    if tag == "device":
        return _device(rest[0])
    if tag == "slice":
        return slice(*(decode_plain(bound) for bound in rest[0]))
    if tag == "date":
        return _named(_DATES, rest[0]).fromisoformat(rest[1])
    raise ValueError(f"not a saved batch: unknown tag {tag!r}")


def _device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"not a saved batch: {name!r} is not a device") from error


def _named(registry: dict[str, Any], name: str) -> Any:
    if name not in registry:
        raise ValueError(f"not a saved batch: {name!r} is not one of {sorted(registry)}")
    return registry[name]


def save_plain(value: Any, path: str | os.PathLike[str], where: str) -> None:
    """Write nested plain data to a temporary file that is then renamed, so that a full disk leaves
    no incomplete file.
    """
    target = Path(path)
    temporary = target.with_name(f"{target.name}.tmp{os.getpid()}")
    try:
        torch.save(encode_plain(value, where), temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def load_plain(path: str | os.PathLike[str]) -> Any:
    """Return the data of a file written by `save_plain`; a file with other Python objects is
    rejected before they are built.
    """
    return decode_plain(torch.load(path, map_location="cpu", weights_only=True))
