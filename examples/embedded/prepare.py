"""Create the embedded default of an example without any download: data, tokenizer, model, warm start.

    python -m examples.embedded.prepare --world math --out outputs/embedded --seed 0

writes, into the folder that is the last line of its output,

    train.parquet, test.parquet     tasks in verl's schema, without overlap
    corpus.jsonl                    the documents of the search world
    demos.jsonl                     the demonstrations of all roles
    model/                          the warm-started model, the initial model of all agents, with metrics.jsonl

The folder's name contains a hash of the recipe and of its source code: an existing folder is reused, a change
creates a new one. `--data-only` creates the tasks without a model.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agent_system.workflows.data import write_split
from examples.embedded.course import Messages
from examples.embedded.worlds import WORLDS
from verl.models.tiny import TinyModelSize, make_tiny_model
from verl.trainer.sft.config import SFTConfig

logger = logging.getLogger(__name__)
# Modules that a recipe runs, besides the workflow and this folder. They are hashed without an import, so that
# a second run, which finds its folder, does not import torch.
SFT_MODULES = ("chats", "data", "encoding", "loop", "muon", "optim", "rendering")
MODULES = ("verl.models.tiny", *(f"verl.trainer.sft.{name}" for name in SFT_MODULES))


@dataclass(frozen=True)
class Recipe:
    """All settings that determine the result.

    Attributes:
        world: a key of `worlds.WORLDS`.
        size, course: size of the model and course of the warm start; None for the world's own.
    """

    world: str = "math"
    seed: int = 0
    num_train: int = 2000
    num_test: int = 200
    size: TinyModelSize | None = None
    course: Any = None
    lr: float = 4e-3
    muon_lr: float = 0.03

    def __post_init__(self) -> None:
        for name in ("size", "course"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(WORLDS[self.world], name))


def recipe_hash(recipe: Recipe) -> str:
    """Return a short hash of the recipe and of the source files that it runs."""
    digest = hashlib.sha256(json.dumps(asdict(recipe), sort_keys=True).encode())
    world = WORLDS[recipe.world]
    folders = [
        Path(str(find_spec(name).origin)).parent
        for name in ("agent_system.workflows", "examples.embedded.prepare")
    ]
    modules = [Path(str(find_spec(name).origin)) for name in MODULES]
    shared = [path for folder in folders for path in sorted(folder.glob("*.py"))]
    own = [
        path
        for folder in folders
        for name in (recipe.world, *world.borrows)
        for path in sorted((folder / name).rglob("*.py"))
    ]
    for path in (*shared, *own, *modules):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def find(out: Path, recipe: Recipe, data_only: bool = False) -> tuple[Path, bool]:
    """Return the folder of the embedded default under `out`, and whether it exists; with `data_only` a folder
    with a model is used too.
    """
    folder = out / f"{recipe.world}-seed{recipe.seed}-{recipe_hash(recipe)}"
    if data_only and not folder.is_dir():
        folder = folder.with_name(f"{folder.name}-data")
    return folder, folder.is_dir()


def prepare(out: Path, recipe: Recipe, num_threads: int = 0, data_only: bool = False) -> Path:
    """Return the folder of the embedded default under `out`, created if missing; an existing folder is always
    complete.
    """
    folder, _ = find(out, recipe, data_only)
    out.mkdir(parents=True, exist_ok=True)
    # Another process that needs the same folder at the same time waits for it.
    with (out / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            logger.info("embedded default: %s exists", folder)
        else:
            _make(folder, recipe, num_threads, data_only)
    return folder


def _make(folder: Path, recipe: Recipe, num_threads: int, data_only: bool) -> None:
    started, out = time.monotonic(), folder.parent
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=out))
    try:
        world = WORLDS[recipe.world]
        split = world.tasks.split(recipe.num_train, recipe.num_test, recipe.seed, recipe.course.difficulty)
        write_split(split, partial)
        if not data_only:
            _make_model(
                partial, recipe, world.demos(recipe.course, recipe.seed, split.test_keys), num_threads
            )
        partial.chmod(0o755)
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    logger.info("embedded default: created in %.0f s: %s", time.monotonic() - started, folder)


def _make_model(folder: Path, recipe: Recipe, conversations: Sequence[Messages], num_threads: int) -> None:
    """Write the demonstrations and the warm-started model with its tokenizer."""
    from verl.trainer.sft import loop

    _write_jsonl(conversations, WORLDS[recipe.world].tools, folder / "demos.jsonl")
    corpus = [
        "\n".join(message["content"] for message in conversation) for conversation in conversations[::5]
    ]
    of_course = WORLDS[recipe.world].tokenizer
    tokenizer = of_course and of_course(recipe.course)
    make_tiny_model(folder / "untrained", corpus, size=recipe.size, seed=recipe.seed, tokenizer=tokenizer)
    logger.info("embedded default: warm start on %d demonstrations", len(conversations))
    metrics = (WORLDS[recipe.world].warm_start or loop.run_sft)(_sft_config(recipe, folder, num_threads))
    shutil.rmtree(folder / "untrained")
    logger.info("embedded default: last loss of the warm start %.3f", metrics["loss"])


def _sft_config(recipe: Recipe, folder: Path, num_threads: int) -> SFTConfig:
    config = SFTConfig()
    config.model.path = str(folder / "untrained")
    config.data.train_files = [str(folder / "demos.jsonl")]
    config.data.shuffle = False
    config.data.train_batch_size = recipe.course.batch_size
    config.optim.name = "muon"
    config.optim.lr = recipe.lr
    config.optim.muon_lr = recipe.muon_lr
    config.trainer.default_local_dir = str(folder / "model")
    config.trainer.log_freq = 50
    config.trainer.seed = recipe.seed
    config.trainer.num_threads = num_threads
    config.trainer.device = "cpu"
    return config


def _write_jsonl(
    conversations: Sequence[Messages], tools_of: Callable[[Messages], list[Any]], path: Path
) -> None:
    with path.open("w", encoding="utf-8") as file:
        for messages in conversations:
            tools = tools_of(messages)
            file.write(json.dumps({"messages": messages} | ({"tools": tools} if tools else {})) + "\n")


def main() -> None:
    """Parse the command line, create the folder, and write its path as the only line on standard output."""
    parser = argparse.ArgumentParser(description="Create data, model and warm start of the embedded default.")
    parser.add_argument("--world", choices=sorted(WORLDS), default="math", help="workflow")
    parser.add_argument(
        "--out", type=Path, default=Path("outputs/embedded"), help="parent folder of the result"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of data, initialisation and demonstrations")
    parser.add_argument("--course", help="another course of the world, such as default_maps of plan_path")
    parser.add_argument("--demos", type=int, help="demonstrations of the warm start; fewer teach less")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 for torch's default")
    parser.add_argument("--data-only", action="store_true", help="tasks without demonstrations and model")
    parser.add_argument(
        "--find", action="store_true", help="print the folder if it exists, else nothing; create none"
    )
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    courses = WORLDS[args.world].courses
    if args.course is not None and args.course not in courses:
        parser.error(f"--course {args.course}: {args.world} has {', '.join(courses) or 'no further course'}")
    recipe = Recipe(world=args.world, seed=args.seed, course=courses[args.course] if args.course else None)
    if args.demos is not None:
        recipe = replace(recipe, course=replace(recipe.course, count=args.demos))
    if args.find:
        folder, exists = find(args.out, recipe, args.data_only)
        sys.stdout.write(f"{folder}\n" if exists else "")
    else:
        sys.stdout.write(f"{prepare(args.out, recipe, args.threads, args.data_only)}\n")


if __name__ == "__main__":
    main()
