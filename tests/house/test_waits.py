"""A test waits for what it is about (tests/waiting.py), and not for a time in which that usually happens."""

import ast
from collections.abc import Iterator

import pytest

from tests.house.source import ROOT, tree

# Tests that sleep, and why a slow machine does not make them fail. Nothing is added here: what has to have
# happened can be waited for, and what must not happen can be kept from happening by an event.
NOTHING_HAPPENS = "what must not happen meanwhile has not: a slow machine sees less of it"
SLEEPS = {
    "tests/agent_system/sandbox/test_pool.py::test_an_alarm_that_comes_late_ends_no_other_run": (
        "alarms of a stopped process: later ones end the run as well"
    ),
    "tests/e2e/test_evolve_training.py::"
    "test_a_search_that_was_killed_in_a_training_ends_as_one_that_was_not": (
        "it may be killed at any moment"
    ),
    "tests/trainer/test_run_state.py::test_a_process_that_is_killed_or_stands_still_has_an_old_heartbeat": (
        NOTHING_HAPPENS
    ),
    "tests/workers/rollout/test_conformance.py::test_abort_and_cancel_free_what_a_request_holds": (
        NOTHING_HAPPENS
    ),
    "tests/workers/rollout/test_conformance.py::test_a_pause_holds_replies_and_sleep_wants_an_idle_engine": (
        NOTHING_HAPPENS
    ),
    "tests/workers/rollout/test_conformance.py::"
    "test_new_base_weights_come_in_buckets_and_change_the_rows_of_every_adapter": NOTHING_HAPPENS,
    "tests/workers/rollout/test_restart.py::test_a_drained_engine_gets_no_request_until_it_is_released": (
        NOTHING_HAPPENS
    ),
    "tests/workers/rollout/test_restart.py::"
    "test_a_drain_of_an_engine_that_samples_nothing_ends_and_names_the_requests": (
        "the engine makes progress after a while, however long it was"
    ),
    "tests/workers/rollout/test_restart.py::test_an_adapter_is_drained_alone_and_a_model_with_all_adapters": (
        NOTHING_HAPPENS
    ),
    "tests/workers/rollout/test_server.py::"
    "test_the_loop_of_the_worker_is_free_while_a_bucket_is_loaded_and_what_changes_the_engine_waits": (
        NOTHING_HAPPENS
    ),
    "tests/workers/weight_transfer/test_collective.py::"
    "test_a_receiver_killed_within_an_update_fails_the_others_in_the_same_bucket": (
        "killed earlier, the receiver is one that was killed before the bucket, the other case"
    ),
}
# Statements in which a sleep is a part of a loop that looks again, or of what a test calls.
ELSEWHERE = (
    ast.While,
    ast.For,
    ast.AsyncFor,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Lambda,
    ast.ClassDef,
)


def sleeps(node: ast.AST) -> Iterator[ast.Call]:
    """Calls of `sleep`, with more than 0 seconds, in the statements of a function itself."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ELSEWHERE):
            continue
        if isinstance(child, ast.Call) and ast.unparse(child.func) in ("time.sleep", "asyncio.sleep"):
            is_yield = child.args and isinstance(child.args[0], ast.Constant) and not child.args[0].value
            if not is_yield:
                yield child
        yield from sleeps(child)


def sleeping(source: ast.Module) -> Iterator[str]:
    """Names of the tests that call `sleep` themselves and wait for it."""
    for node in ast.walk(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            waits = (n.value for n in ast.walk(node) if isinstance(n, ast.Await | ast.Expr))
            awaited = {id(value) for value in waits}
            if any(id(call) in awaited for call in sleeps(node)):
                yield node.name


def test_tests_wait_for_events_and_not_for_a_time() -> None:
    found = set()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "sleep(" in path.read_text(encoding="utf-8"):
            found |= {f"{path.relative_to(ROOT).as_posix()}::{name}" for name in sleeping(tree(path))}
    assert sorted(found - set(SLEEPS)) == [], (
        "a slow machine has not done by then what the test waits for: use tests/waiting.py"
    )
    assert sorted(set(SLEEPS) - found) == [], "they do not sleep any more: take them out of SLEEPS"


@pytest.mark.parametrize(
    ("body", "sleeps_itself"),
    [
        ("    time.sleep(1)\n    assert done", True),
        ("    await asyncio.sleep(wait)\n    assert done", True),
        ("    with x:\n        time.sleep(1)", True),
        ("    while not done:\n        time.sleep(1)", False),
        ("    def slow():\n        time.sleep(1)\n    assert slow", False),
        ("    await asyncio.sleep(0)", False),
        ("    task = create_task(asyncio.sleep(60))", False),
    ],
)
def test_a_sleep_of_the_test_itself_is_told_from_others(body: str, sleeps_itself: bool) -> None:
    source = ast.parse(f"async def test_x():\n{body}\n")
    assert list(sleeping(source)) == ["test_x"] * sleeps_itself
