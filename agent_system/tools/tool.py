"""A tool: a typed Python function that a model calls with JSON arguments, which are validated before the call."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from agent_system.errors import AgentSystemError
from agent_system.threads import DaemonExecutor

LONGEST_MESSAGE = 300
MOST_THREADS = 256  # a call that never returns keeps its thread

_threads = DaemonExecutor(MOST_THREADS)


class ToolInputError(ValueError):
    """The arguments of a call do not fit the tool's signature. The message is for the model."""


class ToolError(RuntimeError):
    """A tool raised an exception. The message is for the model."""


@dataclass(frozen=True)
class Tool:
    """A function with its schema.

    Attributes:
        name: name of the function.
        schema: OpenAI-style JSON schema, from the signature and the docstring.
        function: called with keyword arguments; a plain function runs in a thread, a coroutine function in the event loop.
        arguments: model of the arguments.
    """

    name: str
    schema: Mapping[str, Any]
    function: Callable[..., Any]
    arguments: type[BaseModel]

    def __reduce__(self) -> tuple[Callable[..., Tool], tuple[Any, ...]]:
        """Pickle without the model of the arguments, a class that no module has."""
        return _tool_of, (self.name, self.schema, self.function)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tool:
        """Copy the schema and the function, which may be a method of an agent; the model of the arguments does not change."""
        return replace(self, schema=copy.deepcopy(self.schema, memo), function=copy.deepcopy(self.function, memo))

    def validate(self, arguments: Any) -> dict[str, Any]:
        """Return the arguments converted to the types of the signature. Raise ToolInputError if they do not fit."""
        known = self.arguments.model_fields
        if not isinstance(arguments, dict):
            raise ToolInputError(f"the arguments of {self.name} must be a JSON object with {', '.join(known) or 'no keys'}")
        unknown = [key for key in arguments if key not in known]
        if unknown:
            raise ToolInputError(cut(f"{self.name} has no argument {unknown[0]!r}; its arguments: {', '.join(known) or 'none'}"))
        try:
            valid = self.arguments.model_validate(arguments)
        except (ValidationError, RecursionError) as error:
            found = error.errors(include_url=False, include_input=False) if isinstance(error, ValidationError) else []
            causes = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in found[:3]) or "nested too deep"
            raise ToolInputError(cut(f"wrong arguments of {self.name}: {causes}")) from error
        return {name: getattr(valid, name) for name in known}

    async def call(self, arguments: Mapping[str, Any], limit_s: float) -> str:
        """Run the tool and return its result as text; a result that is not text is written as JSON.

        Args:
            arguments: result of `validate`.
            limit_s: time limit in seconds. A function in a thread that exceeds it is left behind, a coroutine is cancelled.

        Raises:
            TimeoutError: no result within the limit.
            ToolError: the tool raised an exception.
        """
        task = asyncio.ensure_future(self._guarded(arguments))
        try:
            await asyncio.wait({task}, timeout=limit_s)  # unlike wait_for, it does not wait for a coroutine that refuses cancellation
        finally:
            task.cancel()
        if not task.done():
            task.add_done_callback(lambda t: t.cancelled() or t.exception())  # marks a late exception as retrieved
            raise TimeoutError(f"{self.name} gave no result within {limit_s:g} s")
        return task.result()

    async def _guarded(self, arguments: Mapping[str, Any]) -> str:
        try:
            if inspect.iscoroutinefunction(self.function):
                return _as_text(await self.function(**arguments))
            run = partial(_run, self.function, dict(arguments))
            return await asyncio.wrap_future(_threads.submit(run))
        except (Exception, SystemExit) as error:
            raise ToolError(cut(f"{self.name} failed: {type(error).__name__}: {error}")) from error


def make_tool(function: Callable[..., Any]) -> Tool:
    """Return the tool of a function or bound method.

    Raises:
        AgentSystemError: an argument without a type, or without a line under `Args:` of the docstring, or of a kind that JSON cannot fill.
    """
    from transformers.utils import get_json_schema  # takes seconds, and most teams have no tools

    name = getattr(function, "__name__", type(function).__name__)
    try:
        schema = get_json_schema(function)
    except Exception as error:  # transformers raises its own errors, whose classes differ between versions
        raise AgentSystemError(
            f"tool {name!r} has no JSON schema: {error}; it needs a type for every argument and a docstring in Google style with `Args:`"
        ) from error
    return _tool_of(name, schema, function)


def _tool_of(name: str, schema: Mapping[str, Any], function: Callable[..., Any]) -> Tool:
    """Return the tool of a function with its schema. Raise AgentSystemError for an argument of a kind that JSON cannot fill."""
    hints = typing.get_type_hints(function)
    fields: dict[str, Any] = {}
    for argument in inspect.signature(function).parameters.values():
        if argument.kind not in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY):
            raise AgentSystemError(f"tool {name!r} has the argument {argument}; a model can only fill named arguments")
        fields[argument.name] = (hints[argument.name], ... if argument.default is argument.empty else argument.default)
    return Tool(name, schema, function, create_model(name, __config__=ConfigDict(extra="forbid"), **fields))


def _run(function: Callable[..., Any], arguments: dict[str, Any]) -> str:
    return _as_text(function(**arguments))


def _as_text(result: Any) -> str:
    text = result if isinstance(result, str) else json.dumps(result, default=str, ensure_ascii=False)
    return text.encode("utf-8", "replace").decode()


def cut(text: str) -> str:
    """Return a message for a model, in valid Unicode, at most `LONGEST_MESSAGE` characters long."""
    return text.encode("utf-8", "replace").decode() if len(text) <= LONGEST_MESSAGE else cut(text[: LONGEST_MESSAGE - 4] + " ...")
