"""Collection of the next training step's episodes while the current step is trained (`async_training.mode=one_step_off`).

    step s begins with its samples and nothing in flight:
        start collecting s+1 | credit and updates of s | wait for s+1 | send the weights of s to the engines | checkpoint, validation

From the second step on, samples are one step older than the weights that they train. The weights of s-1 sample the whole of s+1, so a run
is a function of its seed. A checkpoint of step s holds the samples of s+1, because the weights that sampled them no longer exist.
"""

from __future__ import annotations

import json
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file, save_file

from verl.protocol import DataProto
from verl.trainer.ppo.collect.step_samples import StepSamples
from verl.utils.loop_thread import LoopThread, Running

TENSORS, VALUES = "next_step.safetensors", "next_step.json"


@dataclass
class NextStep:
    """The samples of the next step, in flight or complete.

    Attributes:
        loop: event loop of the collector.
        samples: complete samples that no step has taken yet.
        collecting_s: seconds that the last collection took.
    """

    loop: LoopThread
    samples: StepSamples | None = None
    collecting_s: float = 0.0
    _running: Running[StepSamples] | None = field(default=None, init=False)
    _since: float = field(default=0.0, init=False)

    def start(self, collection: Coroutine[Any, Any, StepSamples]) -> None:
        """Start to collect."""
        self._since = time.perf_counter()
        self._running = self.loop.start(collection)
        self._running.when_done(self._ended)

    def wait(self) -> StepSamples | None:
        """Wait for the started collection and return its samples, None if none was started; its errors are raised."""
        running, self._running = self._running, None
        if running is not None:
            self.samples = running.result()
        return self.samples

    def take(self) -> StepSamples | None:
        """Return the complete samples and forget them."""
        samples, self.samples = self.samples, None
        return samples

    def _ended(self) -> None:
        self.collecting_s = time.perf_counter() - self._since


def save_samples(samples: StepSamples | None, folder: Path) -> None:
    """Write samples without their episodes, which are in `trajectories/`: tensors as safetensors, everything else as JSON.

    Samples without a batch, with which no run can go on, are left out: a resumed run collects with the tasks that follow.
    """
    if samples is None or samples.batch is None:
        return
    batch = samples.batch
    save_file({name: tensor.contiguous() for name, tensor in batch.batch.items()}, folder / TENSORS)
    values = {
        "columns": {name: {"dtype": values.dtype.str, "values": values.tolist()} for name, values in batch.non_tensor_batch.items()},
        "metrics": samples.metrics,
        "generated_tokens": samples.generated_tokens,
    }
    (folder / VALUES).write_text(json.dumps(values, default=_plain))


def load_samples(folder: Path) -> StepSamples | None:
    """Return the samples that `save_samples` wrote; None if there are none."""
    if not (folder / VALUES).is_file():
        return None
    values = json.loads((folder / VALUES).read_text())
    arrays = {name: _array(column["dtype"], column["values"]) for name, column in values["columns"].items()}
    batch = DataProto.from_dict(tensors=load_file(folder / TENSORS), non_tensors=arrays)
    return StepSamples(batch, (), values["metrics"], values["generated_tokens"])


def _array(dtype: str, values: Sequence[Any]) -> np.ndarray:
    array = np.empty(len(values), dtype=np.dtype(dtype))
    array[:] = values
    return array


def _plain(value: Any) -> Any:
    """Return a numpy scalar, such as a reward, as the number that it is."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a column of the next step's samples holds {type(value).__name__}, which JSON cannot store")
