"""Conversion of tests that are assertions (HumanEval, MBPP) into calls with expected values.

An assertion in the process of the tested program proves nothing, because the program could forge
its result. So the assertions are run once, with the reference solution: its arguments and return
values become the golden tests, and a program is called from outside with the same arguments. Where
an assertion requires something other than a certain value (`abs(f(x) - y) < 1e-6`,
`set(f(x)) == ...`), the assertions also become a special judge: they are run again, in a process
without the program, with the program's answers substituted for the reference's wherever the
arguments are the same.

Arguments and answers keep Python's types. They are encoded as JSON; a type without a JSON form is
an object with one key that begins with `$`: `{"$tuple": [1, 2]}`. Keyword arguments are
`{"$named": {...}}` after the positional ones. The answer of a function that modifies its arguments
is `{"$changed": [value, arguments]}`. A value that cannot be encoded is `{"$other": type}`.
"""

from __future__ import annotations

import ast
import json
from textwrap import indent
from typing import Any

from agent_system.sandbox import FunctionCall, Reason, SandboxError, shared_sandbox
from agent_system.sandbox.jail.callee import STARTER_CLASS
from agent_system.workflows.code.world.problem import Case

# Sources that run in the sandbox, inside functions, so that they do not collide with names of a
# program. A program may end in the middle of a statement or a string: the `0` after it and the
# absence of triple quotes keep the following source from completing it.
VALUES = """
def encode(value, consume=True):
    import json
    def inside(values):
        return [encode(one, consume) for one in values]
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 10000 else {"$int": hex(value)}
    if isinstance(value, float):
        return float(value)
    if isinstance(value, list):
        return inside(value)
    if isinstance(value, tuple):
        return {"$tuple": inside(value)}
    if isinstance(value, (set, frozenset)):
        return {"$set" if isinstance(value, set) else "$frozenset": sorted(inside(value), key=json.dumps)}
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return dict(zip(value, inside(value.values())))
        return {"$dict": [inside(pair) for pair in value.items()]}
    if isinstance(value, complex):
        return {"$complex": [value.real, value.imag]}
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": list(value)}
    if isinstance(value, range):
        return {"$range": list(value)}
    if hasattr(value, "__next__") and consume:
        return {"$iterator": inside(value)}
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return encode(value.item(), consume)
    if hasattr(value, "as_integer_ratio") and value == float(value):
        return float(value)
    return {"$other": type(value).__name__}

def decode(value):
    if isinstance(value, list):
        return [decode(one) for one in value]
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), None)
    if tag is None or not tag.startswith("$"):
        return {key: decode(one) for key, one in value.items()}
    held = value[tag]
    if tag == "$int":
        return int(held, 16)
    if tag == "$dict":
        return {decode(key): decode(one) for key, one in held}
    if tag == "$complex":
        return complex(*held)
    if tag == "$range":
        step = held[1] - held[0] if len(held) > 1 else 1
        return range(held[0], held[-1] + step, step) if held else range(0)
    kinds = {"$tuple": tuple, "$set": set, "$frozenset": frozenset, "$bytes": bytes, "$iterator": iter}
    return kinds[tag](decode(held)) if tag in kinds else object()

def write(args, named):
    return [*(encode(one, False) for one in args), *([{"$named": encode(named, False)}] if named else [])]

def read(given):
    named = bool(given) and isinstance(given[-1], dict) and "$named" in given[-1]
    return [decode(one) for one in given[: len(given) - named]], decode(given[-1]["$named"]) if named else {}

def answered(value, before, args, named):
    import json
    found, after = encode(value), write(args, named)
    return found if json.dumps(after) == json.dumps(before) else {"$changed": [found, after]}
"""
# `typed`: the arguments are encoded as above; otherwise they are plain JSON, positional only.
ANSWER_NAME = "_verl_answer"
ANSWER = f"""
0
def {ANSWER_NAME}(name, given, typed):
{indent(VALUES, "    ")}
    args, named = read(given) if typed else (given, {{}})
    before = write(args, named)
    found = globals()
    function = found[name] if name in found else getattr(found["{STARTER_CLASS}"](), name)
    return answered(function(*args, **named), before, args, named)
"""
# Runs the assertions. `answer(args, named, reference)` provides the return value of each of their
# calls, including those by the function's own name. Random numbers are the same in every run,
# independently of the reference's draws.
RUN = """
def run(name, answer):
    import random
    function, running = _verl_function, []
    def candidate(*args, **named):
        if running:
            return function(*args, **named)
        def reference():
            running.append(name)
            state = random.getstate()
            try:
                value = function(*args, **named)
                return iter(list(value)) if hasattr(value, "__next__") else value
            finally:
                random.setstate(state)
                running.pop()
        return answer(args, named, reference)
    globals()[name] = candidate
    random.seed(0)
    _verl_check(candidate)
"""
RECORD = f"""
def _record(name, first, most):
    import itertools, json
{indent(VALUES + RUN, "    ")}
    calls = []
    def answer(args, named, reference):
        call = [write(args, named), {{"$other": "error"}}]
        calls.append(call)
        value = shown = reference()
        if hasattr(value, "__next__"):
            value, shown = itertools.tee(value)
        call[1] = answered(shown, call[0], args, named)
        return value
    run(name, answer)
    page, size = [], 0
    for call in calls[first:]:
        written = len(json.dumps(call))
        size += min(written, most)
        if page and size > most:
            break
        page.append(call if written <= most else [[], {{"$other": "large"}}])
    return [len(calls), page]
"""
JUDGE = f"""
def _judges(name):
    import json, sys
{indent(VALUES + RUN, "    ")}
    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(one) for one in value]
        return {{key: plain(one) for key, one in value.items()}} if isinstance(value, dict) else value

    def like(found, model):
        if isinstance(model, (set, frozenset)) and isinstance(found, list):
            return type(model)(found)
        if isinstance(model, (list, tuple)) and isinstance(found, list):
            models = [*model, *[model[0] if model else None] * len(found)]
            return type(model)(like(one, other) for one, other in zip(found, models))
        return found

    def become(old, new):
        if isinstance(old, (list, tuple)) and type(old) is type(new) and len(old) == len(new):
            for i, (one, other) in enumerate(zip(old, new)):
                if not become(one, other) and isinstance(old, list):
                    old[i] = other
        elif isinstance(old, list):
            old[:] = new
        elif isinstance(old, (dict, set)):
            old.clear()
            old.update(new)
        else:
            return False
        return True

    def judge(given, expected, found):
        met = []
        def answer(args, named, reference):
            same, value = not named and plain(args) == given, reference()
            met.append(same)
            return like(found, value) if same else value
        return passes(answer) and any(met)

    def judge_answers():
        known, met = {{json.dumps(given): found for given, found in json.load(sys.stdin)}}, set()
        def answer(args, named, reference):
            key = json.dumps(write(args, named))
            if key not in known:
                return reference()
            met.add(key)
            found = known[key]
            if isinstance(found, dict) and "$changed" in found:
                found, after = found["$changed"]
                changed, renamed = read(after)
                for old, new in [*zip(args, changed), *((named[one], renamed[one]) for one in named)]:
                    become(old, new)
            return decode(found)
        return passes(answer) and len(met) == len(known)

    def passes(answer):
        try:
            run(name, answer)
        except AssertionError:
            return False
        return True

    return judge, judge_answers

"""
# For results of these functions, equality with an answer is the same as `judge.same_python`.
BUILT_IN = frozenset(
    {
        "bool",
        "dict",
        "float",
        "frozenset",
        "int",
        "len",
        "list",
        "max",
        "min",
        "range",
        "round",
        "set",
        "sorted",
        "str",
        "sum",
        "tuple",
    }
)


async def record(reference: str, check: str, function: str) -> tuple[list[Case], int, str] | str:
    """Run the assertions with the reference.

    Returns:
        The distinct calls as tests; the number of calls left out because their arguments or answer
        cannot be encoded or exceed `sandbox.limits.output_kb`; the special judge that the
        assertions need, or an empty text. When the reference fails them, the cause.

    Raises:
        SandboxError: the sandbox failed.
    """
    tested = _with_assertions(reference, check, function)
    source = f"{tested}\n{RECORD}"
    most = shared_sandbox().settings.limits.output_kb * 400
    calls: list[Any] = []
    count = 1
    while len(calls) < count:
        result = (
            await shared_sandbox().run_tests(source, [FunctionCall("_record", [function, len(calls), most])])
        )[0]
        if result.reason is Reason.SANDBOX:
            raise SandboxError(f"a reference solution could not be run: {result.message}")
        if not result.ok:
            last = result.stderr.strip().rpartition("\n")[2]
            return f"{result.reason}: {last}" if last else str(result.reason)
        count, page = result.returned()
        calls += page
    written = [
        (arguments, answer)
        for arguments, answer in calls
        if '{"$other":' not in json.dumps([arguments, answer])
    ]
    whole = {json.dumps(arguments): Case(arguments, answer) for arguments, answer in written}
    changeable = any(isinstance(one, (list, dict)) for arguments, _ in written for one in arguments)
    judge = f"{tested}\n{JUDGE}judge, judge_answers = _judges({function!r})\n"
    return (
        list(whole.values()),
        len(calls) - len(written),
        judge if needs_judge(check, function, changeable) else "",
    )


def _with_assertions(reference: str, check: str, function: str) -> str:
    """Return the reference and the assertions, whose `check` becomes `_verl_check`: the function
    may have the name `check` as well.
    """
    names = (f"_verl_function = {function}", check, "_verl_check = check", f"{function} = _verl_function")
    return "\n".join((reference, *names))


def needs_judge(check: str, function: str, changeable: bool = False) -> bool:
    """Return whether `check` has anything but assertions `candidate(...) == value`, for which
    equality of the value suffices.

    Args:
        check: source of the assertions.
        function: the function's own name, by which the assertions may also call it.
        changeable: a call may modify its arguments; then they must be literals in the call, so that
            no other assertion depends on them.
    """
    try:
        nodes = list(ast.walk(ast.parse(check)))
    except (SyntaxError, ValueError, RecursionError):
        return True
    names = {"candidate", function}
    used = sum(
        isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load) for node in nodes
    )
    for node in nodes:
        if isinstance(node, ast.Try | ast.With):
            return True
        if isinstance(node, ast.Assign):
            targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
            used -= (
                targets == [function] and isinstance(node.value, ast.Name) and node.value.id == "candidate"
            )
        if isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant):
            if not _is_plain(node.test, names, changeable):
                return True
            used -= 1
    return used > 0


def _is_plain(test: ast.expr, names: set[str], changeable: bool) -> bool:
    """Return whether `test` compares one call of a function in `names` for equality with a value
    that needs no such call.
    """
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    sides = (test.left, test.comparators[0])
    call, value = sides if _calls(sides[0], names) else sides[::-1]
    if not isinstance(call, ast.Call) or not _calls(call, names):
        return False
    if any(isinstance(node, ast.Call) and not _calls(node, BUILT_IN) for node in ast.walk(value)):
        return False
    inside = [node for part in ast.iter_child_nodes(call) if part is not call.func for node in ast.walk(part)]
    return not (changeable and any(isinstance(node, ast.Name) for node in inside))


def _calls(node: ast.AST, names: set[str] | frozenset[str]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
