"""Parsing of the rows of public data sets: APPS, CodeContests, LiveCodeBench, HumanEval, MBPP.
Nothing is run here.

A row without a required column raises `RowError`. Unreadable tests raise `ValueError`, which the
caller counts.
"""

from __future__ import annotations

import ast
import base64
import binascii
import io
import json
import pickle
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.json_text import parse_json
from agent_system.workflows.code.world.problem import Case, read_ground_truth

Row = Mapping[str, Any]
PYTHON3 = 3  # number of the language in CodeContests
MOST_PRIVATE_BYTES = 1 << 28


class RowError(AgentSystemError):
    """A row lacks a required column of its data set."""


@dataclass(frozen=True)
class RawTask:
    """A task as given by its data set.

    Attributes:
        question: the task in words, including starter code.
        references: programs that should be right.
        readings: possible interpretations of its tests, each a function's name (empty for stdin)
            with tests; the first one that a reference passes is used.
        check: source of `check(candidate)`, where the tests are assertions instead.
        function: name of the function that is passed to `check`.
        helpers: see `Problem`.
    """

    question: str
    references: tuple[str, ...]
    readings: tuple[tuple[str, tuple[Case, ...]], ...] = ()
    check: str = ""
    function: str = ""
    helpers: str = ""


def apps(row: Row) -> RawTask:
    """Parse a row with `question`, `input_output` and `solutions` (both JSON text), `starter_code`."""
    starter = str(row.get("starter_code") or "")
    question = _with_starter(_text(row, "question"), starter)
    truth = _object(_parsed(_column(row, "input_output"), "input_output"), "input_output")
    name = truth.get("fn_name") or ""
    if not isinstance(name, str):
        raise ValueError(f"fn_name must be a name, found {name!r:.80}")
    function = f"Solution.{name}" if name and "class Solution" in starter else name
    inputs, outputs = (
        [one if name else _lines(one, key) for one in _list(truth.get(key), key)]
        for key in ("inputs", "outputs")
    )
    readings = [read_ground_truth({"inputs": inputs, "outputs": outputs, "fn_name": function})]
    # many rows wrap each value in a list of length one
    if name and all(isinstance(one, list) and len(one) == 1 for one in outputs):
        readings.append((function, tuple(Case(case.given, case.expected[0]) for case in readings[0][1])))
    solutions = row.get("solutions") or "[]"
    return RawTask(question, _programs(_parsed(solutions, "solutions")), tuple(readings))


def code_contests(row: Row) -> RawTask:
    """Parse a row with `description`, `{private,generated,public}_tests` (`input`, `output`),
    `solutions` (`language`, `solution`).
    """
    cases: list[Case] = []
    for name in ("private_tests", "generated_tests", "public_tests"):
        cases += [
            Case(str(test_input), str(expected))
            for test_input, expected in _pairs(row.get(name) or {}, name, "input", "output")
        ]
    if not cases:
        raise ValueError("no tests")
    pairs = _pairs(_column(row, "solutions"), "solutions", "language", "solution")
    programs = [program for language, program in pairs if language in (PYTHON3, "PYTHON3")]
    return RawTask(_text(row, "description"), _programs(programs), (("", tuple(cases)),))


def live_code_bench(row: Row) -> RawTask:
    """Parse a row with `question_content`, `starter_code`, `public_test_cases`,
    `private_test_cases`, `metadata`; it has no solutions.
    """
    starter = str(row.get("starter_code") or "")
    public = _list(_parsed(_column(row, "public_test_cases"), "public_test_cases"), "public_test_cases")
    tests = [*_private(row.get("private_test_cases")), *public]
    metadata = _parsed(row.get("metadata") or "{}", "metadata")
    name = str(metadata.get("func_name") or "") if isinstance(metadata, Mapping) else ""
    function = f"Solution.{name}" if name and "class Solution" in starter else name
    if not tests or not all(
        isinstance(test, Mapping) and {"input", "output"} <= test.keys() for test in tests
    ):
        raise ValueError("tests must be objects with input and output")
    if name:
        lines = [[line for line in str(test["input"]).split("\n") if line.strip()] for test in tests]
        cases = [
            Case([parse_json(line) for line in argument_lines], parse_json(str(test["output"])))
            for argument_lines, test in zip(lines, tests, strict=True)
        ]
    else:
        cases = [Case(str(test["input"]), str(test["output"])) for test in tests]
    return RawTask(_with_starter(_text(row, "question_content"), starter), (), ((function, tuple(cases)),))


def human_eval(row: Row) -> RawTask:
    """Parse a row with `prompt`, `entry_point`, `canonical_solution`, `test`."""
    prompt = _text(row, "prompt")
    function = _text(row, "entry_point")
    question = f"Complete this function; answer with all of it.\n\n```python\n{prompt.strip()}\n```"
    return RawTask(
        question,
        (prompt + _text(row, "canonical_solution"),),
        check=_text(row, "test"),
        function=function,
        helpers=_helpers(prompt, function),
    )


def _helpers(prompt: str, function: str) -> str:
    """Return source that defines the other functions of a prompt where a program has none of their
    names.
    """
    try:
        # the function that is asked for may have no body
        body = ast.parse(f"{prompt}\n    pass\n").body
        defined = [node for node in body if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError, RecursionError):
        return ""
    return "".join(
        f"\nif {node.name!r} not in globals():\n{indent(ast.unparse(node), '    ')}\n"
        for node in defined
        if node.name != function
    )


def mbpp(row: Row) -> RawTask:
    """Parse a row with `text` (or `prompt`), `code`, `test_list`, and optionally `test_setup_code`
    (or `test_imports`).
    """
    code = _text(row, "code")
    asserts = [str(line) for line in _list(_column(row, "test_list"), "test_list")]
    try:
        defined = {node.name: node for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)}
        called = [
            name
            for line in asserts
            for node in ast.walk(ast.parse(line))
            if (name := _called(node)) in defined
        ]
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ValueError(f"code or test_list cannot be parsed: {error}") from error
    if not called:
        raise ValueError("test_list calls no function of code")
    function = called[0]
    setup = row.get("test_setup_code") or _lines(row.get("test_imports") or "", "test_imports")
    lines = [f"    {function} = candidate", *(f"    {part}" for line in asserts for part in line.split("\n"))]
    signature = f"def {function}({ast.unparse(defined[function].args)})"
    question = f"{str(row.get('text') or '') or _text(row, 'prompt')}\n\nThe function is `{signature}`."
    return RawTask(
        question, (code,), check=f"{setup}\ndef check(candidate):\n" + "\n".join(lines), function=function
    )


SETS: dict[str, tuple[str, Callable[[Row], RawTask]]] = {
    "apps": ("codeparrot/apps", apps),
    "code_contests": ("deepmind/code_contests", code_contests),
    "live_code_bench": ("livecodebench/code_generation_lite", live_code_bench),
    "human_eval": ("openai/human_eval", human_eval),
    "mbpp": ("google/mbpp", mbpp),
}


class _TextOnly(pickle.Unpickler):
    """Unpickler of texts; a pickle that imports anything is rejected."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"private_test_cases names {module}.{name}; expected text and nothing else")


def _private(packed: Any) -> list[Any]:
    """Parse LiveCodeBench's hidden tests: JSON, or JSON that is pickled, compressed and encoded as
    base64.
    """
    text = str(packed or "[]")
    if not text.lstrip().startswith("["):
        try:
            # Up to a bound: a short text may unpack to any size.
            unpacked = zlib.decompressobj().decompress(
                base64.b64decode(text, validate=True), MOST_PRIVATE_BYTES
            )
            text = _TextOnly(io.BytesIO(unpacked)).load()
        except (
            binascii.Error,
            zlib.error,
            pickle.UnpicklingError,
            EOFError,
            IndexError,
            KeyError,
            AttributeError,
            TypeError,
        ) as error:
            raise ValueError(
                f"private_test_cases cannot be unpacked: {type(error).__name__}: {error}"
            ) from error
    return _list(_parsed(text, "private_test_cases"), "private_test_cases")


def _column(row: Row, name: str) -> Any:
    if row.get(name) is None:
        raise RowError(f"no column {name!r}; found {', '.join(map(str, row))}")
    return row[name]


def _text(row: Row, name: str) -> str:
    value = _column(row, name)
    if not isinstance(value, str) or not value.strip():
        raise RowError(f"column {name!r} must be text, found {value!r:.80}")
    return value


def _parsed(value: Any, name: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value)
    except ValueError as error:
        raise ValueError(f"{name} is not JSON: {error}") from error


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be an object, found {value!r:.80}")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list, found {value!r:.80}")
    return value


def _lines(value: Any, name: str) -> str:
    """Return a text that may be given as the list of its lines."""
    return (
        value if isinstance(value, str) else "\n".join(map(str, _list(value, f"{name}, unless it is text,")))
    )


def _pairs(value: Any, name: str, left: str, right: str) -> Iterable[tuple[Any, Any]]:
    """Return pairs of the elements of two lists of an object."""
    lists = _object(value, name)
    return zip(*(_list(lists.get(key) or [], f"{name}.{key}") for key in (left, right)), strict=True)


def _programs(solutions: Any) -> tuple[str, ...]:
    return (
        tuple(str(one) for one in solutions if str(one).strip())
        if isinstance(solutions, Sequence) and not isinstance(solutions, str)
        else ()
    )


def _with_starter(question: str, starter: str) -> str:
    return f"{question}\n\nBegin with:\n\n```python\n{starter.strip()}\n```" if starter.strip() else question


def _called(node: ast.AST) -> str | None:
    """Return the name of the function that a node calls, if it calls one by name."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None


def dump(row: Row) -> str:
    """Return a row as shortened JSON, for messages."""
    return json.dumps(row, default=str)[:160]
