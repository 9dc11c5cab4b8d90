"""Convert NQ, HotpotQA and the other question sets of Search-R1 to verl parquet, from local files or the
Hugging Face hub.

    python examples/data_preprocess/search_sets.py --input nq_train.jsonl --split train --output data/nq
    python examples/data_preprocess/search_sets.py --hub --output data/search_r1           # needs the `datasets` package

A file holds `question` and `golden_answers` (FlashRAG), `answer` (NQ open, HotpotQA) or Search-R1's own rows.
`--hub` writes the data of Search-R1 and Dr. MAS: train.parquet of NQ and HotpotQA, test.parquet of seven
sets. The corpus is a separate file (theirs is wiki-18).
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.workflows.search.world.answers import AnswerError, can_be_matched
from agent_system.workflows.search.world.rows import find_answers, find_question, make_row
from verl.utils.dataset import read_rows, write_rows
from verl.utils.dataset.conversion import Conversion, run_script
from verl.utils.dataset.messages import parse_stored

logger = logging.getLogger(__name__)
REPOSITORY = "RUC-NLPIR/FlashRAG_datasets"
KEPT = ("id", "type", "level")
# Split on the hub of each set, by output file.
HUB: dict[str, dict[str, str]] = {
    "train": {"nq": "train", "hotpotqa": "train"},
    "test": {
        "nq": "test",
        "triviaqa": "test",
        "popqa": "test",
        "hotpotqa": "dev",
        "2wikimultihopqa": "dev",
        "musique": "dev",
        "bamboogle": "test",
    },
}


def convert(
    where: str,
    source: Iterable[Mapping[str, Any]],
    data_source: str,
    split: str,
    skip_incomplete: bool = False,
) -> list[dict[str, Any]]:
    """Return the rows of one set; repeated questions and those that no answer can match are dropped and
    counted.

    Raises:
        DatasetError: a row has no question, no answer, or one that cannot be read, unless these rows are
            skipped; or no row is kept.
    """
    conversion = Conversion(where, skip_incomplete)
    seen: set[str] = set()
    for index, stored in enumerate(source):
        row = {
            **stored,
            "prompt": parse_stored(stored.get("prompt")),
            "reward_model": parse_stored(stored.get("reward_model")),
        }
        question = find_question(row)
        columns = f"columns: {', '.join(map(str, stored))}"
        try:
            answers = find_answers(row)
        except AnswerError as error:
            conversion.lacks(index, str(error), columns)
            continue
        if not question or not answers:
            missing = "an answer ('golden_answers' or 'answer')" if question else "a 'question'"
            conversion.lacks(index, f"lacks {missing}", columns)
        elif not can_be_matched(answers):
            conversion.drop(index, "its answers are only articles or punctuation and match nothing")
        elif question in seen:
            conversion.drop(index, "the question is repeated")
        else:
            seen.add(question)
            extra = {name: str(row.get(name) or "") for name in KEPT}
            conversion.rows.append(
                make_row(question, answers, data_source=data_source, split=split, index=index, **extra)
            )
    return conversion.report()


def from_hub(name: str, hub_split: str, split: str, skip_incomplete: bool = False) -> list[dict[str, Any]]:
    """Fetch one set from the hub and convert it."""
    import datasets

    source = datasets.load_dataset(REPOSITORY, name, split=hub_split)
    return convert(f"{REPOSITORY} {name}", source, name, split, skip_incomplete)


def main(argv: Sequence[str] | None = None) -> list[Path]:
    """Run the command line; return the files written."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--input",
        nargs="+",
        type=Path,
        help="jsonl, json or parquet files, joined; a file's name is its data source",
    )
    source.add_argument("--hub", action="store_true", help="fetch the sets of Search-R1")
    parser.add_argument(
        "--split", choices=("train", "test"), default="train", help="split of the rows of --input"
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the parquet files")
    parser.add_argument(
        "--skip-incomplete",
        action="store_true",
        help="drop rows without a question or an answer, and count them",
    )
    args = parser.parse_args(argv)
    skip = args.skip_incomplete
    if args.hub:
        parts = {
            split: [row for name, source in sets.items() for row in from_hub(name, source, split, skip)]
            for split, sets in HUB.items()
        }
    else:
        read = [convert(str(file), read_rows(file), file.stem, args.split, skip) for file in args.input]
        parts = {args.split: [row for rows in read for row in rows]}
    written = []
    for split, rows in parts.items():
        written.append(write_rows(rows, args.output / f"{split}.parquet"))
        logger.info("%d rows: %s", len(rows), written[-1])
    return written


if __name__ == "__main__":
    run_script(main, AgentSystemError)
