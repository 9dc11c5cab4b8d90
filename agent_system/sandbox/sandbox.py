"""The interface of all sandbox backends."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace

from agent_system.errors import SandboxError
from agent_system.sandbox.job import Job, Test
from agent_system.sandbox.result import Reason, RunResult
from verl.trainer.config.sandbox import SandboxConfig, SandboxLimitsConfig, check_sandbox
from verl.trainer.config.spec import check_values

logger = logging.getLogger(__name__)

# Timeouts of a program after which its other tests are skipped: one may be the load of the machine,
# and a program that hangs on every test would hold a worker for all of their limits.
MAX_TIMEOUTS = 2


class Sandbox(ABC):
    """Runs untrusted programs.

    Event loops and threads may share one sandbox. No method blocks the event loop, and none raises
    because of a program.

    Attributes:
        settings: the keys under `sandbox`.
        counts: number of runs by the value of their reason, since the start.
    """

    def __init__(self, settings: SandboxConfig) -> None:
        check_sandbox(settings)
        self.settings = settings
        self.counts: Counter[str] = Counter()

    async def run(
        self, program: str, stdin: str = "", *, limits: SandboxLimitsConfig | None = None
    ) -> RunResult:
        """Run a program once.

        Args:
            program: Python source.
            stdin: its standard input.
            limits: limits instead of `sandbox.limits`.
        """
        return (await self.run_tests(program, [stdin], limits=limits, usual_names=False))[0]

    async def run_tests(
        self,
        program: str,
        tests: Sequence[Test],
        *,
        limits: SandboxLimitsConfig | None = None,
        usual_names: bool = True,
    ) -> list[RunResult]:
        """Run a program once for every test, each in its own process and folder.

        Args:
            program: Python source.
            tests: text for stdin, or a `FunctionCall`.
            usual_names: define `List`, `math`, `deque` and the like where the program mentions them
                without an import, and allow deep recursion, as judges of programming tasks do.
            limits: limits of each run, instead of `sandbox.limits`.

        Returns:
            The results in the order of the tests. The caller compares them with the expected
            output, which the program never sees.
        """
        return await self._run(Job(program, list(tests), self._limits(limits), usual_names, MAX_TIMEOUTS))

    async def compile(self, program: str, *, limits: SandboxLimitsConfig | None = None) -> RunResult:
        """Compile a program without running it: `Reason.OK`, `Reason.COMPILE`, or a limit, since
        compiling can take arbitrarily long.
        """
        return (await self._run(Job(program, [""], self._limits(limits), compile_only=True)))[0]

    def _limits(self, run_limits: SandboxLimitsConfig | None) -> SandboxLimitsConfig:
        """Return the limits of a run. Raise ConfigError for its own limits if one cannot be used."""
        if run_limits is None:
            return self.settings.limits
        check_values(run_limits, "sandbox.limits")
        return run_limits

    async def _run(self, job: Job) -> list[RunResult]:
        """Return the results of a job; tests in which the sandbox failed are repeated once, by a
        fresh worker where there are workers.
        """
        results = await self._once(job)
        failed_places = [place for place, result in enumerate(results) if result.reason is Reason.SANDBOX]
        if failed_places:
            again = replace(job, tests=[job.tests[place] for place in failed_places], again=True)
            with suppress(SandboxError):  # closed meanwhile
                for place, result in zip(failed_places, await self._once(again), strict=True):
                    results[place] = result
            failed = [result.message for result in results if result.reason is Reason.SANDBOX]
            if failed:
                logger.warning(
                    "sandbox: %d runs failed twice and count as wrong, the last: %s", len(failed), failed[-1]
                )
        self.counts.update(result.reason.value for result in results)
        return results

    async def _once(self, job: Job) -> list[RunResult]:
        future = self._submit(job)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            # The thread of the job cannot be cancelled; it looks for this.
            job.abandoned.set()
            raise

    @abstractmethod
    def _submit(self, job: Job) -> Future[list[RunResult]]:
        """Queue a job; the future holds a result for each test."""

    def check(self) -> None:  # noqa: B027 - the constructor of a backend may have checked everything
        """Check that programs can be run. Raise SandboxError with the cause if not."""

    @abstractmethod
    def describe(self) -> str:
        """Return the isolation of programs in one line."""

    @abstractmethod
    def close(self) -> None:
        """End all runs and processes."""

    def stats(self) -> dict[str, float]:
        """Return the number of runs, in all and by reason, as `runs` and `runs/<reason>`."""
        counts = dict(self.counts)
        return {
            "runs": float(sum(counts.values())),
            **{f"runs/{reason}": float(counts.get(reason, 0)) for reason in Reason},
        }


def padded(job: Job, results: list[RunResult], rest: RunResult) -> list[RunResult]:
    """Return `results` followed by `rest` for each test without a result."""
    return results + [rest] * (len(job.tests) - len(results))
