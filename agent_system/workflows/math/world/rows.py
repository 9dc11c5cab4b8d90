"""Rows of mathematics in verl's schema, for the scripts in `examples/data_preprocess`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.projection import last_boxed


def make_row(problem: str, ground_truth: str, *, data_source: str, split: str, index: int, **extra: Any) -> dict[str, Any]:
    """Return a row in verl's schema, which `agent_system.task.task_from_row` reads.

    Args:
        problem: the question alone; the agents' prompts state the form of the answer.
        ground_truth: the final answer alone.
        data_source: name of the data set, for metrics.
        split: train or test.
        index: position in the data set.
        extra: further columns of `extra_info`.

    Raises:
        AgentSystemError: the problem or the answer is empty.
    """
    if not problem.strip() or not ground_truth.strip():
        raise AgentSystemError(
            f"{data_source} {split} row {index}: needs a problem and an answer, found {problem!r:.80} and {ground_truth!r:.80}"
        )
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": problem.strip()}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": ground_truth.strip()},
        "extra_info": {"split": split, "index": index, **extra},
    }


def find_answer(row: Mapping[str, Any]) -> str:
    r"""Return the final answer of a MATH-style row: its `answer`, else the last `\boxed{}` of its `solution`; empty if there is none.

    The answers of a list are joined by commas.
    """
    answer = row.get("answer", row.get("final_answer"))
    if isinstance(answer, list):
        answer = ", ".join(str(one) for one in answer)
    if answer is not None and str(answer).strip():
        return last_boxed(str(answer)) or str(answer).strip()
    return last_boxed(str(row.get("solution") or ""))
