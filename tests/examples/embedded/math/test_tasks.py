import random
import re

from examples.embedded.math.tasks import EVENTS, LARGEST_VALUE, generate, generate_split, make_problem, to_row


def solve_from_the_words(question):
    """Read the numbers and the verbs of the story and compute its answer without looking at the steps."""
    start, *rest = re.split(r"(?:First|Then|Next|Finally) ", question)
    value = int(re.search(r"\d+", start).group())
    for event in rest:
        number = int(re.search(r"\d+", event).group())
        if "times" in event:
            value *= number
        elif "more" in event:
            value += number
        else:
            value -= number
    return value


def test_answers_follow_from_the_words():
    for problem in generate(500, seed=3):
        assert solve_from_the_words(problem.question) == problem.answer


def test_steps_are_right_and_lead_to_the_answer():
    for problem in generate(200, seed=4):
        for before, step in zip((None, *problem.steps), problem.steps, strict=False):
            assert before is None or step.left == before.result
            assert (
                step.result
                == {"+": step.left + step.right, "-": step.left - step.right, "*": step.left * step.right}[
                    step.op
                ]
            )
            assert 1 <= step.result <= LARGEST_VALUE
        assert problem.worked_solution().endswith(f"\\boxed{{{problem.answer}}}")


def test_training_and_test_questions_do_not_overlap():
    train, test = generate_split(1500, 150, seed=0)
    questions = [problem.question for problem in train + test]
    assert len(questions) == len(set(questions)) == 1650


def test_a_seed_names_the_problems():
    assert generate(50, seed=1) == generate(50, seed=1)
    assert generate(50, seed=1) != generate(50, seed=2)


def test_every_operation_and_both_lengths_occur():
    problems = generate(300, seed=5)
    assert {step.op for problem in problems for step in problem.steps} == set(EVENTS)
    assert {len(problem.steps) for problem in problems} == {2, 3}


def test_a_row_follows_the_schema_of_verl():
    problem = make_problem(random.Random(0), 2)
    row = to_row(problem, 7, "train")
    assert row["prompt"] == [{"role": "user", "content": problem.question}]
    assert row["reward_model"] == {"style": "rule", "ground_truth": str(problem.answer)}
    assert row["extra_info"]["index"] == 7
    assert set(row) == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
