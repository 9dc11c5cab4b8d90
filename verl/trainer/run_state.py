"""`run.json`: what a run is and how it stands, for those who look at its folder while it runs or
after it has ended.

A thread writes it every `PERIOD_S` seconds, so that a run that hangs still shows for how long it has
waited for what, and one that was killed has state `running` and an old heartbeat.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from verl.trainer.plan.run import RunPlan
from verl.utils.disk import DiskError, write_whole, writing
from verl.utils.host_memory import limit_of_memory
from verl.utils.tracking.jsonl import back_up

if TYPE_CHECKING:
    from verl.trainer.ppo.progress import Progress
    from verl.trainer.ppo.timeline import OpenSpan

logger = logging.getLogger(__name__)

NAME = "run.json"
FORMAT = 1
PERIOD_S = 10.0
PACKAGES = (
    "verl-mas", "torch", "transformers", "peft", "accelerate", "ray", "vllm", "numpy", "hydra-core",
    "safetensors", "aiohttp",
)  # fmt: skip
# A message may quote replies of a model.
LONGEST_ERROR = 4000
GIT_S = 10.0


class RunState:
    """Writes `run.json` of one start of a run, inside a `with` block: state `running` until its end,
    then `done`, `stopped` (a signal) or `failed` (an error).

    What the run does is read from the objects that `follow` names. An error of the recorder is
    logged once and ends no run; a disk that is full or refuses does.

    Args:
        run_dir: output folder of the run; that of an earlier start is renamed to `run.<n>.json`.
        facts: fields that do not change, in JSON types.

    Attributes:
        path: the file.
        stopped: the run ends because of a signal, without an error.
    """

    def __init__(self, run_dir: Path, facts: Mapping[str, Any]) -> None:
        self.path = run_dir / NAME
        self.stopped = False
        self._facts = dict(facts)
        self._started = time.time()
        self._from_step: int | None = None  # not known until `begin`
        self._state = "running"
        self._error: str | None = None
        self._progress: Progress | None = None
        self._open_spans: Callable[[], Sequence[OpenSpan]] = list
        self._episodes: Callable[[], int] = int
        self._lock = threading.Lock()
        self._due = threading.Event()
        self._over = False
        self._disk_error: DiskError | None = None
        self._warned = False
        self._thread = threading.Thread(target=self._keep, name="run state", daemon=True)

    def __enter__(self) -> RunState:
        """Write the file, and begin to keep it up to date.

        Raises:
            DiskError: the folder or the file cannot be written.
        """
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                back_up(self.path)
        self._write()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Write how the run has ended. Raise DiskError if that fails, unless the run has an error."""
        self._over = True
        self._due.set()
        self._thread.join()
        self.note(kind, error, traceback)
        if error is None:
            self._state = "stopped" if self.stopped else "done"
            self._write()

    def note(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Write the error that ends the run, as `__exit__` does: what is closed after it may take
        long. Does nothing without one.
        """
        if error is None:
            return
        # of the driver's signal handlers, without which a signal is a KeyboardInterrupt
        is_signal = isinstance(error, KeyboardInterrupt)
        is_stop = is_signal or (isinstance(error, SystemExit) and not error.code)
        self._state = "stopped" if is_stop else "failed"
        lines = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]
        self._error = "\n".join(lines)[:LONGEST_ERROR]
        self._try_to_write()

    def follow(
        self, progress: Progress, open_spans: Callable[[], Sequence[OpenSpan]], episodes: Callable[[], int]
    ) -> None:
        """Write from now on what these say.

        Args:
            progress: of the run.
            open_spans: returns the calls in progress.
            episodes: returns the number of episodes in progress.
        """
        self._progress = progress
        self._open_spans = open_spans
        self._episodes = episodes

    def begin(self, from_step: int) -> None:
        """Note the step after which this start of the run goes on; 0 for the beginning."""
        self._from_step = from_step
        self.changed()

    def changed(self) -> None:
        """Let the thread write the file now.

        Raises:
            DiskError: it could not be written before.
        """
        if self._disk_error is not None:
            raise self._disk_error
        self._due.set()

    def _keep(self) -> None:
        while not self._over:
            self._due.wait(PERIOD_S)
            self._due.clear()
            if not self._over:
                self._try_to_write()

    def _try_to_write(self) -> None:
        try:
            self._write()
        except DiskError as error:
            # `changed` raises it in the thread of the run
            self._disk_error = error
        except Exception as error:  # of what it reads, while that changes
            if not self._warned:
                logger.warning("%s was not written: %s: %s", self.path, type(error).__name__, error)
            self._warned = True

    def _write(self) -> None:
        with self._lock, writing(self.path):
            content = json.dumps(self._content(), ensure_ascii=False)
            # a lone surrogate in a message has no UTF-8
            write_whole(self.path, (content + "\n").encode("utf-8", "backslashreplace"))

    def _content(self) -> dict[str, Any]:
        progress = self._progress
        return {
            "format": FORMAT,
            "attempt": {"started": self._started, "from_step": self._from_step},
            **self._facts,
            "state": self._state,
            "error": self._error,
            "step": progress.global_step if progress else self._from_step or 0,
            "total_steps": progress.total_steps if progress else None,
            "heartbeat": time.time(),
            "open_spans": [span._asdict() for span in self._open_spans()],
            "episodes_in_progress": self._episodes(),
        }


def run_state(
    plan: RunPlan, agent_ids: Sequence[str], device: str, run_dir: Path, notes: Sequence[str] = ()
) -> RunState:
    """Return the state of a run that begins.

    Args:
        plan: its agents, policies and worker groups.
        agent_ids: names of the agents in their order.
        device: `trainer.device`.
        run_dir: its output folder.
        notes: lines about its numbers that were logged.
    """
    trained = {agent.agent_id for agent in plan.trained}
    agents = [
        {
            "agent": row.agent_id,
            "policy": row.policy_id,
            "group": getattr(row, "wg_id", None),
            "trained": row.agent_id in trained,
        }
        for row in plan.everyone
    ]
    by_name = {row["agent"]: row for row in agents}
    machine = {
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": limit_of_memory(),
        "gpus": _gpus(device),
    }
    return RunState(
        run_dir,
        {
            "commit": commit(Path(__file__).parents[2]),
            "versions": _versions(),
            "machine": machine,
            "agents": [by_name[agent_id] for agent_id in agent_ids],
            "exactness": list(notes),
        },
    )


def commit(root: Path) -> str | None:
    """Return the commit of a checkout, with `-dirty` if files differ from it; None for a folder that
    is no checkout, such as an installed package.
    """

    def git(*arguments: str) -> str:
        result = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=GIT_S, check=True
        )
        return result.stdout.strip()

    try:
        # a package may be installed below a checkout of something else
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root.resolve():
            return None
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _gpus(device: str) -> int:
    """Return the number of GPUs that the driver sees; 0 for a run on CPUs, which loads no driver."""
    if device == "cpu":
        return 0
    import torch

    return int(torch.cuda.device_count())
