"""Rows of questions in verl's schema, and the generated set:

    python -m agent_system.workflows.search.data --out data/search --seed 0 --train 2000 --test 200

leaves train.parquet, test.parquet and the corpus.jsonl that answers both. `examples/data_preprocess/search_sets.py` makes rows of NQ,
HotpotQA and the other sets of Search-R1.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.workflows.search.generate import generate_split, to_document, to_row
from agent_system.workflows.search.reward import AnswerError, accepted_answers, can_be_given

logger = logging.getLogger(__name__)
QUESTION_MARK = "Question:"
ANSWER_FIELDS = ("golden_answers", "answers", "answer", "possible_answers")
# SQuAD's {"text": [...], "answer_start": [...]}, TriviaQA's {"value": ..., "aliases": [...]}.
ANSWER_PARTS = ("text", "value", "aliases")


def make_row(question: str, answers: Sequence[str], *, data_source: str, split: str, index: int, **extra: Any) -> dict[str, Any]:
    """Make a row in verl's schema with Search-R1's ground truth, `{"target": [accepted answers]}`.

    Raises:
        AgentSystemError: no question, or no answer that can be given.
    """
    targets = [answer.strip() for answer in answers if answer.strip()]
    if not question.strip() or not can_be_given(targets):
        raise AgentSystemError(
            f"{data_source} {split} row {index}: needs a question and an answer with a word that is no article, "
            f"found {question!r:.80} and {answers!r:.80}"
        )
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": question.strip()}],
        "ability": "search",
        "reward_model": {"style": "rule", "ground_truth": {"target": targets}},
        "extra_info": {"split": split, "index": index, **extra},
    }


def find_question(row: Mapping[str, Any]) -> str:
    """Return the question of a row: its `question`, else what its prompt says after `Question:`; empty if there is none."""
    if isinstance(row.get("question"), str) and row["question"].strip():
        return row["question"].strip()
    prompt = row.get("prompt")
    if isinstance(prompt, list):
        prompt = "\n\n".join(str(m.get("content", "")) for m in prompt if isinstance(m, dict) and m.get("role") == "user")
    return str(prompt or "").rpartition(QUESTION_MARK)[2].strip()


def find_answers(row: Mapping[str, Any]) -> list[str]:
    """Return the accepted answers of a row of NQ, HotpotQA, PopQA, FlashRAG or Search-R1; empty if there are none.

    Raises:
        AnswerError: naming the column that cannot be read.
    """
    for name in ANSWER_FIELDS:
        value = row.get(name)
        parts = [value.get(part) for part in ANSWER_PARTS] if isinstance(value, Mapping) else [value]
        if found := [answer for part in parts for answer in _read(name, part)]:
            return list(dict.fromkeys(found))
    judged = row.get("reward_model") or {}
    if not isinstance(judged, Mapping):
        raise AnswerError(f'reward_model is {judged!r:.100}, expected {{"style": "rule", "ground_truth": ...}}; put the answers there')
    return _read("reward_model.ground_truth", judged.get("ground_truth"))


def _read(column: str, value: Any) -> list[str]:
    try:
        return accepted_answers(value)
    except AnswerError as error:
        raise AnswerError(f"{column}: {error}") from error


def write_split(out: Path, num_train: int, num_test: int, seed: int, two_hop: float) -> None:
    """Write both files and their corpus into `out`; no name occurs in the facts of both."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    corpus, *parts = generate_split(num_train, num_test, seed, two_hop)
    out.mkdir(parents=True, exist_ok=True)
    for split, questions in zip(("train", "test"), parts, strict=True):
        rows = [to_row(question, index, split) for index, question in enumerate(questions)]
        pq.write_table(pa.Table.from_pylist(rows), out / f"{split}.parquet")
        logger.info("%d questions in %s", len(rows), out / f"{split}.parquet")
    lines = [json.dumps(to_document(fact, number)) + "\n" for number, fact in enumerate(corpus)]
    (out / "corpus.jsonl").write_text("".join(lines), encoding="utf-8")
    logger.info("%d documents in %s", len(lines), out / "corpus.jsonl")


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and write the files."""
    parser = argparse.ArgumentParser(description="Make questions and the corpus that answers them.")
    parser.add_argument("--out", type=Path, required=True, help="folder of train.parquet, test.parquet and corpus.jsonl")
    parser.add_argument("--seed", type=int, default=0, help="seed of names and facts")
    parser.add_argument("--train", type=int, default=2000, help="training questions")
    parser.add_argument("--test", type=int, default=200, help="test questions")
    parser.add_argument("--two-hop", type=float, default=0.5, help="share of questions that take two searches")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    write_split(args.out, args.train, args.test, args.seed, args.two_hop)


if __name__ == "__main__":
    main()
