"""A call of the trainer with the arguments of verl's trainer is told what to pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from verl.trainer.plan.run import RunPlan

P = ParamSpec("P")
Self = TypeVar("Self")


def refuse_verl_arguments(init: Callable[Concatenate[Self, P], None]) -> Callable[Concatenate[Self, P], None]:
    """Raise TypeError naming the replacements for a call with arguments of verl's `RayPPOTrainer`."""
    accepted = inspect.signature(init).parameters

    @wraps(init)
    def checked(self: Self, *args: P.args, **kwargs: P.kwargs) -> None:
        unknown = [name for name in kwargs if name not in accepted]
        positional: tuple[Any, ...] = args
        # verl's second argument is the tokenizer, ours the plan
        in_order = len(positional) > 1 and not isinstance(positional[1], RunPlan)
        if unknown or in_order:
            # A run passes neither, and does not load the table of verl's arguments.
            from verl.compat.trainer import POSITIONAL, advice_on_arguments

            advice = advice_on_arguments(unknown) or (advice_on_arguments(POSITIONAL) if in_order else "")
            if advice:
                raise TypeError(advice)
        init(self, *args, **kwargs)

    return checked
