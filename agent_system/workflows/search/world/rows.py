"""Rows of questions in verl's schema; `examples/data_preprocess/search_sets.py` makes those of NQ,
HotpotQA and other sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.workflows.search.world.answers import AnswerError, accepted_answers, can_be_matched

QUESTION_MARK = "Question:"
ANSWER_FIELDS = ("golden_answers", "answers", "answer", "possible_answers")
# Further spellings of the answer, beside it: MuSiQue, 2WikiMultihopQA, TriviaQA's flat form.
ALIAS_FIELDS = ("answer_aliases", "answers_aliases", "aliases", "normalized_aliases", "possible_aliases")
# SQuAD's {"text": [...], "answer_start": [...]}, TriviaQA's {"value": ..., "aliases": [...]}.
ANSWER_PARTS = ("text", "value", "aliases")


def make_row(
    question: str, answers: Sequence[str], *, data_source: str, split: str, index: int, **extra: Any
) -> dict[str, Any]:
    """Return a row in verl's schema with Search-R1's ground truth,
    `{"target": [accepted answers]}`.

    Raises:
        AgentSystemError: the question is empty, or no answer can be matched.
    """
    targets = [answer.strip() for answer in answers if answer.strip()]
    if not question.strip() or not can_be_matched(targets):
        raise AgentSystemError(
            f"{data_source} {split} row {index}: needs a question and an answer with a word other "
            f"than an article, found {question!r:.80} and {answers!r:.80}"
        )
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": question.strip()}],
        "ability": "search",
        "reward_model": {"style": "rule", "ground_truth": {"target": targets}},
        "extra_info": {"split": split, "index": index, **extra},
    }


def find_question(row: Mapping[str, Any]) -> str:
    """Return the question of a row: its `question`, else the text after `Question:` in its prompt;
    empty if there is none.
    """
    if isinstance(row.get("question"), str) and row["question"].strip():
        return row["question"].strip()
    prompt = row.get("prompt")
    if isinstance(prompt, list):
        prompt = "\n\n".join(
            str(m.get("content", "")) for m in prompt if isinstance(m, dict) and m.get("role") == "user"
        )
    return str(prompt or "").rpartition(QUESTION_MARK)[2].strip()


def find_answers(row: Mapping[str, Any]) -> list[str]:
    """Return the accepted answers of a row of NQ, HotpotQA, PopQA, FlashRAG or Search-R1; empty if
    there are none.

    Raises:
        AnswerError: a column cannot be read; the message names it.
    """
    for name in ANSWER_FIELDS:
        value = row.get(name)
        parts = [value.get(part) for part in ANSWER_PARTS] if isinstance(value, Mapping) else [value]
        if answers := [answer for part in parts for answer in _read(name, part)]:
            aliases = [answer for field in ALIAS_FIELDS for answer in _read(field, row.get(field))]
            return list(dict.fromkeys([*answers, *aliases]))
    judged = row.get("reward_model") or {}
    if not isinstance(judged, Mapping):
        raise AnswerError(
            f'reward_model is {judged!r:.100}, expected {{"style": "rule", "ground_truth": ...}}; put the '
            "answers there"
        )
    return _read("reward_model.ground_truth", judged.get("ground_truth"))


def _read(column: str, value: Any) -> list[str]:
    try:
        return accepted_answers(value)
    except AnswerError as error:
        raise AnswerError(f"{column}: {error}") from error
