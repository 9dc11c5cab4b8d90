"""Collection of the next training step's episodes while the current step is trained
(`async_training.mode=one_step_off`).

    step s begins with its samples and nothing in flight:
        start collecting s+1 | credit and updates of s | wait for s+1 | send the weights of s to the
        engines | checkpoint, validation

From the second step on, samples are one step older than the weights that they train. The weights of
s-1 sample the whole of s+1, so a run is a function of its seed. A checkpoint of step s holds the
samples of s+1, because the weights that sampled them no longer exist.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file, save_file

from verl.protocol import DataProto
from verl.trainer.ppo.asynchronous.source import AsynchronousSource
from verl.trainer.ppo.collect.source import StepCollection
from verl.trainer.ppo.collect.step_samples import StepSamples
from verl.trainer.ppo.interrupt import StopRequest
from verl.utils.loop_thread import Running

TENSORS = "next_step.safetensors"
VALUES = "next_step.json"


@dataclass(eq=False)
class NextStep(StepCollection, AsynchronousSource):
    """Samples of `async_training.mode=one_step_off`."""

    # Complete, and taken by no step yet.
    _samples: StepSamples | None = field(default=None, init=False)
    # The last step, and its samples as they were when it took them.
    _last: tuple[int, StepSamples] | None = field(default=None, init=False)
    _running: Running[StepSamples] | None = field(default=None, init=False)
    _since: float = field(default=0.0, init=False)
    _busy_s: float = field(default=0.0, init=False)

    def take(self, step: int, stop: StopRequest) -> StepSamples:
        """Return the samples that were collected during the last step, or collect those of the
        first one.
        """
        samples = self._samples
        self._samples = None
        start = time.perf_counter()
        samples = samples or super().take(step, stop)
        self._busy_s = time.perf_counter() - start
        self._last = (step, replace(samples, batch=_own_columns(samples.batch)))
        return samples

    def update_begins(self, step: int, last: bool) -> None:
        """Start to collect the next step's samples, if there is a next step."""
        if not last:
            self._since = time.perf_counter()
            self._running = self.loop.start(self._collect(step + 1))
            self._running.when_done(self._ended)

    def update_ended(self, step: int, policies: Collection[str]) -> None:
        """Wait for the next step's samples; errors of the collector are raised."""
        running = self._running
        self._running = None
        if running is not None:
            self._samples = running.result()
            self.on_collected(self._samples, step + 1)

    def metrics(self, step: int, step_s: float) -> dict[str, float]:
        """Return the share of the step in which no episode was in progress."""
        return {"rollouter/idle_ratio": max(1 - self._busy_s / step_s, 0.0)}

    @property
    def has_next(self) -> bool:
        """As `SampleSource.has_next`."""
        return self._samples is not None

    def rewind(self, step: int) -> None:
        """As `SampleSource.rewind`: a later step keeps its samples; a collection in progress ends,
        and its tasks count as not drawn.
        """
        running = self._running
        self._running = None
        if running is not None:
            running.cancel()
            # An error of work that is given up is no error of the run.
            with suppress(Exception, CancelledError):
                running.result()
        if self._last is not None and self._last[0] > step:
            self._samples = self._last[1]
        # The tasks of samples that are kept count as drawn.
        super().rewind(step if self._samples is None else step + 1)

    def save(self, folder: Path) -> None:
        """Write the next step's samples."""
        save_samples(self._samples, folder)

    def load(self, folder: Path) -> None:
        """Read the next step's samples."""
        self._samples = load_samples(folder)

    def _ended(self) -> None:
        self._busy_s += time.perf_counter() - self._since


def _own_columns(batch: DataProto | None) -> DataProto | None:
    """Return a batch to which credit assignment adds no columns."""
    return None if batch is None else batch.select(list(batch.batch.keys()), list(batch.non_tensor_batch))


def save_samples(samples: StepSamples | None, folder: Path) -> None:
    """Write samples without their episodes, which are in `trajectories/`: tensors as safetensors,
    everything else as JSON.

    Samples without a batch, with which no run can go on, are left out: a resumed run collects with
    the tasks that follow.
    """
    if samples is None or samples.batch is None:
        return
    batch = samples.batch
    save_file({name: tensor.contiguous() for name, tensor in batch.batch.items()}, folder / TENSORS)
    values = {
        "columns": {
            name: {"dtype": values.dtype.str, "values": values.tolist()}
            for name, values in batch.non_tensor_batch.items()
        },
        "metrics": samples.metrics,
        "generated_tokens": samples.generated_tokens,
        "left_out": dict(samples.left_out),
    }
    (folder / VALUES).write_text(json.dumps(values, default=_plain))


def load_samples(folder: Path) -> StepSamples | None:
    """Return the samples that `save_samples` wrote; None if there are none."""
    if not (folder / VALUES).is_file():
        return None
    values = json.loads((folder / VALUES).read_text())
    arrays = {name: _array(column["dtype"], column["values"]) for name, column in values["columns"].items()}
    batch = DataProto.from_dict(tensors=load_file(folder / TENSORS), non_tensors=arrays)
    # A checkpoint of an earlier version has no causes.
    left_out = values.get("left_out", {})
    return StepSamples(batch, (), values["metrics"], values["generated_tokens"], left_out=left_out)


def _array(dtype: str, values: Sequence[Any]) -> np.ndarray:
    array = np.empty(len(values), dtype=np.dtype(dtype))
    array[:] = values
    return array


def _plain(value: Any) -> Any:
    """Return a numpy scalar, such as a reward, as the number that it is."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(
        f"a column of the next step's samples holds {type(value).__name__}, which JSON cannot store"
    )
