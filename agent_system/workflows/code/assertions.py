"""Tests that are assertions (HumanEval, MBPP), made into calls with values.

An assertion in the process of the program that it tests proves nothing: the program could forge it. So the assertions are run once, with
the reference solution; what they call it with and what it returns become the golden tests, and a program is called from outside with
the same arguments. Where an assertion asks for something else than a certain value (`abs(f(x) - y) < 1e-6`, `set(f(x)) == ...`), the
assertions also become a special judge: they are run again, in a process without the program, with the program's answer in the place of one
of the reference's.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from typing import Any

from agent_system.sandbox import Call, Reason, SandboxError, shared_sandbox
from agent_system.workflows.code.problem import Case

RECORD = """
def _plain(value):
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return {key: _plain(one) for key, one in value.items()} if isinstance(value, dict) else value

def _json(value):
    import json
    try:
        there = json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return None
    return [there] if there == _plain(value) else None

def _record(name):
    calls, function = [], globals()[name]
    def candidate(*args, **kwargs):
        given = None if kwargs else _json(args)
        value = function(*args, **kwargs)
        calls.append([given, _json(value)])
        return value
    check(candidate)
    return calls
"""
JUDGE = """
def _like(found, model):
    if isinstance(model, (list, tuple)) and isinstance(found, list):
        models = [*model, *[model[0] if model else None] * len(found)]
        return type(model)(_like(one, other) for one, other in zip(found, models))
    return found

def judge(given, expected, found):
    import json
    places, function = json.loads(_GIVEN), globals()[_NAME]
    if given not in places:
        return False
    place, called = places.index(given), []
    def candidate(*args, **kwargs):
        called.append(args)
        value = function(*args, **kwargs)
        return _like(found, value) if len(called) == place + 1 else value
    try:
        check(candidate)
    except AssertionError:
        return False
    return len(called) > place
"""


async def record(reference: str, check: str, function: str) -> tuple[list[Case], int, str] | None:
    """Run the assertions with the reference.

    Returns:
        The calls as tests, each once; how many calls were left out because JSON cannot hold their arguments or value; the special judge
        that the assertions need, or an empty text. None when the reference fails them.

    Raises:
        SandboxError: the sandbox failed.
    """
    result = (await shared_sandbox().run_tests(f"{reference}\n{check}\n{RECORD}", [Call("_record", [function])]))[0]
    if result.reason is Reason.SANDBOX:
        raise SandboxError(f"a reference solution could not be run: {result.message}")
    if not result.ok:
        return None
    calls: list[Any] = result.returned()
    whole = {json.dumps(given): Case(given[0], value[0]) for given, value in calls if given is not None and value is not None}
    missing = sum(given is None or value is None for given, value in calls)
    judge = judge_source(reference, check, function, [given and given[0] for given, _ in calls]) if asks_more(check, function) else ""
    return list(whole.values()), missing, judge


def judge_source(reference: str, check: str, function: str, places: Sequence[Any]) -> str:
    """The source of a special judge; `places` are the arguments of each call that the assertions make, None where JSON cannot hold them."""
    return f"{reference}\n{check}\n_GIVEN, _NAME = {json.dumps(places)!r}, {function!r}\n{JUDGE}"


def asks_more(check: str, function: str) -> bool:
    """Whether an assertion is anything but `candidate(...) == value`."""
    try:
        asserts = [node.test for node in ast.walk(ast.parse(check)) if isinstance(node, ast.Assert)]
    except (SyntaxError, ValueError, RecursionError):
        return True
    return not all(_is_plain(test, ("candidate", function)) for test in asserts)


def _is_plain(test: ast.expr, names: Sequence[str]) -> bool:
    if isinstance(test, ast.Constant):
        return True
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    return any(
        isinstance(side, ast.Call) and isinstance(side.func, ast.Name) and side.func.id in names for side in (test.left, *test.comparators)
    )
