"""Conversion of a dataset row in verl's schema to a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_system.environment import Task
from agent_system.errors import AgentSystemError


def task_from_row(row: Mapping[str, Any], prompt_key: str = "prompt") -> Task:
    """Return the task of one row.

    Args:
        row: `data_source`, `prompt` (chat messages or text), `reward_model.ground_truth` (optional
            here), `extra_info`; `task_id` if the dataset gave one.
        prompt_key: column with the messages. `Task.prompt` is made of the user messages: agents
            have their own system prompts.

    Raises:
        AgentSystemError: no user message.
    """
    task_id = str(row.get("task_id") or (row.get("extra_info") or {}).get("index", ""))
    messages = row.get("raw_prompt") or row.get(prompt_key) or []
    texts = (
        [messages] if isinstance(messages, str) else [m["content"] for m in messages if m["role"] == "user"]
    )
    prompt = "\n\n".join(text.strip() for text in texts if text.strip())
    if not prompt:
        raise AgentSystemError(
            f"task {task_id!r}: column {prompt_key!r} has no user message, found {messages!r:.120}"
        )
    truth = (row.get("reward_model") or {}).get("ground_truth")
    chat = (
        [{"role": "user", "content": messages}] if isinstance(messages, str) else [dict(m) for m in messages]
    )
    return Task(
        task_id,
        prompt,
        str(row.get("data_source") or ""),
        truth,
        dict(row.get("extra_info") or {}),
        messages=chat,
    )
