"""From a dataset row in verl's schema to a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_system.environment import Task
from agent_system.errors import AgentSystemError
from agent_system.projection import last_boxed


def task_from_row(row: Mapping[str, Any], prompt_key: str = "prompt") -> Task:
    r"""Make the task of one row.

    Args:
        row: `data_source`, `prompt` (chat messages), `reward_model.ground_truth`, `extra_info`; `task_id` if the dataset gave one.
        prompt_key: column with the messages. The problem is what the user says in them: the agents bring their own roles.

    Raises:
        AgentSystemError: no user message or no ground truth.
    """
    task_id = str(row.get("task_id") or (row.get("extra_info") or {}).get("index", ""))
    messages = row.get(prompt_key) or []
    said = [messages] if isinstance(messages, str) else [m["content"] for m in messages if m["role"] == "user"]
    problem = "\n\n".join(text.strip() for text in said if text.strip())
    if not problem:
        raise AgentSystemError(f"task {task_id!r}: column {prompt_key!r} has no user message, found {messages!r:.120}")
    truth = (row.get("reward_model") or {}).get("ground_truth")
    if truth is None or not str(truth).strip():
        raise AgentSystemError(f"task {task_id!r}: reward_model.ground_truth is missing, found {row.get('reward_model')!r:.120}")
    answer = last_boxed(str(truth)) or str(truth).strip()
    return Task(task_id, problem, str(row.get("data_source") or ""), answer, dict(row.get("extra_info") or {}))


def make_row(problem: str, ground_truth: str, *, data_source: str, split: str, index: int, **extra: Any) -> dict[str, Any]:
    """Make a row in verl's schema: what `task_from_row` reads, and what a parquet file of a data set holds.

    Args:
        problem: the question alone; the agents' prompts say how to answer.
        ground_truth: the final answer alone.
        data_source: name of the data set, for metrics.
        split: train or test.
        index: position in the data set.
        extra: more columns of `extra_info`.

    Raises:
        AgentSystemError: no problem, or no answer.
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

    A list of one answer is that answer; several are joined by commas.
    """
    answer = row.get("answer", row.get("final_answer"))
    if isinstance(answer, list):
        answer = ", ".join(str(one) for one in answer)
    if answer is not None and str(answer).strip():
        return last_boxed(str(answer)) or str(answer).strip()
    return last_boxed(str(row.get("solution") or ""))
