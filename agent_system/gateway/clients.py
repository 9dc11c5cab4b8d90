"""Clients of a session for OpenAI's library, LangChain and AutoGen, each imported when a program
asks for it.

Time limits and repetitions are those of the run (`rollout.call_timeout_s`), so the clients have
none of their own.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Any

from agent_system.errors import AgentSystemError


class Clients:
    """The clients of one session, and the connections that they share."""

    def __init__(self, base_url: str, key: str, structured: bool) -> None:
        """Make clients of the address `base_url` with the key of an episode; with `structured` they
        may ask for a reply of a certain form.
        """
        # http has none, and they take 20 ms to load
        self._certificates = base_url.startswith("https:")
        self._arguments: dict[str, Any] = {
            "base_url": base_url,
            "api_key": key,
            "max_retries": 0,
            "timeout": None,
        }
        self._open: list[Any] = []
        self._structured = structured

    def openai(self) -> Any:
        """Return an `openai.AsyncOpenAI`."""
        client = _load("openai", "openai").AsyncOpenAI(**self._arguments, http_client=self._connections())
        self._open.append(client)
        return client

    def openai_in_thread(self) -> Any:
        """Return an `openai.OpenAI`, which blocks."""
        library = _load("openai", "openai")
        return library.OpenAI(
            **self._arguments, http_client=library.DefaultHttpxClient(verify=self._certificates)
        )

    def chat_model(self, agent_id: str) -> Any:
        """Return a `langchain_openai.ChatOpenAI`."""
        kind = _load("langchain_openai", "langchain-openai").ChatOpenAI
        return kind(model=agent_id, **self._arguments, http_async_client=self._connections())

    def autogen(self, agent_id: str) -> Any:
        """Return an `autogen_ext.models.openai.OpenAIChatCompletionClient` that calls functions."""
        kind = _load("autogen_ext.models.openai", "autogen-ext[openai]").OpenAIChatCompletionClient
        able = {"function_calling": True, "vision": False, "family": "unknown"}
        able |= {"json_output": self._structured, "structured_output": self._structured}
        client = kind(model=agent_id, model_info=able, **self._arguments, http_client=self._connections())
        self._open.append(client)
        return client

    async def close(self) -> None:
        """Close all connections."""
        for client in self._open:
            # connections of an event loop that a plain function ran for itself have ended with it
            with suppress(Exception):
                await client.close()

    def _connections(self) -> Any:
        client = _load("openai", "openai").DefaultAsyncHttpxClient(verify=self._certificates)
        self._open.append(_Closing(client))
        return client


class _Closing:
    """Closes an `httpx.AsyncClient`, whose method has another name than that of the other clients."""

    def __init__(self, client: Any) -> None:
        self.close = client.aclose


def _load(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise AgentSystemError(
            f"the team needs {package} ({error}): pip install '{package}', or this package with [frameworks]"
        ) from error
