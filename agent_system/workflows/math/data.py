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
