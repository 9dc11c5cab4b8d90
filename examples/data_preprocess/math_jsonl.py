r"""Convert MATH-style jsonl to verl parquet: `problem` (or `question`) with `answer`, or with a `solution`
that ends in `\boxed{}`.

    python examples/data_preprocess/math_jsonl.py --input train.jsonl test.jsonl --output data/math --data-source my_math

`level`, `type` and `subject` are kept in `extra_info` when a row has them.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.workflows.math.world.rows import (
    ONLY_AS_TEXT,
    STORED_AS_TEXT,
    find_answer,
    find_problem,
    make_row,
    names_no_answer,
    only_as_text,
)
from verl.utils.dataset import read_rows, write_rows
from verl.utils.dataset.conversion import Conversion, run_script
from verl.utils.dataset.messages import parse_stored

logger = logging.getLogger(__name__)
KEPT = ("level", "type", "subject")


def convert(file: Path, data_source: str, skip_incomplete: bool = False) -> list[dict[str, Any]]:
    """Return the rows of one file; problems without an answer that can be compared ("proof") are dropped and
    counted.

    Raises:
        DatasetError: a problem or an answer is missing, unless these rows are skipped; or no row is kept.
    """
    conversion = Conversion(str(file), skip_incomplete)
    for index, stored in enumerate(read_rows(file)):
        row = {
            name: parse_stored(value) if name in STORED_AS_TEXT else value for name, value in stored.items()
        }
        problem = find_problem(row)
        answer = find_answer(row)
        if not problem or not answer:
            missing = "no answer" if problem else "no problem"
            needs = "needs 'problem' (or 'question') and 'answer' or a 'solution' with \\boxed{}"
            conversion.lacks(index, missing, f"{needs}; columns: {', '.join(row)}")
        elif names_no_answer(answer):
            conversion.drop(index, f"the answer is {answer!r}")
        else:
            extra = {name: str(row.get(name) or "") for name in KEPT}
            conversion.rows.append(
                make_row(problem, answer, data_source=data_source, split=file.stem, index=index, **extra)
            )
            if only_as_text(answer):
                conversion.note(index, ONLY_AS_TEXT)
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
        help="jsonl, json or parquet files; a file's name becomes its split",
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the parquet files")
    parser.add_argument("--data-source", default="math", help="name of the data set in metrics")
    parser.add_argument(
        "--skip-incomplete",
        action="store_true",
        help="drop rows without a problem or an answer, and count them",
    )
    args = parser.parse_args(argv)
    written = []
    for file in args.input:
        rows = convert(file, args.data_source, args.skip_incomplete)
        written.append(write_rows(rows, args.output / f"{file.stem}.parquet"))
        logger.info("%d rows: %s", len(rows), written[-1])
    return written


if __name__ == "__main__":
    run_script(main, AgentSystemError)
