"""What the embedded default of each workflow is made of: tasks, demonstrations, and how hard they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from agent_system.workflows import code, math, math_tool, plan_path, search, sokoban, sudoku
from agent_system.workflows.code import demos as code_demos
from agent_system.workflows.code import generate as code_generate
from agent_system.workflows.math import demos as math_demos
from agent_system.workflows.math import generate as math_generate
from agent_system.workflows.math_tool import demos as math_tool_demos
from agent_system.workflows.plan_path import demos as plan_path_demos
from agent_system.workflows.plan_path import generate as plan_path_generate
from agent_system.workflows.plan_path.options import Difficulty
from agent_system.workflows.search import demos as search_demos
from agent_system.workflows.search import generate as search_generate
from agent_system.workflows.sokoban import demos as sokoban_demos
from agent_system.workflows.sokoban import generate as sokoban_generate
from agent_system.workflows.sokoban.options import SokobanEnvOptions
from agent_system.workflows.sudoku import demos as sudoku_demos
from agent_system.workflows.sudoku import generate as sudoku_generate
from agent_system.workflows.sudoku.generate import Kind
from verl.models.tiny import TinyModelSize

Row = dict[str, Any]
Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Split:
    """What a world's tasks are.

    Attributes:
        train, test: rows in verl's schema.
        test_keys: of the test tasks, which no demonstration may be about.
        files: name to content of what else the world is made of, written beside the rows.
    """

    train: list[Row]
    test: list[Row]
    test_keys: frozenset[Any]
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class World:
    """A workflow that can start from a tiny model.

    Attributes:
        course: what the warm start shows; has a `count` of demonstrations.
        split: (training tasks, test tasks, seed, course) to rows.
        demos: (course, seed, keys to leave out) to conversations.
        package: the workflow's package; its code is part of what the result depends on.
        borrows: packages whose code it uses.
        size: of the model.
    """

    course: Any
    split: Callable[[int, int, int, Any], Split]
    demos: Callable[[Any, int, Collection[Any]], list[Messages]] = field(repr=False)
    package: ModuleType = field(repr=False)
    borrows: tuple[ModuleType, ...] = ()
    size: TinyModelSize = field(default_factory=TinyModelSize)


def _rows(generate: ModuleType, train: list[Any], test: list[Any], key: Callable[[Any], Any]) -> Split:
    first, second = ([generate.to_row(task, i, name) for i, task in enumerate(tasks)] for name, tasks in (("train", train), ("test", test)))
    return Split(first, second, frozenset(map(key, test)))


def _math(num_train: int, num_test: int, seed: int, course: Any) -> Split:
    del course
    return _rows(math_generate, *math_generate.generate_split(num_train, num_test, seed), key=lambda problem: problem.question)


def _plan_path(num_train: int, num_test: int, seed: int, course: plan_path_demos.Course) -> Split:
    tasks = plan_path_generate.generate_split(num_train, num_test, seed, course.difficulty)
    return _rows(plan_path_generate, *tasks, key=lambda grid: grid.text)


def _sudoku(num_train: int, num_test: int, seed: int, course: sudoku_demos.Course) -> Split:
    tasks = sudoku_generate.generate_split(num_train, num_test, seed, course.kind)
    return _rows(sudoku_generate, *tasks, key=lambda puzzle: sudoku_generate.canonical(puzzle.clues))


def _sokoban(num_train: int, num_test: int, seed: int, course: sokoban_demos.Course) -> Split:
    tasks = sokoban_generate.generate_split(num_train, num_test, seed, course.difficulty)
    return _rows(sokoban_generate, *tasks, key=lambda puzzle: puzzle.key)


def _code(num_train: int, num_test: int, seed: int, course: code_demos.Course) -> Split:
    del course
    return _rows(code_generate, *code_generate.generate_split(num_train, num_test, seed), key=lambda task: task.program)


def _sokoban_demos(course: sokoban_demos.Course, seed: int, exclude: Collection[Any]) -> list[Messages]:
    return sokoban_demos.make_demos(course, seed, SokobanEnvOptions(view="compact", max_moves=3), frozenset(exclude))


def _search(num_train: int, num_test: int, seed: int, course: search_demos.Course) -> Split:
    corpus, *tasks = search_generate.generate_split(num_train, num_test, seed, course.two_hop)
    documents = [json.dumps(search_generate.to_document(fact, i)) + "\n" for i, fact in enumerate(corpus)]
    split = _rows(search_generate, *tasks, key=lambda question: question.text)
    return replace(split, files={"corpus.jsonl": "".join(documents)})


UNTIED = TinyModelSize(tie_embeddings=False)
WORLDS = {
    "code": World(code_demos.Course(), _code, code_demos.make_demos, code),
    "math": World(math_demos.Course(), _math, math_demos.make_demos, math),
    "math_tool": World(math_tool_demos.Course(), _math, math_tool_demos.make_demos, math_tool, (math,)),
    "plan_path": World(
        plan_path_demos.Course(difficulty=Difficulty(wall_share=0.15)), _plan_path, plan_path_demos.make_demos, plan_path, size=UNTIED
    ),
    "sudoku": World(sudoku_demos.Course(count=24_000, kind=Kind(4, "easy")), _sudoku, sudoku_demos.make_demos, sudoku, size=UNTIED),
    "search": World(search_demos.Course(), _search, search_demos.make_demos, search),
    "sokoban": World(sokoban_demos.Course(), _sokoban, _sokoban_demos, sokoban, size=UNTIED),
}
