"""Bounds of a ratio in `algorithm.rollout_correction`: a number, or `"lower_upper"`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from verl.trainer.config.names import RS_MODES

if TYPE_CHECKING:
    import torch

# exp(20) is 4.9e8: far beyond any bound, far from overflow.
LOG_RATIO_BOUND = 20.0


@dataclass(frozen=True)
class Band:
    """Bounds of an importance weight: `w = min(r, upper)` without a lower bound (TIS), else `r`
    inside and 0 outside (IcePop).
    """

    upper: float
    lower: float | None = None

    @property
    def floor(self) -> float:
        """The lower bound, or `1 / upper` without one: ratios below count as low."""
        return 1.0 / self.upper if self.lower is None else self.lower

    def weigh(self, ratio: torch.Tensor) -> torch.Tensor:
        """Return the weight of each ratio."""
        if self.lower is None:
            return ratio.clamp(max=self.upper)
        return ratio.where((ratio >= self.lower) & (ratio <= self.upper), 0.0)

    @staticmethod
    def parse(spec: str | float) -> Band:
        """Read `rollout_is_threshold`.

        Raises:
            TypeError: neither a number nor a string.
            ValueError: not a number, not positive, or the lower bound is above the upper.
        """
        name = "rollout_is_threshold"
        if isinstance(spec, bool) or not isinstance(spec, (int, float, str)):
            raise TypeError(f'{name}={spec!r}: expected a number or "lower_upper", not {type(spec).__name__}')
        *lower, upper = _numbers(name, spec)
        band = Band(upper, lower[0] if lower else None)
        _check_order(name, spec, band)
        return band


def parse_modes(rollout_rs: str) -> list[str]:
    """Return the modes of a comma-separated `rollout_rs` without repetition. Raises ValueError for
    none or an unknown one.
    """
    modes = (
        list(dict.fromkeys(m.strip() for m in rollout_rs.split(",") if m.strip()))
        if isinstance(rollout_rs, str)
        else []
    )
    unknown = [m for m in modes if m not in RS_MODES]
    if unknown or not modes:
        problem = f"has Invalid rollout_rs option {unknown[0]!r}" if unknown else "contains no mode"
        raise ValueError(
            f"rollout_rs={rollout_rs!r} {problem}: expected one or more, comma-separated, of "
            f"{', '.join(RS_MODES)}"
        )
    return modes


def parse_bounds(options: list[str], spec: str | float | None) -> dict[str, Band]:
    """Read `rollout_rs_threshold`: bounds for each rejection mode, in order; a single bound is used
    for all.

    k1 modes take `"lower_upper"` bounds of sampler/trainer, `exp(-x)` with the log-ratio `x`
    (weights bound the inverse, trainer/sampler), or an upper bound, whose reciprocal is the lower
    bound; k2 and k3 take an upper bound.

    Raises:
        TypeError: neither a number nor a string.
        ValueError: missing, a wrong number of bounds, not a number, not positive, lower above
            upper, or two bounds for k2 or k3.
    """
    name = "rollout_rs_threshold"
    if spec is None:
        raise ValueError(
            f"{name} must be provided for rollout_rs={','.join(options)!r}: one bound per mode, "
            "comma-separated"
        )
    if isinstance(spec, bool) or not isinstance(spec, (int, float, str)):
        raise TypeError(f"{name}={spec!r}: expected a number or a string, not {type(spec).__name__}")
    parts = [p.strip() for p in str(spec).split(",") if p.strip()]
    if len(parts) not in (1, len(options)):
        raise ValueError(
            f"{name}={spec!r} has {len(parts)} bounds; expected one, or {len(options)} for "
            f"rollout_rs={','.join(options)!r}"
        )
    return {
        option: _bound(name, option, part)
        for option, part in zip(options, parts * (len(options) // len(parts)), strict=True)
    }


def _bound(name: str, option: str, spec: str) -> Band:
    *lower, upper = _numbers(name, spec)
    if option.endswith("k1"):
        band = Band(upper, lower[0] if lower else 1.0 / upper if upper else None)
    elif lower:
        raise ValueError(f"{name}={spec!r} for {option}: expected a single upper bound, without '_'")
    else:
        band = Band(upper)
    _check_order(f"{name} ({option})", spec, band)
    return band


def _numbers(name: str, spec: str | float) -> list[float]:
    try:
        numbers = [float(part) for part in str(spec).strip().split("_")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or not all(math.isfinite(n) for n in numbers):
        raise ValueError(f'{name}={spec!r}: expected a number or "lower_upper", for example 2.0 or "0.5_2.0"')
    return numbers


def _check_order(name: str, spec: str | float, band: Band) -> None:
    if band.upper <= 0 or (band.lower is not None and band.lower <= 0):
        raise ValueError(f"{name}={spec!r}: bounds must be positive")
    if band.lower is not None and band.lower > band.upper:
        raise ValueError(f"{name}={spec!r}: the lower bound {band.lower:g} is above the upper {band.upper:g}")
