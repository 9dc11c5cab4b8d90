"""Client of an OpenAI-compatible server that replies for an agent: one request per reply, with
timeouts, retries and a size limit.

Answers are untrusted text: they are parsed as JSON and otherwise only quoted, at most 200
characters, with the key masked.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from random import Random
from typing import Any

from agent_system.agent import Message
from agent_system.errors import AgentSystemError, masked, password, printable_key
from agent_system.json_client import CONNECTION_ERRORS, JsonClient, NoAnswerError, TooLongError
from verl.protocol.generate import RolloutError, SamplingParams, StopReason
from verl.trainer.config.api import ApiConfig
from verl.utils.names import without_password

logger = logging.getLogger(__name__)

PATH = "/chat/completions"
MAX_ANSWER_BYTES = 8 << 20
# Characters of an answer in which the key is masked, and the longest escaped form of a key there.
MAX_SEARCHED_CHARS = 1 << 16
MAX_KEY_CHARS = 1 << 13
# HTTP statuses that are retried: request timeout, conflict, too early, too many requests; and all
# from 500 on.
RETRIED_STATUSES = (408, 409, 425, 429)
MAX_WAIT_S = 60.0
SEEDS = 2**31


@dataclass(frozen=True)
class Answer:
    """One reply of a server.

    Attributes:
        text: content of the message.
        stop_reason: `length` when the server reports that the reply was cut.
        prompt_tokens, reply_tokens: the server's counts; 0 when it gives none.
        retries: number of failed attempts before this answer.
        waited_s: seconds in which its attempts waited for `max_concurrent_requests`.
    """

    text: str
    stop_reason: StopReason
    prompt_tokens: int = 0
    reply_tokens: int = 0
    retries: int = 0
    waited_s: float = field(default=0.0, compare=False)


class EndpointError(RolloutError):
    """A server gave no usable answer; the message has the cause and the number of attempts."""


class _RetryableError(Exception):
    """A failed attempt that is worth retrying; `wait_s` is the delay that the server asked for, in
    seconds.
    """

    def __init__(self, cause: str, wait_s: float = 0.0) -> None:
        super().__init__(cause)
        self.wait_s = wait_s


class Slots:
    """As `asyncio.Semaphore`, for waiters of different priority: those with the lowest number go on
    first.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap

    @asynccontextmanager
    async def one(self, priority: int) -> AsyncIterator[None]:
        """Wait for a slot and hold it."""
        if self._free:
            self._free -= 1
        else:
            waiter = asyncio.get_running_loop().create_future()
            heappush(self._waiting, (priority, next(self._numbers), waiter))
            try:
                await waiter
            except asyncio.CancelledError:
                # it got the slot at the same moment
                if not waiter.cancelled():
                    self._pass_on()
                raise
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            _, _, waiter = heappop(self._waiting)
            if not waiter.done():
                return waiter.set_result(None)
        self._free += 1


class Endpoint:
    """The server of one agent. Connections belong to an event loop: `close` in it before a request
    from another one.
    """

    def __init__(self, agent_id: str, config: ApiConfig, api_key: str | None = None) -> None:
        """Connect with the first request.

        Args:
            agent_id: agent that the server replies for, for messages.
            config: the keys under `agent.api.<agent>`.
            api_key: value of the environment variable `config.api_key_env`.

        Raises:
            AgentSystemError: the key contains a control character, or there is a key and `base_url`
                contains a password.
        """
        printable_key(api_key or "", f"the server of {agent_id}")
        if api_key and password(config.base_url):
            raise AgentSystemError(
                f"the server of {agent_id} has a key and a password in its base_url; give one of them"
            )
        self.agent_id = agent_id
        self.config = config
        self._api_key = api_key
        self._url = config.base_url.rstrip("/").removesuffix(PATH) + PATH
        self._client = JsonClient(self._url)
        self._slots = Slots(config.max_concurrent_requests)

    async def close(self) -> None:
        """Close the connections."""
        # Those who wait for the old ones belong to the event loop that ends.
        self._slots = Slots(self.config.max_concurrent_requests)
        await self._client.close()

    async def check(self) -> None:
        """Request one short reply, without retries. Raise EndpointError when there is none."""
        try:
            await self.ask(
                [{"role": "user", "content": "Say OK."}], SamplingParams(max_tokens=16), seed=0, retries=0
            )
        finally:
            await self.close()

    async def ask(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams,
        *,
        seed: int,
        retries: int | None = None,
        priority: int = 0,
    ) -> Answer:
        """Return one reply.

        Args:
            messages: messages of the chat.
            sampling: `max_tokens`, `temperature` and `top_p` are sent.
            seed: sent too; many servers sample deterministically with it.
            retries: attempts beyond the first; None takes `max_retries`.
            priority: as of a `GenerateRequest`, of requests that wait because of
                `max_concurrent_requests`.

        Raises:
            EndpointError: no attempt gave a reply, or the server rejects the request with a status
                that is not retried.
        """
        attempts = 1 + (self.config.max_retries if retries is None else retries)
        body = self._body(messages, sampling, seed % SEEDS)
        draw = Random(seed)
        waited_s = 0.0
        for attempt in range(attempts):
            asked_at = time.monotonic()
            try:
                async with self._slots.one(priority):
                    waited_s += time.monotonic() - asked_at
                    text = await self._post(body)
                return replace(_parse(text, attempt), waited_s=waited_s)
            except _RetryableError as error:
                if attempt + 1 == attempts:
                    count = "in one attempt" if attempts == 1 else f"in {attempts} attempts, the last"
                    raise EndpointError(f"{self._name()} gave no reply {count}: {error}") from error
                logger.info("%s: %s; trying again", self._name(), error)
                # At random, so that requests that failed together do not come back together.
                wait = self.config.retry_delay_s * 2**attempt * draw.uniform(0.75, 1.25)
                await asyncio.sleep(min(max(wait, error.wait_s), MAX_WAIT_S))
        raise AssertionError("unreachable")

    def _body(self, messages: Sequence[Message], sampling: SamplingParams, seed: int) -> dict[str, Any]:
        body = {
            "model": self.config.model,
            "messages": list(messages),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed,
            **self.config.extra_body,
        }
        return {name: value for name, value in body.items() if value is not None}

    async def _post(self, body: Mapping[str, Any]) -> str:
        headers = {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}
        limit_s = self.config.request_timeout_s
        try:
            answer = await self._client.post(
                body, timeout_s=limit_s, most_bytes=MAX_ANSWER_BYTES, headers=headers
            )
        except NoAnswerError as error:
            raise _RetryableError(f"no answer within request_timeout_s={limit_s:g} s") from error
        except TooLongError as error:
            raise _RetryableError(f"an answer of more than {MAX_ANSWER_BYTES >> 20} MiB") from error
        except TimeoutError:  # not of this request
            raise
        except CONNECTION_ERRORS as error:
            raise _RetryableError(self._quoted(f"{type(error).__name__}: {error}")) from error
        return self._checked(answer.status, answer.headers.get("Retry-After", ""), answer.text)

    def _checked(self, status: int, retry_after: str, text: str) -> str:
        if status == 200:
            return text
        cause = f"HTTP status {status}: {self._quoted(text)}"
        if status in RETRIED_STATUSES or status >= 500:
            raise _RetryableError(cause, float(retry_after) if retry_after.isdecimal() else 0.0)
        raise EndpointError(f"{self._name()} refuses the request with {cause}")

    def _quoted(self, text: str) -> str:
        """Return the beginning of a server's text in one line, with secrets masked: some servers
        quote the key.
        """
        line = " ".join(text.split())
        clean = masked(line[:MAX_SEARCHED_CHARS], self._api_key, password(self.config.base_url))
        # The end may hold the beginning of a key that was cut and is therefore not masked.
        return (clean if len(line) <= MAX_SEARCHED_CHARS else clean[:-MAX_KEY_CHARS])[:200]

    def _name(self) -> str:
        return f"the server of {self.agent_id}, {self.config.model} at {without_password(self._url)},"


def _parse(text: str, retries: int) -> Answer:
    """Return the reply in a server's answer. Raise `_RetryableError` for text that is not a chat
    completion.
    """
    try:
        body = json.loads(text)
        choice = body["choices"][0]
        message = choice["message"]
        content = message.get("content")
        usage = body.get("usage")
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise _RetryableError(f"an answer that is no chat completion ({type(error).__name__})") from error
    if not isinstance(content, str):
        if content is not None:
            raise _RetryableError(f"an answer whose message is {type(content).__name__}, not text")
        # a refusal, or a reply that was cut before its first visible word
        content = ""
    counts = usage if isinstance(usage, dict) else {}
    stop: StopReason = "length" if choice.get("finish_reason") == "length" else "stop"
    return Answer(
        content, stop, _count(counts.get("prompt_tokens")), _count(counts.get("completion_tokens")), retries
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
