"""Comparison of an answer with the accepted ones, by the metrics of SQuAD and HotpotQA."""

from __future__ import annotations

import ast
import io
import json
import math
import re
import string
import tokenize
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from agent_system.environment import Task
from agent_system.errors import AgentSystemError

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = ("yes", "no", "noanswer")
# Of lists that numpy prints: `array(['a', 'b'], dtype=object)`.
_ARRAY = re.compile(r"\barray\((\[.*?\])(?:,\s*dtype=[^()]*)?\)", re.DOTALL)


class AnswerError(AgentSystemError):
    """The accepted answers of a row cannot be read."""


def normalize(text: str) -> str:
    """Return `text` in lower case without punctuation, articles and double spaces (Rajpurkar et al.
    2016). Letters with accents are equal in both ways in which Unicode has them.
    """
    composed = unicodedata.normalize("NFC", text)
    return " ".join(_ARTICLES.sub(" ", composed.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, accepted: Sequence[str]) -> float:
    """Return 1 when the answer equals an accepted one after `normalize`, else 0."""
    normalized_answer = normalize(answer)
    return float(bool(normalized_answer) and any(normalized_answer == normalize(truth) for truth in accepted))


def f1_score(answer: str, accepted: Sequence[str]) -> float:
    """Return the highest F1 of words with an accepted answer; yes and no have no partial score
    (Yang et al. 2018).
    """
    return max((_f1(normalize(answer), normalize(truth)) for truth in accepted), default=0.0)


def contains(texts: Sequence[str], accepted: Sequence[str]) -> bool:
    """Return whether one of the texts contains an accepted answer, as whole words."""
    truths = [f" {normalize(truth)} " for truth in accepted if normalize(truth)]
    return any(truth in f" {normalize(text)} " for text in texts for truth in truths)


def accepted_answers(ground_truth: Any) -> list[str]:
    """Return the accepted answers of a row; may be empty.

    Args:
        ground_truth: a text or number, a list of them, such a list as JSON text (PopQA) or as
            Python prints it, or any of these as Search-R1's `{"target": ...}`, which may be JSON
            text as well.

    Raises:
        AnswerError: an answer is neither text nor number.
    """
    if isinstance(ground_truth, str):
        ground_truth = _stored(ground_truth)
    if isinstance(ground_truth, Mapping):
        ground_truth = ground_truth.get("target")
    if isinstance(ground_truth, str):
        ground_truth = _stored(ground_truth)
    several = (
        ground_truth
        if isinstance(ground_truth, Sequence) and not isinstance(ground_truth, (str, bytes))
        else [ground_truth]
    )
    for one in several:
        if one is not None and not _is_plain(one):
            raise AnswerError(
                f"an accepted answer is {one!r:.100} ({type(one).__name__}), expected a text or a number; "
                'write a text, a list of texts, or {"target": [...]}'
            )
    # A column of whole numbers with a missing one is stored as floats.
    whole = [int(one) if isinstance(one, float) and one.is_integer() else one for one in several]
    # What is missing among numbers is none.
    answers = [one for one in whole if not (one is None or (isinstance(one, float) and math.isnan(one)))]
    return [text for one in answers if (text := str(one).strip())]


def can_be_matched(accepted: Sequence[str]) -> bool:
    """Return whether any answer can be right: `exact_match` rejects all if the accepted answers are
    articles or punctuation only.
    """
    return any(map(normalize, accepted))


def answers_of(task: Task) -> list[str]:
    """Return the accepted answers of a task. Raise AgentSystemError for none that can be given."""
    try:
        accepted = accepted_answers(task.ground_truth)
    except AnswerError as error:
        raise AgentSystemError(f"task {task.task_id!r}: reward_model.ground_truth: {error}") from error
    if not can_be_matched(accepted):
        raise AgentSystemError(
            f"task {task.task_id!r} has no answer in reward_model.ground_truth that could be "
            "given; expected a text, a list of texts or "
            f'{{"target": [...]}}, with a word other than an article, found {task.ground_truth!r:.100}'
        )
    return accepted


def searchable(accepted: Sequence[str]) -> list[str]:
    """Return the accepted answers that can be looked for in passages: not yes and no, which occur
    in any passage.
    """
    return [truth for truth in accepted if normalize(truth) not in ("", *_CLOSED)]


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


def _stored(text: str) -> Any:
    """Return the list, or the object with `target`, that `text` is in JSON or as Python or numpy
    prints it, else the text.
    """
    if text.lstrip()[:1] not in ("[", "{") and not _ARRAY.fullmatch(text.strip()):
        return text
    for read in (json.loads, _printed):
        try:
            value = read(text.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError):
            continue
        if isinstance(value, list) or (isinstance(value, Mapping) and "target" in value):
            return value
    return text


def _printed(text: str) -> Any:
    """Return a value that Python has printed. Raises what `literal_eval` and `tokenize` do.

    numpy prints no commas between texts, which Python would read as one.
    """
    parts: list[str] = []
    is_text = False
    for token in tokenize.generate_tokens(io.StringIO(_ARRAY.sub(r"\1", text)).readline):
        if token.type in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            continue
        if is_text and token.type == tokenize.STRING:
            parts.append(",")
        parts.append(token.string)
        is_text = token.type == tokenize.STRING
    return ast.literal_eval(" ".join(parts))


def _f1(answer: str, truth: str) -> float:
    if answer != truth and (answer in _CLOSED or truth in _CLOSED):
        return 0.0
    words = answer.split()
    truth_words = truth.split()
    common = (Counter(words) & Counter(truth_words)).total()
    return 2 * common / (len(words) + len(truth_words)) if common else 0.0
