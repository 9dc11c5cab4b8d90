"""Convert the mathematics sets of Dr. MAS on the Hugging Face hub to verl parquet. Needs the `datasets`
package.

    python examples/data_preprocess/hf_sets.py --output data/drmas_math                       # train, test_sampled and test
    python examples/data_preprocess/hf_sets.py --output data/deepscaler --sets deepscaler     # single sets
    python examples/data_preprocess/hf_sets.py --output data/drmas_math --local /mnt/copies   # copies: <local>/<repository name>/

Instructions added to the questions by a set ("Let's think step by step ...") are removed: the agents' prompts
state the form of an answer.
"""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from verl.utils.dataset import DatasetError, write_rows
from verl.utils.dataset.conversion import Conversion, run_script
from verl.utils.dataset.messages import parse_stored

logger = logging.getLogger(__name__)
Row = dict[str, Any]


@dataclass(frozen=True)
class HubSet:
    """Source of a set: repository, split, and use (training or testing)."""

    repository: str
    split: str
    use: str


SETS = {
    "dapo_filter": HubSet("aaabiao/dapo_filter", "train", "train"),
    "dapo": HubSet("BytedTsinghua-SIA/DAPO-Math-17k", "train", "train"),
    "deepscaler": HubSet("agentica-org/DeepScaleR-Preview-Dataset", "train", "train"),
    "polaris": HubSet("POLARIS-Project/Polaris-Dataset-53K", "train", "train"),
    "math500": HubSet("HuggingFaceH4/MATH-500", "test", "test"),
    "aime24": HubSet("HuggingFaceH4/aime_2024", "train", "test"),
    "aime25": HubSet("MathArena/aime_2025", "train", "test"),
    "amc23": HubSet("knoveleng/AMC-23", "train", "test"),
    "olympiadbench": HubSet("realtreetune/olympiadbench", "test", "test"),
}
# Files of Dr. MAS: lists of (set, number of its first rows, None for all).
DR_MAS: dict[str, list[tuple[str, int | None]]] = {
    "train": [("dapo_filter", None)],
    "test_sampled": [("math500", 50), ("aime24", None), ("aime25", None)],
    "test": [("math500", None), ("aime24", None), ("aime25", None), ("olympiadbench", None), ("amc23", None)],
}
ADDED = (
    re.compile(
        r"\s*(?:\\n)*\s*let'?s\s+think\s+step\s+by\s+step\s+and\s+output\s+the\s+final\s+answer\s+within\s+\\boxed\{\}\.?\s*$",
        re.I,
    ),
    re.compile(r'\s*remember to put your answer on its own line after "Answer:"\.?\s*$', re.I),
    re.compile(
        r"^\s*solve the following math problem step by step\. the last line of your response should be "
        r".*?\n\s*\n",
        re.I | re.S,
    ),
)


def bare_question(text: str) -> str:
    """Return the question without the instructions added by a set."""
    for pattern in ADDED:
        text = pattern.sub("", text)
    return text.strip()


def convert(name: str, source: Iterable[Mapping[str, Any]], skip_incomplete: bool = False) -> list[Row]:
    """Return the rows of a set; repeated questions and answers that say there is none are dropped and
    counted.

    Raises:
        DatasetError: a row has no question or no answer, unless these rows are skipped; or no row is kept.
    """
    chosen = SETS[name]
    conversion = Conversion(f"{chosen.repository} ({name})", skip_incomplete)
    seen: set[str] = set()
    for index, stored in enumerate(source):
        row = {
            name: parse_stored(value) if name in STORED_AS_TEXT else value for name, value in stored.items()
        }
        question = bare_question(find_problem(row))
        answer = find_answer(row)
        if not question or not answer:
            missing = "no answer" if question else "no question"
            conversion.lacks(index, missing, f"columns: {', '.join(row)}")
        elif question in seen:
            conversion.drop(index, "the question is repeated")
        elif names_no_answer(answer):
            conversion.drop(index, f"the answer is {answer!r}")
        else:
            seen.add(question)
            conversion.rows.append(
                make_row(question, answer, data_source=name, split=chosen.use, index=index)
            )
            if only_as_text(answer):
                conversion.note(index, ONLY_AS_TEXT)
    return conversion.report()


def load(name: str, local: Path | None = None, skip_incomplete: bool = False) -> list[Row]:
    """Fetch a set from the hub, or from the folder `<local>/<repository name>`, and convert it.

    Raises:
        DatasetError: `local` has no copy of the set, or the set is empty.
    """
    import datasets

    chosen = SETS[name]
    source = chosen.repository
    if local is not None:
        folder = local / chosen.repository.rsplit("/", 1)[1]
        if not folder.is_dir():
            raise DatasetError(
                f"no local copy of {chosen.repository}: {folder} is not a folder; download it there or leave "
                "out --local"
            )
        source = str(folder)
    return convert(name, datasets.load_dataset(source, split=chosen.split), skip_incomplete)


def main(argv: Sequence[str] | None = None) -> list[Path]:
    """Run the command line; return the files written."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the parquet files")
    parser.add_argument(
        "--sets",
        nargs="+",
        choices=sorted(SETS),
        help="write these sets, a file each, instead of Dr. MAS's three files",
    )
    parser.add_argument("--local", type=Path, help="folder with copies of the repositories")
    parser.add_argument(
        "--skip-incomplete",
        action="store_true",
        help="drop rows without a question or an answer, and count them",
    )
    args = parser.parse_args(argv)
    files: Mapping[str, Sequence[tuple[str, int | None]]] = (
        {name: [(name, None)] for name in args.sets} if args.sets else DR_MAS
    )
    wanted = dict.fromkeys(name for parts in files.values() for name, _ in parts)
    loaded = {name: load(name, args.local, args.skip_incomplete) for name in wanted}
    written = []
    for file, parts in files.items():
        rows = [row for name, most in parts for row in loaded[name][:most]]
        written.append(write_rows(rows, args.output / f"{file}.parquet"))
        logger.info("%d rows: %s", len(rows), written[-1])
    return written


if __name__ == "__main__":
    run_script(main, AgentSystemError)
