"""Fingerprints of model files, which detect another model under the same name without reading all
of its files, and of configurations.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_WHOLE = 16 << 20
_BLOCKS = 256
_BLOCK = 64 << 10
_WEIGHTS = ("*.safetensors", "*.bin")
NOT_STRUCTURE = ("dtype", "torch_dtype", "architectures", "transformers_version")


def model_fingerprint(path: str) -> str | None:
    """Return the sha256 over names, sizes and contents of a model's `config.json` and weight files;
    None for a hub id not in the cache.

    Of a file over 16 MiB, 256 blocks of 64 KiB spread from its first byte to its last are read,
    because training changes every tensor.
    """
    folder = _folder(path)
    if folder is None:
        return None
    digest = hashlib.sha256()
    for file in [folder / "config.json", *sorted(f for pattern in _WEIGHTS for f in folder.glob(pattern))]:
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}\0".encode())
        with open(file, "rb") as stream:
            if size <= _WHOLE:
                digest.update(stream.read())
                continue
            for i in range(_BLOCKS):
                stream.seek(i * (size - _BLOCK) // (_BLOCKS - 1))
                digest.update(stream.read(_BLOCK))
    return digest.hexdigest()


def _folder(path: str) -> Path | None:
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(path, "config.json")
    return Path(config).parent if isinstance(config, str) else None


def configuration_key(config: Any) -> str:
    """Return a text that is the same for configurations of one structure, whatever their dtypes and,
    but for those with code of their own, their paths.
    """
    own_code = config._name_or_path if getattr(config, "auto_map", None) else ""
    structure = json.dumps(_structure(config.to_dict()), default=str, sort_keys=True)
    return f"{type(config).__module__}.{type(config).__qualname__} {own_code} {structure}"


def _structure(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            str(k): _structure(v)
            for k, v in value.items()
            if not str(k).startswith("_") and k not in NOT_STRUCTURE
        }
    return value


def once_per_configuration(check: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Make a function of a model's configuration run once in a process for configurations of one
    structure; errors are not kept.

    Further arguments are compared by their `repr`; results must not be changed by the caller.
    """
    results: dict[tuple[str, str], T] = {}

    @functools.wraps(check)
    def call(config: Any, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (configuration_key(config), repr((args, sorted(kwargs.items()))))
        if key not in results:
            results[key] = check(config, *args, **kwargs)
        return results[key]

    return call
