"""Conversion of observations of Gymnasium spaces to text, and of text to actions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agent_system.errors import AgentSystemError

try:
    from gymnasium import spaces
except ModuleNotFoundError as error:
    raise AgentSystemError(
        f"the farama workflow needs the package gymnasium ({error}); install the extra: pip "
        "install 'verl-mas[farama]'"
    ) from error

LONGEST_ACTION = 2000
MOST_NUMBERS = 1024
MOST_LISTED = 50
_WHOLE = re.compile(r"[+-]?\d{1,18}")


class IllegalActionError(ValueError):
    """A text that denotes no action of the space."""


def text_of(value: Any) -> str:
    """Return an observation as text: arrays row by row, mappings line by line, floats with four
    significant digits.

    Raises:
        AgentSystemError: an array of more than 1,024 numbers, such as an image.
    """
    if isinstance(value, np.ndarray):
        if value.size > MOST_NUMBERS:
            raise AgentSystemError(
                f"an observation of shape {value.shape} holds {value.size} numbers, too many to be "
                "read as text; subclass FaramaEnv and override describe()"
            )
        return _array_text(value)
    if isinstance(value, Mapping):
        return "\n".join(f"{key}: {text_of(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(text_of(part) for part in value)
    if isinstance(value, float | np.floating):
        return f"{float(value):.4g}"
    return str(int(value)) if isinstance(value, np.integer | np.bool_) else str(value)


def _array_text(array: np.ndarray) -> str:
    if array.ndim == 0:
        return text_of(array.item())
    if array.ndim == 1:
        return " ".join(text_of(number) for number in array)
    return ("\n" * (array.ndim - 1)).join(_array_text(part) for part in array)


def legal_numbers(space: spaces.Discrete, mask: Any = None) -> list[int]:
    """Return the actions of a Discrete space that are legal by `mask` ([n], 1 is legal; None allows
    all).
    """
    return [int(space.start) + i for i in range(int(space.n)) if mask is None or mask[i]]


def actions_text(space: Any, names: Sequence[str] = (), mask: Any = None) -> str:
    """Return a short description of the actions in `space`.

    Args:
        space: the action space.
        names: names of a Discrete space's actions, in order.
        mask: see `legal_numbers`.

    Raises:
        AgentSystemError: `names` does not match the space, or this type of space is not supported.
    """
    if names and not (isinstance(space, spaces.Discrete) and space.n == len(names)):
        raise AgentSystemError(f"env.params.actions has {len(names)} names, but the action space is {space}")
    if isinstance(space, spaces.Discrete):
        if mask is None and not names and space.n > MOST_LISTED:
            return f"a whole number from {space.start} to {space.start + space.n - 1}"
        return ", ".join(names[n - int(space.start)] if names else str(n) for n in legal_numbers(space, mask))
    if isinstance(space, spaces.MultiDiscrete):
        ends = zip(space.start.flat, (space.start + space.nvec - 1).flat, strict=True)
        return "a list of whole numbers, [" + ", ".join(f"{low} to {high}" for low, high in ends) + "]"
    if isinstance(space, spaces.MultiBinary):
        return f"a list of {int(np.prod(space.shape))} numbers, each 0 or 1"
    if isinstance(space, spaces.Box):
        kind = "whole numbers" if space.dtype.kind in "iu" else "numbers"
        ends = zip(space.low.flat, space.high.flat, strict=True)
        return (
            f"a list of {kind}, ["
            + ", ".join(f"{text_of(low)} to {text_of(high)}" for low, high in ends)
            + "]"
        )
    if isinstance(space, spaces.Text):
        return f"a text of {space.min_length} to {space.max_length} characters"
    if isinstance(space, spaces.Dict):
        return "a JSON object: " + "; ".join(
            f'"{key}": {actions_text(part)}' for key, part in space.spaces.items()
        )
    if isinstance(space, spaces.Tuple):
        return "a JSON list: " + "; then ".join(actions_text(part) for part in space.spaces)
    raise AgentSystemError(
        f"actions of the space {space} have no text; subclass FaramaEnv and override choices() and parse()"
    )


def read_action(space: Any, text: str, names: Sequence[str] = ()) -> Any:
    """Return the action of `space` that `text` denotes.

    Discrete: one of `names`, in any case, or the number when there are no names. Text: the text.
    Other spaces: JSON.

    Raises:
        IllegalActionError: `text` denotes no action.
    """
    text = text.strip()
    if len(text) > LONGEST_ACTION:
        raise IllegalActionError(f"found {len(text)} characters, expected at most {LONGEST_ACTION}")
    action: Any
    if isinstance(space, spaces.Discrete):
        action = _discrete(space, text, names)
    elif isinstance(space, spaces.Text):
        action = text
    else:
        action = _convert(space, _json(text))
    if not space.contains(action):
        raise IllegalActionError(f"{text!r} is not in {space}")
    return action


def _discrete(space: spaces.Discrete, text: str, names: Sequence[str]) -> int:
    actions_by_name = {name.strip().casefold(): int(space.start) + i for i, name in enumerate(names)}
    if text.casefold() in actions_by_name:
        return actions_by_name[text.casefold()]
    # where actions have names, a number would be a second name of each
    if names or not _WHOLE.fullmatch(text):
        raise IllegalActionError(f"{text!r} is not an action")
    return int(text)


def _json(text: str) -> Any:
    # a list may come without its brackets: `0.5, -1`
    for candidate in (text, f"[{text}]"):
        try:
            return json.loads(candidate)
        except (ValueError, RecursionError):
            continue
    raise IllegalActionError(f"{text!r} is not JSON")


def _convert(space: Any, value: Any) -> Any:
    """Return a parsed JSON value converted to the types of `space`."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or value.keys() != space.spaces.keys():
            raise IllegalActionError(f"{value!r} must have the keys {', '.join(space.spaces)}")
        return {key: _convert(part, value[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, list) or len(value) != len(space.spaces):
            raise IllegalActionError(f"{value!r} must be a list of {len(space.spaces)}")
        return tuple(_convert(part, one) for part, one in zip(space.spaces, value, strict=True))
    if isinstance(space, spaces.Discrete | spaces.Text):
        return value
    return _array(space, value)


def _array(space: Any, value: Any) -> np.ndarray:
    """Return numbers as an array with the shape and dtype of `space`. Raises IllegalActionError for
    numbers outside of the dtype.
    """
    try:
        numbers = np.asarray(value, dtype=np.float64).reshape(space.shape)
        # numbers outside of the dtype are refused below, without a warning of NumPy's
        with np.errstate(all="ignore"):
            array = numbers.astype(space.dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise IllegalActionError(f"{value!r} does not fit {space}: {error}") from error
    if not np.isfinite(array).all() or (array.dtype.kind in "iub" and not np.array_equal(array, numbers)):
        raise IllegalActionError(f"{value!r} does not fit {space}")
    return array
