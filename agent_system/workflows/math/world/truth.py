r"""The ground truth of a row as the text of one answer."""

from __future__ import annotations

import json
import math
from typing import Any

from agent_system.environment import Task
from agent_system.errors import AgentSystemError
from agent_system.projection import last_boxed


def truth_text(task: Task) -> str:
    r"""Return the answer of a task: the last `\boxed{}` of a whole solution, else the text itself.

    Several answers, as a list or as the JSON text of one, are one text with commas, as in the
    converted sets.

    Raises:
        AgentSystemError: the task has none, or an object or a truth value, which no answer equals.
    """
    truth = _parsed(task.ground_truth)
    answers = truth if isinstance(truth, (list, tuple)) else [truth]
    for answer in answers:
        if isinstance(answer, bool) or not isinstance(answer, (str, int, float, type(None))):
            raise AgentSystemError(
                f"task {task.task_id!r}: reward_model.ground_truth has {answer!r:.80} "
                f"({type(answer).__name__}), expected the answer as a text or a number, or a list of them"
            )
    texts = [text for answer in answers if (text := _text(answer))]
    if not texts:
        raise AgentSystemError(
            f"task {task.task_id!r} has no ground truth; reward_model.ground_truth must be the answer"
        )
    return ", ".join(last_boxed(text) or text for text in texts)


def _parsed(truth: Any) -> Any:
    """Return the list of texts that a truth is in JSON, else the truth: `[1, 2]` is an interval."""
    if not isinstance(truth, str) or truth.lstrip()[:1] != "[":
        return truth
    try:
        texts = json.loads(truth)
    except (ValueError, RecursionError):
        return truth
    return texts if texts and all(isinstance(one, str) for one in texts) else truth


def _text(answer: str | float | None) -> str:
    # A column of whole numbers with a missing one is stored as floats.
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    is_missing = answer is None or (isinstance(answer, float) and math.isnan(answer))
    return "" if is_missing else str(answer).strip()
