"""An OpenAI-compatible server that speaks for an agent: one request a reply, with time limits, retries and a bound on what is read.

What the server says is a stranger's text: it is parsed as JSON and otherwise only quoted, at most 200 characters of it, without the key.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp

from agent_system.agent import Message
from agent_system.errors import AgentSystemError, masked, password, printable_key
from verl.protocol.generate import RolloutError, SamplingParams, StopReason
from verl.utils.names import without_password

logger = logging.getLogger(__name__)

PATH = "/chat/completions"
MOST_BYTES = 8 << 20
# Characters of an answer in which the key is looked for, and how many a key may take there.
MOST_SEARCHED, LONGEST_KEY = 1 << 16, 1 << 13
# Statuses that another attempt may mend: request timeout, conflict, too early, too many requests; and all from 500 on.
WORTH_ANOTHER = (408, 409, 425, 429)
LONGEST_WAIT_S = 60.0
SEEDS = 2**31


@dataclass(frozen=True)
class EndpointSettings:
    """The keys under `agent.api.<agent>`; `api_key` is what the environment variable holds.

    Raises:
        AgentSystemError: the key holds a control character, or the address a password beside it.
    """

    agent_id: str
    base_url: str = field(repr=False)
    model: str
    api_key: str | None = field(default=None, repr=False)
    request_timeout_s: float = 60.0
    max_retries: int = 4
    retry_delay_s: float = 1.0
    max_concurrent_requests: int = 16
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        printable_key(self.api_key or "", f"the server of {self.agent_id}")
        if self.api_key and password(self.base_url):
            raise AgentSystemError(f"the server of {self.agent_id} has a key and a password in its base_url; give one of them")

    @property
    def url(self) -> str:
        """Where requests go."""
        return self.base_url.rstrip("/").removesuffix(PATH) + PATH


@dataclass(frozen=True)
class Answer:
    """One reply of a server.

    Attributes:
        text: of the message.
        stop_reason: `length` when the server says that the reply was cut.
        prompt_tokens, reply_tokens: as the server counts them; 0 when it does not.
        retries: attempts that failed before.
    """

    text: str
    stop_reason: StopReason
    prompt_tokens: int = 0
    reply_tokens: int = 0
    retries: int = 0


class EndpointError(RolloutError):
    """A server that gave no answer that can be used; the message says why and in how many attempts."""


class _TryAgainError(Exception):
    """An attempt that failed in a way that may pass; `wait_s` is what the server asked for."""

    def __init__(self, cause: str, wait_s: float = 0.0) -> None:
        super().__init__(cause)
        self.wait_s = wait_s


class Endpoint:
    """The server of one agent; connections belong to the event loop that opened them, so `close` there before another one asks."""

    def __init__(self, settings: EndpointSettings) -> None:
        self.settings = settings
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(settings.max_concurrent_requests)

    async def close(self) -> None:
        """Hang up."""
        session, self._session = self._session, None
        self._slots = asyncio.Semaphore(self.settings.max_concurrent_requests)
        if session is not None:
            await session.close()

    async def check(self) -> None:
        """Ask for one short reply, once. Raises EndpointError when there is none."""
        try:
            await self.ask([{"role": "user", "content": "Say OK."}], SamplingParams(max_tokens=16), seed=0, retries=0)
        finally:
            await self.close()

    async def ask(self, messages: Sequence[Message], sampling: SamplingParams, *, seed: int, retries: int | None = None) -> Answer:
        """Return one reply.

        Args:
            messages: of the chat.
            sampling: `max_tokens`, `temperature` and `top_p` are sent.
            seed: sent too; many servers repeat a reply by it.
            retries: attempts beyond the first; None takes `max_retries`.

        Raises:
            EndpointError: no attempt gave a reply, or the server refuses the request for good.
        """
        attempts = 1 + (self.settings.max_retries if retries is None else retries)
        body = self._body(messages, sampling, seed % SEEDS)
        draw = Random(seed)
        for attempt in range(attempts):
            try:
                async with self._slots:
                    text = await self._post(body)
                return _read(text, attempt)
            except _TryAgainError as error:
                if attempt + 1 == attempts:
                    tried = "in one attempt" if attempts == 1 else f"in {attempts} attempts, the last"
                    raise EndpointError(f"{self._who()} gave no reply {tried}: {error}") from error
                logger.info("%s: %s; trying again", self._who(), error)
                wait = self.settings.retry_delay_s * 2**attempt * draw.uniform(0.75, 1.25)
                await asyncio.sleep(min(max(wait, error.wait_s), LONGEST_WAIT_S))
        raise AssertionError("unreachable")

    def _body(self, messages: Sequence[Message], sampling: SamplingParams, seed: int) -> dict[str, Any]:
        body = {
            "model": self.settings.model,
            "messages": list(messages),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed,
            **self.settings.extra_body,
        }
        return {name: value for name, value in body.items() if value is not None}

    async def _post(self, body: Mapping[str, Any]) -> str:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None))
        headers = {"Authorization": f"Bearer {self.settings.api_key}"} if self.settings.api_key else {}
        limit = self.settings.request_timeout_s
        try:
            async with asyncio.timeout(limit) as clock:
                # No redirects: the key is meant for this server alone.
                async with self._session.post(self.settings.url, json=body, headers=headers, allow_redirects=False) as answer:
                    data = bytearray()
                    async for chunk in answer.content.iter_chunked(1 << 16):
                        data += chunk
                        if len(data) > MOST_BYTES:
                            raise _TryAgainError(f"an answer of more than {MOST_BYTES >> 20} MiB")
                    return self._checked(answer.status, answer.headers.get("Retry-After", ""), data.decode("utf-8", "replace"))
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise _TryAgainError(f"no answer within request_timeout_s={limit:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _TryAgainError(self._quoted(f"{type(error).__name__}: {error}")) from error

    def _checked(self, status: int, retry_after: str, text: str) -> str:
        if status == 200:
            return text
        said = f"HTTP status {status}: {self._quoted(text)}"
        if status in WORTH_ANOTHER or status >= 500:
            raise _TryAgainError(said, float(retry_after) if retry_after.isdecimal() else 0.0)
        raise EndpointError(f"{self._who()} refuses the request with {said}")

    def _quoted(self, text: str) -> str:
        """The beginning of what a server said, in one line; some quote the key that they were given."""
        line = " ".join(text.split())
        clean = masked(line[:MOST_SEARCHED], self.settings.api_key, password(self.settings.base_url))
        # A key that the cut has left the beginning of is in no part that is quoted.
        return (clean if len(line) <= MOST_SEARCHED else clean[:-LONGEST_KEY])[:200]

    def _who(self) -> str:
        return f"the server of {self.settings.agent_id}, {self.settings.model} at {without_password(self.settings.url)},"


def _read(text: str, retries: int) -> Answer:
    """The reply in a server's answer. Raises `_TryAgainError` for anything that is not one."""
    try:
        found = json.loads(text)
        choice = found["choices"][0]
        message = choice["message"]
        content = message.get("content")
        usage = found.get("usage")
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise _TryAgainError(f"an answer that is no chat completion ({type(error).__name__})") from error
    if not isinstance(content, str):
        if content is not None:
            raise _TryAgainError(f"an answer whose message is {type(content).__name__}, not text")
        content = ""  # a refusal, or a reply that was cut before its first visible word
    counts = usage if isinstance(usage, dict) else {}
    stop: StopReason = "length" if choice.get("finish_reason") == "length" else "stop"
    return Answer(content, stop, _count(counts.get("prompt_tokens")), _count(counts.get("completion_tokens")), retries)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
