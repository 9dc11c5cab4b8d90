"""Process-wide switch of the automatic padding of batches that are split."""

from __future__ import annotations

import os


class _Switch(type):
    _auto_padding: bool | None = None

    @property
    def auto_padding(cls) -> bool:
        if cls._auto_padding is not None:
            return cls._auto_padding
        return os.environ.get("VERL_AUTO_PADDING", "").upper() in ("1", "TRUE")

    @auto_padding.setter
    def auto_padding(cls, enabled: bool) -> None:
        assert isinstance(enabled, bool), f"enabled must be a boolean, got {enabled} as {type(enabled)}"
        cls._auto_padding = enabled


class DataProtoConfig(metaclass=_Switch):
    """`DataProtoConfig.auto_padding = True` (or VERL_AUTO_PADDING=1) lets `DataProto.chunk` make
    parts of different sizes, and the dispatch of `verl.compat` pad every batch to the number of
    workers.
    """

    auto_padding_key = "_verl_auto_padding"
