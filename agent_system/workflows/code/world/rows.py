"""Rows of programming tasks in verl's schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.workflows.code.world.problem import Case, write_ground_truth


def make_row(
    question: str,
    cases: Sequence[Case],
    *,
    function: str = "",
    reference: str = "",
    checker: str = "",
    data_source: str,
    split: str,
    index: int,
    **extra: Any,
) -> dict[str, Any]:
    """Return a row: the prompt holds the task alone, `reward_model.ground_truth` the golden tests,
    which no prompt shows.

    Args:
        question: the task; the agents' prompts state how a program is called and the form of the
            answer.
        cases: the golden tests.
        function: the function to call; empty for programs that read stdin.
        reference: a right program, for the Tester's reward; empty for none.
        checker: see `problem.Problem`.
        data_source: name of the data set, for metrics.
        split: train or test.
        index: position in the data set.
        extra: further columns of `extra_info`.

    Raises:
        AgentSystemError: the task is empty, or there is no test.
    """
    if not question.strip() or not cases:
        raise AgentSystemError(
            f"{data_source} {split} row {index}: needs a task and a test, found {question!r:.80} "
            f"and {len(cases)} tests"
        )
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": question.strip()}],
        "ability": "code",
        "reward_model": {"style": "rule", "ground_truth": write_ground_truth(function, cases)},
        "extra_info": {"split": split, "index": index, "reference": reference, "checker": checker, **extra},
    }
