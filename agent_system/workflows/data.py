"""Write the generated tasks of a workflow, as parquet in verl's schema:

    python -m agent_system.workflows.data plan_path --out data/plan_path --seed 0 --train 2000
    --test 200

writes `train.parquet` and `test.parquet`. `plan_path --help` lists the options of difficulty. A
workflow has generated tasks when its `world/generate.py` defines `TASKS`.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import logging
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from agent_system.errors import AgentSystemError

logger = logging.getLogger(__name__)
Row = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Split:
    """Generated tasks.

    Attributes:
        train, test: rows in verl's schema.
        test_keys: keys of the test tasks; no training task has one of them.
        files: further files that the tasks need, content by name, written into the same folder.
    """

    train: list[Row]
    test: list[Row]
    test_keys: frozenset[Any]
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskSet:
    """Generator of tasks from a seed.

    Attributes:
        generate: maps (number of training tasks, number of test tasks, seed[, difficulty]) to both
            lists of tasks.
        row: maps (task, index, name of the split) to a row.
        key: maps a task to its identity.
        difficulty: a dataclass with defaults, whose fields are options of the command.
        files: maps the arguments of `generate` to `Split.files`.
    """

    generate: Callable[..., tuple[Sequence[Any], Sequence[Any]]]
    row: Callable[[Any, int, str], Row]
    key: Callable[[Any], Any]
    difficulty: Callable[..., Any] | None = None
    files: Callable[..., Mapping[str, str]] = lambda *_: {}

    def split(self, num_train: int, num_test: int, seed: int, difficulty: Any = None) -> Split:
        """Return training and test rows. Raises AgentSystemError when there are too few different
        tasks of this difficulty.
        """
        arguments = [num_train, num_test, seed]
        if self.difficulty is not None:
            arguments.append(self.difficulty() if difficulty is None else difficulty)
        train, test = self.generate(*arguments)
        rows = [
            [self.row(task, i, name) for i, task in enumerate(tasks)]
            for name, tasks in (("train", train), ("test", test))
        ]
        return Split(rows[0], rows[1], frozenset(map(self.key, test)), self.files(*arguments))


def draw_distinct(
    count: int,
    draw: Callable[[], T | None],
    key: Callable[[T], Hashable],
    used: Iterable[Hashable],
    most_misses: int,
    too_few: Callable[[int], str],
) -> list[T]:
    """Return `count` tasks with distinct keys.

    Args:
        count: number of tasks.
        draw: draws a task, or None if the draw gave none.
        key: of a task.
        used: keys of other tasks, which these do not have.
        most_misses: draws in a row that may add no task.
        too_few: the message for the number of tasks after `most_misses`.

    Raises:
        AgentSystemError: there are too few different tasks, or they are too rare.
    """
    used_keys = set(used)
    tasks: list[T] = []
    misses = 0
    while len(tasks) < count:
        task = draw()
        if task is not None and (task_key := key(task)) not in used_keys:
            used_keys.add(task_key)
            tasks.append(task)
            misses = 0
            continue
        misses += 1
        if misses > most_misses:
            raise AgentSystemError(too_few(len(tasks)))
    return tasks


def write_split(split: Split, out: Path) -> None:
    """Write `train.parquet`, `test.parquet` and further files into the folder `out`, which is
    created if missing.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    out.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", split.train), ("test", split.test)):
        pq.write_table(pa.Table.from_pylist(rows), out / f"{name}.parquet")
    for name, content in split.files.items():
        (out / name).write_text(content, encoding="utf-8")


def run(task_sets: Mapping[str, TaskSet], argv: Sequence[str] | None = None) -> None:
    """Parse the command line, whose first word is one of `task_sets`, and write the files."""
    parser = argparse.ArgumentParser(description="Write generated training and test tasks as parquet.")
    commands = parser.add_subparsers(dest="workflow", required=True, metavar="|".join(task_sets))
    for name, tasks in task_sets.items():
        help_text = inspect.getdoc(tasks.difficulty) if tasks.difficulty else None
        command = commands.add_parser(
            name, description=help_text, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        command.add_argument("--out", type=Path, required=True, help="folder for the files")
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--train", type=int, default=2000, help="training tasks")
        command.add_argument("--test", type=int, default=200, help="test tasks")
        for option in fields(tasks.difficulty()) if tasks.difficulty else ():
            command.add_argument(
                f"--{option.name.replace('_', '-')}", type=type(option.default), default=option.default
            )
    args = vars(parser.parse_args(argv))
    tasks = task_sets[args.pop("workflow")]
    out, seed, num_train, num_test = (args.pop(name) for name in ("out", "seed", "train", "test"))
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        split = tasks.split(num_train, num_test, seed, tasks.difficulty and tasks.difficulty(**args))
    except AgentSystemError as error:
        parser.exit(2, f"error: {error}\n")
    write_split(split, out)
    logger.info("%d training and %d test tasks in %s", len(split.train), len(split.test), out)


def main(argv: Sequence[str] | None = None) -> None:
    """Write the tasks of a built-in workflow."""
    names = sorted(path.parent.parent.name for path in Path(__file__).parent.glob("*/world/generate.py"))
    modules = {
        name: importlib.import_module(f"agent_system.workflows.{name}.world.generate") for name in names
    }
    run({name: module.TASKS for name, module in modules.items() if hasattr(module, "TASKS")}, argv)


if __name__ == "__main__":
    main()
