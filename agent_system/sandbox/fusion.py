"""Backend that runs programs on a SandboxFusion server, which is responsible for their isolation."""

from __future__ import annotations

import asyncio
import atexit
import logging
import re
from concurrent.futures import Future
from typing import Any

from agent_system.errors import SandboxError, masked, password
from agent_system.json_client import CONNECTION_ERRORS, JsonClient, TooLongError
from agent_system.json_text import parse_json
from agent_system.sandbox.fusion_protocol import PATH, read_answer, request
from agent_system.sandbox.job import Job
from agent_system.sandbox.result import Reason, RunResult
from agent_system.sandbox.sandbox import Sandbox, padded
from verl.trainer.config.sandbox import SandboxConfig
from verl.utils.loop_thread import LoopThread
from verl.utils.names import without_password

logger = logging.getLogger(__name__)

REQUESTS = 32
# Of a request, beside the limits of its execution: the server has as many requests at a time as it
# has cores, and others wait there.
QUEUEING_S = 30.0
# Longest JSON escape of one byte of output, and space for the rest of an answer.
ESCAPED_BYTES = 6
ENVELOPE_BYTES = 1 << 16
OUTPUT_BEGINS = re.compile(rb'"(stdout|stderr)"\s*:\s*"')


class OutputError(ValueError):
    """The answer is longer than the output limit allows, because the program wrote too much."""


class HttpSandbox(Sandbox):
    """Sends each run to a server, at most `settings.workers` concurrently; a failure of the server
    gives a result with its cause.

    Requests run on the sandbox's own event loop, so that connections outlive the event loops of
    callers.
    """

    def __init__(self, settings: SandboxConfig) -> None:
        super().__init__(settings)
        self._url = settings.url.rstrip("/").removesuffix(PATH) + PATH
        self._shown_url = without_password(self._url)
        self._loop = LoopThread("sandbox-http")
        self._client = JsonClient(self._url)
        self._slots = asyncio.Semaphore(settings.workers or REQUESTS)
        atexit.register(self.close)
        logger.info("sandbox: %s", self.describe())

    def describe(self) -> str:
        requests = self.settings.workers or REQUESTS
        url = self._shown_url
        return f"SandboxFusion at {url}, {requests} concurrent requests; the server isolates the programs"

    def check(self) -> None:
        (result,) = self._submit(Job("print(6 * 7)", [""], self.settings.limits)).result()
        if result.stdout.strip() != "42":
            raise SandboxError(
                f"sandbox.url={without_password(self.settings.url)}: a program that prints 42 "
                f"ended with {result.reason}: {result.message or result.stderr[-500:]}; is this a "
                "SandboxFusion server?"
            )

    def close(self) -> None:
        self._loop.close(self._client.close)
        atexit.unregister(self.close)

    def _submit(self, job: Job) -> Future[list[RunResult]]:
        if self._loop.closed:
            raise SandboxError("this sandbox is closed; make another one")
        return self._loop.submit(self._run_all(job))

    async def _run_all(self, job: Job) -> list[RunResult]:
        results: list[RunResult] = []
        timeouts = 0
        for test in job.tests:
            async with self._slots:
                message = job.message(test)
                results.append(
                    message if isinstance(message, RunResult) else await self._run_test(job, *message)
                )
            timeouts += results[-1].reason is Reason.TIMEOUT
            if 0 < job.max_timeouts <= timeouts:
                break
        return padded(job, results, RunResult(Reason.SKIPPED))

    async def _run_test(self, job: Job, header: dict[str, Any], stdin: bytes) -> RunResult:
        body, mark = request(job, header, stdin)
        # Once to compile it, once to run it.
        seconds = 2 * job.limits.wall_s + QUEUEING_S
        try:
            return read_answer(await self._post(body, job, seconds), mark, job)
        except OutputError:
            return RunResult(Reason.OUTPUT)
        except TimeoutError:
            message = f"{self._shown_url} gave no answer within {seconds:g} s"
        except (*CONNECTION_ERRORS, ValueError) as error:
            message = f"{self._shown_url}: {type(error).__name__}: {masked(str(error), password(self._url))}"
        logger.warning("sandbox: %s", message)
        return RunResult(Reason.SANDBOX, message=message)

    async def _post(self, body: dict[str, object], job: Job, timeout_s: float) -> object:
        """Return the JSON of the server's answer.

        Raises:
            OutputError: the answer is too long and contains a program's output.
            ValueError: the answer is too long without output, has a status other than 200, or is
                not JSON.
        """
        most_bytes = 3 * ESCAPED_BYTES * job.limits.output_kb * 1024 + ENVELOPE_BYTES
        try:
            answer = await self._client.post(body, timeout_s=timeout_s, most_bytes=most_bytes)
        except TooLongError as error:
            if error.answer.status == 200 and OUTPUT_BEGINS.search(error.answer.data):
                raise OutputError from error
            raise ValueError(f"an answer of more than {most_bytes} bytes") from error
        return parse_json(answer.ok_data().decode("utf-8", "replace"))
