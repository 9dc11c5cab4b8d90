"""Keys under `global_profiler` and `*.profiler`: traces that `torch.profiler` makes of chosen
steps, in verl's names.
"""

from dataclasses import dataclass
from typing import Any, Optional, Union

from verl.trainer.config.spec import key, texts

PROFILED = "global_profiler.steps"
CONTENTS = ("cpu", "cuda", "memory", "shapes", "stack")
ALL = "all"


def _all_or_ranks(value: str | list[int]) -> str | list[int]:
    if isinstance(value, str) and value != ALL:
        raise ValueError("expected all, or a list of ranks, such as [0]")
    return value


@dataclass
class ProfilerConfig:
    """`actor_rollout_ref.actor.profiler` and `critic.profiler`: which workers are recorded, and
    what of them.
    """

    ranks: Any = key(
        [],
        "ranks of these workers whose calls are recorded in global_profiler.steps, such as [0], or all; "
        "empty: none",
        type=Union[str, list[int]],
        ge=0,
        check=_all_or_ranks,
    )
    contents: list[str] = key(
        [],
        "what is recorded beside the operations on CPU and GPU: memory, shapes, stack (of Python)",
        choices=CONTENTS,
        effect="{}.ranks",
    )


@dataclass
class GlobalProfilerConfig:
    steps: Optional[list[Any]] = key(
        None,
        "training steps of which torch.profiler records the workers with profiler.ranks, from 1, each in "
        "a trace of its own; [[2,3],5] has 2 and 3 in one; null: none",
        type=Optional[list[Union[int, list[int]]]],
        ge=1,
        always=True,
    )
    save_path: Optional[str] = key(
        None, "folder of the traces; default: profile in the folder of the run", check=texts
    )
