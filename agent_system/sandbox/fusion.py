"""Backend that runs programs on a SandboxFusion server, which is responsible for their isolation."""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import re
import threading
from concurrent.futures import Future
from typing import Any

import aiohttp

from agent_system.errors import SandboxError, masked, password
from agent_system.json_text import parse_json
from agent_system.sandbox.fusion_protocol import PATH, read_answer, request
from agent_system.sandbox.job import Job
from agent_system.sandbox.result import Reason, RunResult
from agent_system.sandbox.sandbox import Sandbox, padded
from verl.trainer.config.sandbox import SandboxConfig
from verl.utils.names import without_password

logger = logging.getLogger(__name__)

REQUESTS = 32
# Longest JSON escape of one byte of output, and space for the rest of an answer.
ESCAPED_BYTES, ENVELOPE_BYTES = 6, 1 << 16
OUTPUT_BEGINS = re.compile(rb'"(stdout|stderr)"\s*:\s*"')


class OutputError(ValueError):
    """The answer is longer than the output limit allows, because the program wrote too much."""


class HttpSandbox(Sandbox):
    """Sends each run to a server, at most `settings.workers` concurrently; a failure of the server gives a
    result with its cause.

    Requests run on the sandbox's own event loop, so that connections outlive the event loops of callers.
    """

    def __init__(self, settings: SandboxConfig) -> None:
        super().__init__(settings)
        self._url = settings.url.rstrip("/").removesuffix(PATH) + PATH
        self._shown = without_password(self._url)
        self._loop = asyncio.new_event_loop()
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(settings.workers or REQUESTS)
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandbox-http", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        logger.info("sandbox: %s", self.describe())

    def describe(self) -> str:
        return f"SandboxFusion at {self._shown}, {self.settings.workers or REQUESTS} concurrent requests; the server isolates the programs"

    def check(self) -> None:
        (result,) = self._submit(Job("print(6 * 7)", [""], self.settings.limits)).result()
        if result.stdout.strip() != "42":
            raise SandboxError(
                f"sandbox.url={without_password(self.settings.url)}: a program that prints 42 ended with "
                f"{result.reason}: {result.message or result.stderr[-500:]}; is this a SandboxFusion server?"
            )

    def close(self) -> None:
        if self._loop.is_running():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        atexit.unregister(self.close)

    def _submit(self, job: Job) -> Future[list[RunResult]]:
        if not self._loop.is_running():
            raise SandboxError("this sandbox is closed; make another one")
        return asyncio.run_coroutine_threadsafe(self._run_all(job), self._loop)

    async def _end(self) -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        if self._session is not None:
            await self._session.close()

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
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
            )
        body, mark = request(job, header, stdin)
        seconds = 2 * job.limits.wall_s + self.settings.request_timeout_s
        try:
            async with asyncio.timeout(seconds):
                return read_answer(await self._post(self._session, body, job), mark, job)
        except OutputError:
            return RunResult(Reason.OUTPUT)
        except TimeoutError:
            message = f"{self._shown} gave no answer within {seconds:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            message = f"{self._shown}: {type(error).__name__}: {masked(str(error), password(self._url))}"
        logger.warning("sandbox: %s", message)
        return RunResult(Reason.SANDBOX, message=message)

    async def _post(self, session: aiohttp.ClientSession, body: dict[str, object], job: Job) -> object:
        """Return the JSON of the server's answer.

        Raises:
            OutputError: the answer is too long and contains a program's output.
            ValueError: the answer is too long without output, has a status other than 200, or is not JSON.
        """
        limit = 3 * ESCAPED_BYTES * job.limits.output_kb * 1024 + ENVELOPE_BYTES
        async with session.post(
            self._url,
            data=json.dumps(body),
            headers={"Content-Type": "application/json"},
            allow_redirects=False,
        ) as answer:
            text = bytearray()
            async for chunk in answer.content.iter_chunked(1 << 16):
                text += chunk
                if len(text) > limit:
                    if answer.status == 200 and OUTPUT_BEGINS.search(text):
                        raise OutputError
                    raise ValueError(f"an answer of more than {limit} bytes")
        if answer.status != 200:
            raise ValueError(f"HTTP status {answer.status}: {bytes(text[:200])!r}")
        return parse_json(text.decode("utf-8", "replace"))
