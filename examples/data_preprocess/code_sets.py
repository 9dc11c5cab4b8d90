"""Convert APPS, CodeContests, LiveCodeBench, HumanEval and MBPP files to verl parquet for the code workflow,
one file per input.

    python examples/data_preprocess/code_sets.py --set human_eval --input HumanEval.jsonl --output data/human_eval

Reference solutions are run on their tests in the sandbox: a task whose reference fails is dropped and
counted. Tests become `reward_model.ground_truth`, which no prompt shows. Files are jsonl (also .jsonl.gz),
json or parquet; a file's name becomes its split.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.sandbox import configure
from agent_system.workflows.code.world.prepare import Preparation, prepare
from agent_system.workflows.code.world.sets import SETS
from verl.trainer.config.sandbox import SandboxConfig, SandboxLimitsConfig
from verl.utils.dataset import DatasetError, read_rows, write_rows
from verl.utils.dataset.conversion import run_script

logger = logging.getLogger(__name__)


def read(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a file. Raises DatasetError for one that cannot be read."""
    if file.suffix != ".gz":
        return read_rows(file)
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise DatasetError(f"{file}: not a compressed jsonl file: {error}") from error
    if not all(isinstance(row, dict) for row in rows):
        raise DatasetError(f"{file}: every line must be an object")
    return rows


def main(argv: Sequence[str] | None = None) -> list[Path]:
    """Run the command line; return the files written."""
    default = Preparation()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", choices=sorted(SETS), required=True, help="data set of the rows")
    parser.add_argument("--input", nargs="+", type=Path, required=True, help="files of the set")
    parser.add_argument("--output", type=Path, required=True, help="folder of the parquet files")
    parser.add_argument(
        "--max-tests", type=int, default=default.max_tests, help="maximum number of golden tests per task"
    )
    parser.add_argument(
        "--max-references", type=int, default=default.max_references, help="solutions tried until one passes"
    )
    parser.add_argument("--without-reference", action="store_true", help="keep tasks without a solution")
    parser.add_argument(
        "--min-level", default=SandboxConfig.min_level, help="weakest sandbox level for running solutions"
    )
    args = parser.parse_args(argv)
    preparation = Preparation(args.max_tests, args.max_references, args.without_reference)
    # The wall-clock limit is high, so that only CPU time counts: a busy machine must not cause a solution to
    # be dropped.
    configure(SandboxConfig(min_level=args.min_level, limits=SandboxLimitsConfig(cpu_s=10.0, wall_s=300.0)))
    written = []
    for file in args.input:
        path = file.with_suffix("") if file.suffix == ".gz" else file
        first: dict[str, str] = {}
        rows, counts = asyncio.run(prepare(args.set, read(file), path, preparation, first))
        found = [
            f"{count} {what}" + (f" (first: {first[what]})" if what in first else "")
            for what, count in sorted(counts.items())
            if count
        ]
        if not rows:
            raise DatasetError(f"{file}: no row of {args.set} could be kept: {'; '.join(found) or 'no rows'}")
        logger.info("%s: %s", file, "; ".join(found))
        written.append(write_rows(rows, args.output / f"{path.stem}.parquet"))
    return written


if __name__ == "__main__":
    run_script(main, AgentSystemError)
