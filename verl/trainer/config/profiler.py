"""Keys under `global_profiler` and `*.profiler`: traces that `torch.profiler` makes of chosen
steps, in verl's names.
"""

from dataclasses import dataclass
from typing import Optional

from verl.trainer.config.spec import key, texts

PROFILED = "global_profiler.steps"
CONTENTS = ("cpu", "cuda", "memory", "shapes", "stack")


@dataclass
class ProfilerConfig:
    """`actor_rollout_ref.actor.profiler` and `critic.profiler`: which workers are recorded, and
    what of them.
    """

    enable: bool = key(False, "record the calls of these workers in the steps of global_profiler.steps")
    all_ranks: bool = key(False, "record every rank of a worker group", effect="{}.enable=true")
    ranks: list[int] = key(
        [],
        "ranks that are recorded; empty: the first",
        ge=0,
        effect=("{}.enable=true", "{}.all_ranks=false"),
    )
    contents: list[str] = key(
        [],
        "what is recorded beside the operations on CPU and GPU: memory, shapes, stack (of Python)",
        choices=CONTENTS,
        effect="{}.enable=true",
    )


@dataclass
class GlobalProfilerConfig:
    tool: Optional[str] = key(
        None,
        "profiler of workers with profiler.enable=true: torch; null: none",
        choices=("torch",),
        effect=PROFILED,
        always=True,
    )
    steps: Optional[list[int]] = key(
        None,
        "training steps that are recorded, from 1",
        ge=1,
        effect="global_profiler.tool=torch",
        always=True,
    )
    profile_continuous_steps: bool = key(False, "steps that follow each other are in one trace")
    save_path: Optional[str] = key(
        None, "folder of the traces; default: profile in the folder of the run", check=texts
    )
