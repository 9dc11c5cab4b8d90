"""Alarm 5: validation tasks that are training tasks."""

from typing import Any

from tests.report.alarms.made_runs import MadeRun, validation_episode
from verl.report.alarms import RunFacts, raised_alarms

STEADY = {5: lambda task: 0.5, 10: lambda task: 0.5}


def with_prompt(run: dict[str, Any], task_id: str, prompt: str, split: str, number: int = 9000) -> None:
    facts: RunFacts = run["facts"]
    episode = validation_episode(0, 0.5) | {"task_id": task_id}
    episode["calls"][0]["prompt"] = prompt
    facts.add(5, split, number, episode)


def numbers(run: dict[str, Any]) -> set[int]:
    return {alarm["number"] for alarm in raised_alarms(run)}


def test_one_shared_task_under_another_id_is_found() -> None:
    run = MadeRun(steps=12, validations=STEADY).build()
    assert 5 not in numbers(run), "equal ids of different texts are nothing"
    with_prompt(run, "other:7", "Solve: Problem 301: how many are left?", "val")
    alarm = next(alarm for alarm in raised_alarms(run) if alarm["number"] == 5)
    assert alarm["text"].startswith("1 of 51 validation tasks")
    assert alarm["episodes"] == [9000]
    assert alarm["raised"] == 5, "one step is enough"


def test_a_nearly_equal_text_is_another_task() -> None:
    run = MadeRun(steps=12, validations=STEADY).build()
    with_prompt(run, "other:7", "Solve: Problem 301: how many were left?", "val")
    assert 5 not in numbers(run)


def test_worlds_that_begin_alike_have_no_texts_to_compare() -> None:
    """First prompts of a game are equal although its seeds are not."""
    facts = RunFacts()
    for task in range(100):
        for split in ("train", "val"):
            episode = validation_episode(task, 0.5)
            episode["calls"][0]["prompt"] = f"The board is empty, {task % 3} to move"
            facts.add(5, split, task, episode)
    run = MadeRun(steps=12).build() | {"facts": facts}
    assert 5 not in numbers(run)


def test_a_prompt_of_two_training_tasks_does_not_silence_it() -> None:
    """However often these tasks are played."""
    run = MadeRun(steps=12, validations=STEADY).build()
    for number in range(200):
        with_prompt(run, f"twin:{number % 2}", "Solve: twins", "train", number)
    with_prompt(run, "other:7", "Solve: Problem 301: how many are left?", "val")
    assert 5 in numbers(run)
