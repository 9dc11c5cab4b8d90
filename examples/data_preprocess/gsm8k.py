"""Convert GSM8K jsonl (`question`, `answer` ending in `#### 18`) to verl parquet, one file per input.

    python examples/data_preprocess/gsm8k.py --input ../shared/data/gsm8k/train.jsonl ../shared/data/gsm8k/test.jsonl --output data/gsm8k

writes data/gsm8k/train.parquet and data/gsm8k/test.parquet.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.workflows.math.world.rows import make_row
from verl.utils.dataset import read_rows, write_rows
from verl.utils.dataset.conversion import Conversion, run_script

logger = logging.getLogger(__name__)
MARK = "####"


def final_answer(solution: str) -> str:
    """Return the text after the last `####`, without thousands commas; empty without this mark."""
    _, mark, answer = solution.rpartition(MARK)
    return answer.strip().replace(",", "") if mark else ""


def convert(file: Path, skip_incomplete: bool = False) -> list[dict[str, Any]]:
    """Return the rows of one file.

    Raises:
        DatasetError: a question or an answer is missing, unless these rows are skipped; or no row is kept.
    """
    conversion = Conversion(str(file), skip_incomplete)
    for index, row in enumerate(read_rows(file)):
        question = str(row.get("question") or "")
        solution = str(row.get("answer") or "")
        answer = final_answer(solution)
        if not question.strip() or not answer:
            missing = "no answer" if question.strip() else "no question"
            needs = f"needs 'question' and an 'answer' that ends in '{MARK} <number>', found {row!r:.160}"
            conversion.lacks(index, missing, needs)
            continue
        extra = {"question": question, "answer": solution}
        conversion.rows.append(
            make_row(question, answer, data_source="openai/gsm8k", split=file.stem, index=index, **extra)
        )
    return conversion.report()


def main(argv: Sequence[str] | None = None) -> list[Path]:
    """Run the command line; return the files written."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--input",
        nargs="+",
        type=Path,
        required=True,
        help="GSM8K jsonl files; a file's name becomes its split",
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the parquet files")
    parser.add_argument(
        "--skip-incomplete",
        action="store_true",
        help="drop rows without a question or an answer, and count them",
    )
    args = parser.parse_args(argv)
    written = []
    for file in args.input:
        rows = convert(file, args.skip_incomplete)
        written.append(write_rows(rows, args.output / f"{file.stem}.parquet"))
        logger.info("%d rows: %s", len(rows), written[-1])
    return written


if __name__ == "__main__":
    run_script(main, AgentSystemError)
