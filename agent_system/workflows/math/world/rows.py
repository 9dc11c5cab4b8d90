"""Rows of mathematics in verl's schema, for the scripts in `examples/data_preprocess`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.projection import last_boxed
from agent_system.workflows.math.world.exact import exact_number
from agent_system.workflows.math.world.grade import MAX_ANSWER_CHARS

ONLY_AS_TEXT = "have an answer that the grader cannot read: only its own text is right"
# Words that sets write where a problem has no answer that can be compared.
NO_ANSWERS = {"proof", "notfound", "not found", "none", "n/a", "na", "nan", "null"}
# A cell that holds messages or objects may be their JSON text; an answer such as `[-2, 7]` is its
# own.
STORED_AS_TEXT = ("prompt", "messages", "reward_model", "extra_info")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_GSM8K = re.compile(r"(?:^|\n)\s*####\s*(.+?)\s*\Z")


def names_no_answer(answer: str) -> bool:
    """Return whether an answer says that there is none, such as "proof" for a problem that asks for
    one.
    """
    return answer.strip().strip("\"'.$").lower() in NO_ANSWERS


def make_row(
    problem: str, ground_truth: str, *, data_source: str, split: str, index: int, **extra: Any
) -> dict[str, Any]:
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
            f"{data_source} {split} row {index}: needs a problem and an answer, found "
            f"{problem!r:.80} and {ground_truth!r:.80}"
        )
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": problem.strip()}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": ground_truth.strip()},
        "extra_info": {"split": split, "index": index, **extra},
    }


def only_as_text(answer: str) -> bool:
    """Return whether the grader cannot read an answer, so that only its own text is equal to it."""
    from agent_system.workflows.math.world import algebra

    if len(answer) > MAX_ANSWER_CHARS:
        return True
    try:
        return exact_number(answer) is None and not algebra.readable(answer)
    except RecursionError:
        return True


def find_problem(row: Mapping[str, Any]) -> str:
    """Return the question of a row: its `problem` or `question`, else the user's messages of its
    `prompt`.
    """
    text = row.get("problem") or row.get("question")
    messages = row.get("prompt")
    if not text and isinstance(messages, list):
        text = "\n\n".join(
            str(m.get("content") or "")
            for m in messages
            if isinstance(m, Mapping) and m.get("role") == "user"
        )
    return str(text or "" if text or isinstance(messages, list) else messages or "").strip()


def find_answer(row: Mapping[str, Any]) -> str:
    r"""Return the final answer of a MATH-style row: its `answer`, its ground truth in verl's
    schema, else the last `\boxed{}` of its `solution`; empty if there is none.

    The answers of a list are joined by commas. Of an answer that is a whole solution of GSM8K, it
    is what follows `####`.
    """
    judged = row.get("reward_model")
    truth = judged.get("ground_truth") if isinstance(judged, Mapping) else None
    candidates = (row.get("answer"), row.get("final_answer"), truth)
    answer = next((one for one in candidates if one not in (None, []) and str(one).strip()), None)
    answer = _texts(answer) or answer
    if isinstance(answer, list):
        answer = ", ".join(str(one) for one in answer)
    if answer is not None and str(answer).strip():
        text = str(answer).strip()
        marked = _GSM8K.search(text)
        return last_boxed(text) or (_THOUSANDS.sub("", marked[1]) if marked else text)
    return last_boxed(str(row.get("solution") or ""))


def _texts(answer: Any) -> list[str]:
    """Return the texts of a list stored as JSON text; empty for all else, as the interval
    `[-2, 7]`.
    """
    try:
        texts = json.loads(answer) if isinstance(answer, str) and answer.lstrip()[:1] == "[" else []
    except (ValueError, RecursionError):
        return []
    return texts if all(isinstance(one, str) for one in texts) else []
