"""Sandboxes at every level that this machine offers, and what must hold after any program, however
hostile.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import cache

from agent_system.sandbox import RunResult, SandboxError
from agent_system.sandbox.jail import tree
from agent_system.sandbox.jail.streams import NAMES
from agent_system.sandbox.levels import LEVELS, rank
from agent_system.sandbox.local import LocalSandbox
from verl.trainer.config.sandbox import SandboxConfig, SandboxLimitsConfig

LIMITS = SandboxLimitsConfig(cpu_s=3, wall_s=6, memory_mb=128, processes=12, disk_mb=8, output_kb=64)
# An honest program ends by itself, however busy the machine.
PATIENT = SandboxLimitsConfig(**{**vars(LIMITS), "cpu_s": 20, "wall_s": 60})
# A worker that waits for a job is a watcher with a warden and an init below it.
IDLE = 2


@cache
def sandbox_at(level: str) -> LocalSandbox | str:
    """The sandbox of a level for the whole session, or why there is none."""
    try:
        return LocalSandbox(SandboxConfig(min_level="rlimits", workers=2, limits=LIMITS), [level])
    except SandboxError as error:
        return str(error)


def offered(least: str = "rlimits") -> list[str]:
    """The levels from `least` on that work on this machine, the strongest first."""
    return [
        level
        for level in reversed(LEVELS)
        if rank(level) >= rank(least) and isinstance(sandbox_at(level), LocalSandbox)
    ]


class Arena:
    """A sandbox under attack.

    Attributes:
        sandbox: what is attacked.
        level: its level.
        counted: the kernel counts the processes of a run; else they are looked at from outside, because
            others have the same user.
    """

    def __init__(self, level: str) -> None:
        sandbox = sandbox_at(level)
        assert isinstance(sandbox, LocalSandbox)
        self.sandbox, self.level = sandbox, level
        self.counted = level == "namespaces" or os.geteuid() == 0

    async def attack(
        self, program: str, stdin: str = "", limits: SandboxLimitsConfig | None = None
    ) -> RunResult:
        """Run a hostile program while an honest one runs beside it, and one after it; nothing may be left of
        the hostile one.
        """
        restarts = self.sandbox.restarts
        honest = self.sandbox.run("print(sum(range(10)))", limits=PATIENT)
        hostile, beside = await asyncio.gather(self.sandbox.run(program, stdin, limits=limits), honest)
        assert (beside.stdout, beside.ok) == ("45\n", True)
        after = await asyncio.gather(
            *[self.sandbox.run("print(input()[::-1])", "abc", limits=PATIENT) for _ in range(2)]
        )
        assert [(run.stdout, run.ok) for run in after] == [("cba\n", True)] * 2
        assert self.sandbox.restarts == restarts, "a worker had to be replaced"
        self.nothing_is_left()
        return hostile

    def nothing_is_left(self) -> None:
        """No process of any run is alive, and no file of one is there."""
        until = time.monotonic() + 50  # processes of the attacks sleep a minute
        while (extra := self._extra()) and time.monotonic() < until:
            time.sleep(0.01)
        assert not extra

    def _extra(self) -> list[object]:
        processes = [pid for worker in self.sandbox.pids for pid in tree.descendants(worker)[IDLE:]]
        places = [worker.scratch for worker in self.sandbox._alive if worker.alive]
        return [*processes, *(file for place in places for file in _files(place))]


def _files(scratch: str) -> list[str]:
    """What lies in a worker's folder but the four folders and the streams that belong there; it may be
    emptied meanwhile.
    """
    found = []
    for folder, folders, files in os.walk(scratch):
        ours = {"imports", "packages", "run", "streams"} if folder == scratch else set()
        if folder == os.path.join(scratch, "streams"):
            assert os.path.getsize(os.path.join(folder, "stdin")) == 0, "the input of a run is left"
            ours = set(NAMES)
        found += [os.path.join(folder, name) for name in {*folders, *files} - ours]
    return found
