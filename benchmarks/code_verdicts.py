"""Agreement of the judge of the code workflow with the assertions: verdicts on references and mutants of
them.

    python benchmarks/code_verdicts.py [--rows ../shared/data/humaneval/HumanEval.jsonl.gz] [--mutants 1700] [--seed 0] [--workers 2]

The peer is the official test: the program, `check` and `check(candidate)` in one process. Ours: the calls
that `check` makes are recorded with the reference, the program is run on each, and its answers are judged
outside (`agent_system.workflows.code.world.assertions`). The programs are the references of all rows, and
mutants generated from a seed: one change of an operator, a constant, a condition, a statement, the type or
the order of a return value, or of an argument in place.

If a test calls a helper that the program defines, the official test runs the program's helper, ours the
reference's. Every difference of the verdicts is listed with the row, the mutant's number and both verdicts;
differences in mutants of such helpers are counted separately.

The last line is one JSON object: `rows`, `programs`, `passed` (by the official test), `agree`,
`differ_in_helpers`, `differ` (all others), `share` (agreement in percent, without mutants of helpers) and
`spread` (its standard error, in points).
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import copy
import gzip
import json
import logging
import os
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl.trainer.config.sandbox import SandboxConfig, SandboxLimitsConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent_system.sandbox import close_shared, configure, shared_sandbox
from agent_system.workflows.code.world.prepare import Preparation, solve
from agent_system.workflows.code.world.problem import Problem
from agent_system.workflows.code.world.runs import check_program
from agent_system.workflows.code.world.sets import RawTask, human_eval
from benchmarks.shared.short import parse_args

logger = logging.getLogger("code_verdicts")
ROWS = Path(__file__).resolve().parents[2] / "shared" / "data" / "humaneval" / "HumanEval.jsonl.gz"
CHUNK_SIZE = 32
CPU_S = 4.0  # limit of one run; mutants that do not terminate use all of it
COMPARE = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
RETURNED = (
    "tuple({})",
    "list({})",
    "set({})",
    "sorted({})",
    "int({})",
    "float({})",
    "bool({})",
    "str({})",
    "[{}]",
    "({})[::-1]",
    "-({})",
    "iter({})",
)
IN_PLACE = ("{}.sort()", "{}.reverse()", "{}.append(0)", "{}.pop()", "{}.clear()")


@dataclass(frozen=True)
class Program:
    """A program, its row, and its number (0 is the reference). `in_helper`: the mutant changes a helper that
    the test calls.
    """

    row: int
    number: int
    text: str
    in_helper: bool = False


def mutate(tree: ast.Module, function: str, rng: random.Random) -> str:
    """Make one change in a program and return the name of the changed function."""
    places = [
        (owner.name, change)
        for owner in tree.body
        if isinstance(owner, ast.FunctionDef)
        for change in _changes(owner, rng)
    ]
    name, change = rng.choice(
        [place for place in places if place[0] == function] if rng.random() < 0.8 else places
    )
    change()
    return name


def _changes(owner: ast.FunctionDef, rng: random.Random) -> Iterator[Callable[[], object]]:
    """Yield every possible change of a function, so that kinds of nodes are drawn in proportion to their
    number.
    """
    for node in ast.walk(owner):
        if isinstance(node, ast.Compare):
            yield lambda node=node: node.ops.__setitem__(0, rng.choice(COMPARE)())
        elif isinstance(node, ast.BinOp):
            yield lambda node=node: setattr(node, "op", rng.choice(ARITHMETIC)())
        elif isinstance(node, ast.BoolOp):
            yield lambda node=node: setattr(
                node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And()
            )
        elif isinstance(node, ast.If | ast.While | ast.IfExp):
            yield lambda node=node: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))
        elif isinstance(node, ast.Constant) and not _is_text_of_its_own(node, owner):
            yield lambda node=node: setattr(node, "value", _other(node.value, rng))
        elif isinstance(node, ast.Return) and node.value is not None:
            yield lambda node=node: setattr(
                node, "value", _expression(rng.choice(RETURNED).format(ast.unparse(node.value)))
            )
        if isinstance(node, ast.Assign | ast.AugAssign | ast.Expr | ast.Return) and not _is_text(node):
            yield lambda node=node: _Without(node).visit(owner)
    for argument in owner.args.args:
        line = rng.choice(IN_PLACE).format(argument.arg)
        yield lambda line=line: owner.body.insert(0, ast.parse(line).body[0])
    if owner.args.args:
        yield lambda: owner.body.insert(
            -1, ast.parse(rng.choice(IN_PLACE).format(owner.args.args[0].arg)).body[0]
        )


class _Without(ast.NodeTransformer):
    """Transformer that replaces a statement with `pass`."""

    def __init__(self, removed: ast.stmt) -> None:
        self.removed = removed

    def visit(self, node: ast.AST) -> Any:
        return ast.Pass() if node is self.removed else self.generic_visit(node)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_text_of_its_own(node: ast.Constant, owner: ast.FunctionDef) -> bool:
    return any(_is_text(line) and line.value is node for line in owner.body if isinstance(line, ast.Expr))


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _other(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool):
        return rng.choice([not value, int(value), float(value)])
    if isinstance(value, int | float):
        return rng.choice([value + 1, value - 1, -value, float(value), 2 * value, value + 1e-9])
    return (
        rng.choice([value + value[-1:], value[1:], value.upper(), "x"])
        if isinstance(value, str)
        else rng.choice([0, False, ""])
    )


def make_programs(raws: list[RawTask], mutants: int, seed: int) -> list[Program]:
    """Return the references and `mutants` mutants, row by row; all programs of a row are different."""
    rng = random.Random(seed)
    trees = [ast.parse(raw.references[0]) for raw in raws]
    called = [
        {
            node.func.id
            for node in ast.walk(ast.parse(raw.check))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        for raw in raws
    ]
    programs = {
        (row, ast.unparse(tree)): Program(row, 0, raw.references[0])
        for row, (raw, tree) in enumerate(zip(raws, trees, strict=True))
    }
    counts = [0] * len(raws)
    tries = 0
    while len(programs) < len(raws) + mutants and tries < 100 * (mutants + 1):
        row, tries = tries % len(raws), tries + 1
        tree = copy.deepcopy(trees[row])
        place = mutate(tree, raws[row].function, rng)
        text = ast.unparse(ast.fix_missing_locations(tree))
        if (row, text) not in programs:
            counts[row] += 1
            programs[row, text] = Program(
                row, counts[row], text, place != raws[row].function and place in called[row]
            )
    return sorted(programs.values(), key=lambda program: (program.row, program.number))


async def verdicts(program: Program, raw: RawTask, problem: Problem) -> tuple[bool, bool]:
    """Return whether a program is right by the official test, and by ours."""
    official = f"{program.text}\n{raw.check}\nimport random\nrandom.seed(0)\ncheck({raw.function})\n"
    (result,) = await shared_sandbox().run_tests(official, [""])
    ours = await check_program(program.text, problem.cases, problem, 1e-6)
    return result.ok, all(one.passed for one in ours)


async def measure(rows: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    """Return the counts of both verdicts on all programs."""
    raws = [human_eval(row) for row in rows]
    found = [await solve(raw, Preparation(max_tests=100_000)) for raw in raws]
    for row, (problem, counts, _) in zip(rows, found, strict=True):
        if problem is None or any("left out" in what for what, count in counts.items() if count):
            logger.info("%s: %s", row.get("task_id"), dict(counts))
    problems = [problem for problem, _, _ in found]
    kept = [row for row, problem in enumerate(problems) if problem is not None]
    programs = make_programs([raws[row] for row in kept], args.mutants, args.seed)
    count = {
        "rows": len(kept),
        "programs": len(programs),
        "passed": 0,
        "agree": 0,
        "differ_in_helpers": 0,
        "differ": 0,
    }
    for start in range(0, len(programs), CHUNK_SIZE):
        chunk = programs[start : start + CHUNK_SIZE]
        both = await asyncio.gather(
            *(verdicts(one, raws[kept[one.row]], problems[kept[one.row]]) for one in chunk)  # type: ignore[arg-type]
        )
        for one, (official, ours) in zip(chunk, both, strict=True):
            count["passed"] += official
            count["agree" if official == ours else "differ_in_helpers" if one.in_helper else "differ"] += 1
            if official != ours:
                kind = "in a helper that the test calls" if one.in_helper else "DIFFERS"
                logger.info(
                    "%s, mutant %d: official %s, ours %s; %s",
                    rows[kept[one.row]].get("task_id"),
                    one.number,
                    official,
                    ours,
                    kind,
                )
                logger.debug("%s", one.text)
    judged = max(1, count["agree"] + count["differ"])
    share = count["agree"] / judged
    return count | {
        "share": round(100 * share, 3),
        "spread": round(100 * (share * (1 - share) / judged) ** 0.5, 3),
    }


def main() -> None:
    """Compare the verdicts; write one line per difference, then the counts as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=Path, default=ROWS, help="jsonl of HumanEval's form, also .jsonl.gz")
    parser.add_argument("--mutants", type=int, default=1700, help="number of mutants of all rows together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--verbose", action="store_true", help="write the programs on which the verdicts differ"
    )
    args = parse_args(parser, mutants=300)
    if not args.rows.is_file():
        parser.error(f"no file {args.rows}; --rows takes the rows of HumanEval")
    logging.basicConfig(
        level=logging.DEBUG if args.verbose else logging.INFO, format="%(message)s", stream=sys.stdout
    )
    logging.getLogger("asyncio").setLevel(logging.INFO)
    with (gzip.open if args.rows.suffix == ".gz" else open)(args.rows, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file if line.strip()]
    configure(
        SandboxConfig(
            min_level="rlimits",
            workers=args.workers,
            limits=SandboxLimitsConfig(cpu_s=CPU_S, wall_s=20 * CPU_S),
        )
    )
    try:
        result = asyncio.run(measure(rows, args))
    finally:
        close_shared()
    logger.info(json.dumps(result | {"load": round(os.getloadavg()[0], 1)}))


if __name__ == "__main__":
    main()
