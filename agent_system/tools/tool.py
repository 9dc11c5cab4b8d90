"""A tool: a typed Python function that a model calls with JSON arguments, which are validated
before the call.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import typing
from collections import deque
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model

from agent_system.errors import AgentSystemError
from agent_system.threads import DaemonExecutor, run_plain, watched
from agent_system.tools.hints import SelfReferenceError, is_plain, readable, schema_of

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
        function: called with keyword arguments; a plain function runs in a thread, a coroutine
            function in the event loop.
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
        """Copy the schema and the function, which may be a method of an agent; the model of the
        arguments does not change.
        """
        return replace(
            self, schema=copy.deepcopy(self.schema, memo), function=copy.deepcopy(self.function, memo)
        )

    def validate(self, arguments: Any) -> dict[str, Any]:
        """Return the arguments converted to the types of the signature. Raise ToolInputError if
        they do not fit.
        """
        fields_by_alias = {str(field.alias): name for name, field in self.arguments.model_fields.items()}
        if not isinstance(arguments, dict):
            raise ToolInputError(
                f"the arguments of {self.name} must be a JSON object with "
                f"{', '.join(fields_by_alias) or 'no keys'}"
            )
        unknown = [key for key in arguments if key not in fields_by_alias]
        if unknown:
            raise ToolInputError(
                cut(
                    f"{self.name} has no argument {unknown[0]!r}; its arguments: "
                    f"{', '.join(fields_by_alias) or 'none'}"
                )
            )
        try:
            valid = self.arguments.model_validate(arguments)
        except (ValidationError, RecursionError) as error:
            field_errors = (
                error.errors(include_url=False, include_input=False)
                if isinstance(error, ValidationError)
                else []
            )
            causes = (
                "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in field_errors[:3])
                or "nested too deep"
            )
            raise ToolInputError(cut(f"wrong arguments of {self.name}: {causes}")) from error
        return {name: getattr(valid, field) for name, field in fields_by_alias.items()}

    async def call(self, arguments: Mapping[str, Any], limit_s: float) -> str:
        """Run the tool and return its result as text; a result that is not text is written as JSON.

        Args:
            arguments: result of `validate`.
            limit_s: time limit in seconds. A function in a thread that exceeds it is left behind, a
                coroutine is cancelled.

        Raises:
            TimeoutError: no result within the limit.
            ToolError: the tool raised an exception.
        """
        task = asyncio.ensure_future(self._guarded(arguments))
        try:
            # unlike wait_for, it does not wait for a coroutine that refuses cancellation
            await asyncio.wait({task}, timeout=limit_s)
        finally:
            task.cancel()
        if not task.done():
            # marks a late exception as retrieved
            task.add_done_callback(lambda t: t.cancelled() or t.exception())
            raise TimeoutError(f"{self.name} gave no result within {limit_s:g} s")
        return task.result()

    async def _guarded(self, arguments: Mapping[str, Any]) -> str:
        try:
            if inspect.iscoroutinefunction(self.function):
                return _as_text(await watched(self.function(**arguments)))
            run = partial(_run, self.function, dict(arguments))
            result = await asyncio.wrap_future(_threads.submit(run))
            # of a decorated coroutine function, which looks like a plain one
            if inspect.isawaitable(result):
                result = await watched(result)
            if inspect.isasyncgen(result):
                result = [item async for item in result]
            return _as_text(result)
        # SystemExit as well: it would end the event loop.
        except (Exception, SystemExit) as error:
            raise ToolError(cut(f"{self.name} failed: {type(error).__name__}: {error}")) from error


def make_tool(function: Callable[..., Any]) -> Tool:
    """Return the tool of a function or bound method.

    Raises:
        AgentSystemError: an argument without a type, or without a line under `Args:` of the
            docstring, or of a kind that JSON cannot fill.
    """
    from transformers.utils import get_json_schema  # takes seconds, and most teams have no tools

    name = getattr(function, "__name__", type(function).__name__)
    try:
        hints = typing.get_type_hints(function)
        special = {
            argument: hint for argument, hint in hints.items() if argument != "return" and not is_plain(hint)
        }
        described = _described(function, hints | dict.fromkeys(special, dict))
        try:
            schema = get_json_schema(described if special else function)
        except Exception:
            # What it returns may be of any class; the model reads it as text.
            if "return" not in hints:
                raise
            schema = get_json_schema(described)
    except Exception as error:
        # transformers raises its own errors, whose classes differ between versions
        raise AgentSystemError(
            f"tool {name!r} has no JSON schema: {error}; it needs a type for every argument and a "
            "docstring in Google style with `Args:`"
        ) from error
    tool = _tool_of(name, schema, function)
    properties = schema["function"]["parameters"].get("properties", {})
    for argument in special.keys() & properties.keys():
        argument_schema = schema_of(special[argument], f"tool {name!r}, argument {argument!r}")
        properties[argument] = argument_schema | {"description": properties[argument]["description"]}
    return tool


def _described(function: Callable[..., Any], hints: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a function with the same signature and description, and other types."""

    def described() -> None: ...

    signature = inspect.signature(function)
    parameters = [
        one.replace(annotation=hints.get(one.name, one.annotation)) for one in signature.parameters.values()
    ]
    described.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    described.__annotations__ = {
        one.name: one.annotation for one in parameters if one.annotation is not one.empty
    }
    described.__doc__ = function.__doc__
    described.__name__ = getattr(function, "__name__", type(function).__name__)
    return described


def _tool_of(name: str, schema: Mapping[str, Any], function: Callable[..., Any]) -> Tool:
    """Return the tool of a function with its schema. Raise AgentSystemError for an argument of a
    kind that JSON cannot fill.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    model_fields: dict[str, Any] = {}
    try:
        for argument in inspect.signature(function).parameters.values():
            if argument.kind not in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY):
                raise AgentSystemError(
                    f"tool {name!r} has the argument {argument}; a model can only fill named arguments"
                )
            default = ... if argument.default is argument.empty else argument.default
            # Names of fields are not those of arguments, some of which pydantic does not take.
            model_fields[f"argument_{len(model_fields)}"] = (
                readable(hints[argument.name]),
                Field(default, alias=argument.name),
            )
        arguments = create_model(name, __config__=ConfigDict(extra="forbid"), **model_fields)
    except (PydanticUserError, SelfReferenceError) as error:
        raise AgentSystemError(
            f"tool {name!r} has an argument that JSON cannot fill: {str(error).partition(chr(10))[0]}"
        ) from error
    return Tool(name, schema, function, arguments)


def _run(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    result = run_plain(function, **arguments)
    return result if inspect.isawaitable(result) or inspect.isasyncgen(result) else _as_text(result)


def _as_text(result: Any) -> str:
    if isinstance(result, str):
        text = result
    else:
        try:
            text = json.dumps(result, default=_in_json, ensure_ascii=False)
        except TypeError:  # of a key: `default` is not asked about keys
            text = json.dumps(_with_text_keys(result), ensure_ascii=False)
    return text.encode("utf-8", "replace").decode()


def _with_text_keys(value: Any) -> Any:
    """Return the nearest value of JSON; a key that JSON cannot have is its text as a value."""
    if isinstance(value, dict):
        return {
            key
            if isinstance(key, (str, int, float, bool, type(None)))
            else _as_text(_in_json(key)): _with_text_keys(content)
            for key, content in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_with_text_keys(item) for item in value]
    return value if isinstance(value, (str, int, float, type(None))) else _with_text_keys(_in_json(value))


def _in_json(value: Any) -> Any:
    """Return the nearest value of JSON of an object, of others its text."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        # in an order that does not depend on the process
        return sorted(value, key=str)
    if isinstance(value, (Sequence, deque, Iterator, KeysView, ValuesView, ItemsView)) and not isinstance(
        value, (bytes, bytearray)
    ):
        return list(value)
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", "replace")
    # arrays and numbers of numpy, tensors
    return value.tolist() if hasattr(value, "tolist") else str(value)


def cut(text: str) -> str:
    """Return a message for a model, in valid Unicode, at most `LONGEST_MESSAGE` characters long."""
    return (
        text.encode("utf-8", "replace").decode()
        if len(text) <= LONGEST_MESSAGE
        else cut(text[: LONGEST_MESSAGE - 4] + " ...")
    )
