import json
import random

import pytest

from agent_system import AgentSystemError
from agent_system.task import task_from_row
from agent_system.workflows.code.world.problem import read_problem
from agent_system.workflows.code.world.runs import check_program
from examples.embedded.code.tasks import draw_input, generate, generate_split, to_row, write_program
from examples.embedded.data import main
from verl.utils.dataset import read_rows


def test_training_and_test_tasks_do_not_overlap() -> None:
    train, test = generate_split(1500, 200, 3)
    programs = [{task.program for task in tasks} for tasks in (train, test)]
    assert [len(p) for p in programs] == [1500, 200] and not programs[0] & programs[1]
    assert {task.source.kind for task in test} == {"number", "two", "list", "word"}


def test_a_seed_names_the_tasks() -> None:
    assert generate(20, 5) == generate(20, 5) != generate(20, 6)
    assert to_row(generate(1, 5)[0], 0, "train") == to_row(generate(1, 5)[0], 0, "train")


async def test_reference_programs_pass_their_tests_and_shorter_ones_do_not() -> None:
    tasks = generate(40, 0)
    failed = 0
    for task in tasks:
        problem = read_problem(task_from_row(to_row(task, 0, "test")))
        assert all(one.passed for one in await check_program(task.program, problem.cases, problem, 0.0)), task
        hasty = write_program(task.source, task.steps[:-1])
        failed += not all(one.passed for one in await check_program(hasty, problem.cases, problem, 0.0))
    assert failed >= 36


def test_the_question_has_a_sentence_for_every_step() -> None:
    for task in generate(200, 1):
        assert task.question.count(".") >= 2 + len(task.steps) and task.question.endswith("Print it.")
        read = draw_input(random.Random(0), task.source.kind, 1, 9)
        assert len(task.values(read)) == 1 + len(task.steps)


def test_more_tasks_than_there_are_is_an_error() -> None:
    with pytest.raises(AgentSystemError, match="different tasks"):
        generate(100_000, 0)


def test_the_command_line_writes_both_files(tmp_path) -> None:
    main(["code", "--out", str(tmp_path), "--seed", "1", "--train", "30", "--test", "10"])
    train, test = (read_rows(tmp_path / f"{split}.parquet") for split in ("train", "test"))
    assert (len(train), len(test)) == (30, 10)
    truth = json.loads(test[0]["reward_model"]["ground_truth"])
    assert len(truth["inputs"]) == 5 and not any(
        given.strip() in test[0]["prompt"][0]["content"] for given in truth["inputs"]
    )
