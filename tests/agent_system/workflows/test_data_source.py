"""The reward by data_source: verl's rules for each known one."""

import asyncio
import json

import pytest

from agent_system.errors import AgentSystemError
from agent_system.sandbox import close_shared, configure
from agent_system.task import task_from_row
from agent_system.testing import check_env, scripted_team
from agent_system.workflows.data_source import DataSourceAgent, DataSourceEnv, DataSourceOptions
from verl.trainer.config import SandboxConfig

MESSAGES = [{"role": "system", "content": "Be brief. "}, {"role": "user", "content": " 40+2?"}]


def row(source: str) -> dict[str, object]:
    return {"data_source": source, "prompt": MESSAGES, "reward_model": {"ground_truth": "42"}}


@pytest.mark.parametrize(
    ("source", "reply", "reward"),
    [
        ("openai/gsm8k", "#### 41\n#### 42", 1),
        ("openai/gsm8k", "so 42", 0),
        ("openai/gsm8k", "#### 42" + " " * 300, 0),
        ("openai/gsm8k", "####42", 0),
        ("math_dapo", "so it is \\boxed{42}", 1),
        ("math_dapo", "Answer: 41\n\\boxed{42}", -1),
        ("lighteval/MATH", r"\boxed{41} \boxed{42}", 1),
        ("HuggingFaceH4/MATH-500", "42", 0),
        ("numina_olympiads", r"\boxed{42}", 1),
        ("math_dapo", "Answer: 42", 1),
        ("aime24", "Answer: 41", -1),
        ("aime24", "", -1),
    ],
)
def test_a_reply_is_graded_as_its_data_source_says(source: str, reply: str, reward: float) -> None:
    env = DataSourceEnv()
    env.reset(task_from_row(row(source)))
    outcome = asyncio.run(env.step(reply))
    assert (outcome.team, outcome.done, outcome.info["success"]) == (reward, True, float(reward > 0))


STORED = {
    "openai/gsm8k": (
        "#### 42",
        ["42", 42, 42.0, " 42 ", ["42"], '["42"]', r"It is $\\boxed{42}$.", r"\\boxed{42}"],
    ),
    "lighteval/MATH": (r"\\boxed{42}", ["42", 42, 42.0, ["42"], [42], '["42"]', r"\\boxed{42}"]),
    "math_dapo": ("**Answer:** 42", ["42", 42, 42.0, ["42"], [42.0], '["$42$"]']),
    "numina_olympiads": (r"\\boxed{[-2,7]}", ["[-2, 7]", "[-2,7]", ["[-2, 7]"]]),
    "aime24": ("Answer: 3 and 5", [["3", "5"], [3, 5], '["3", "5"]', "3, 5"]),
    "searchR1_nq": (
        "<answer>1889</answer>",
        [
            "1889",
            1889,
            1889.0,
            [1889.0],
            {"target": [1889]},
            {"target": 1889.0},
            '{"target": ["1889"]}',
            '["1889"]',
        ],
    ),
}


@pytest.mark.parametrize("source", STORED)
def test_a_truth_in_any_form_of_a_file_is_the_answer(source: str) -> None:
    reply, truths = STORED[source]
    for truth in truths:
        env = DataSourceEnv()
        task = task_from_row(row(source) | {"reward_model": {"ground_truth": truth}})
        env.check_task(task)
        env.reset(task)
        assert asyncio.run(env.step(reply)).team == 1, truth


@pytest.mark.parametrize("source", STORED)
@pytest.mark.parametrize("truth", [True, {"answer": "42"}, [["42"]], [None], [], "  "])
def test_a_truth_that_no_answer_can_equal_is_refused_before_the_run(source: str, truth: object) -> None:
    task = task_from_row(row(source) | {"reward_model": {"ground_truth": truth}})
    with pytest.raises(AgentSystemError, match=r"reward_model\.ground_truth"):
        DataSourceEnv().check_task(task)


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        ("<answer>Rome</answer> <answer> the Paris.</answer>", 1),
        ("Paris", 0),
        ("<answer></answer>", 0),
        ("<answer>" * 11 + "Paris</answer>", 0),
        ("<answer>paris</answer>" * 11, 0.25),
    ],
)
def test_a_search_answer_is_read_from_the_last_element(reply: str, reward: float) -> None:
    env = DataSourceEnv()
    env.reset(
        task_from_row(
            row("searchR1_nq") | {"reward_model": {"ground_truth": {"target": ["Paris", "City of Light"]}}}
        )
    )
    assert asyncio.run(env.step(reply)).team == reward


def test_a_program_is_run_on_the_tests() -> None:
    doubled = "print(2 * int(input()))"
    cases = [
        (
            f"<think>```python\nprint(1)\n```</think>First\n```python\nprint(0)\n```\nno:\n```python\n{doubled}\n```",
            1,
            1,
        ),
        (doubled, 1, 1),
        ("n = int(input())\nprint(2 * n if n < 6 else 0)", 0.5, 0),
        ("n = int(input())\nprint(2 * n if n < 11 else 0)", 11 / 12, 0),
        ("```text\nno program\n```", 0, 0),
        ("", 0, 0),
    ]
    tests = {"inputs": [f"{n}\n" for n in range(12)], "outputs": [f"{2 * n}\n" for n in range(12)]}
    task = task_from_row(row("taco") | {"reward_model": {"ground_truth": json.dumps(tests)}})
    try:
        configure(SandboxConfig(min_level="rlimits", workers=1))
        for reply, reward, success in cases:
            env = DataSourceEnv(DataSourceOptions(programs=True))
            env.reset(task)
            outcome = asyncio.run(env.step(reply))
            assert (outcome.team, outcome.info["success"]) == (pytest.approx(reward), success), reply
    finally:
        close_shared()


def test_programs_are_run_only_if_they_are_allowed() -> None:
    assert DataSourceEnv(DataSourceOptions(programs=True)).uses_sandbox and not DataSourceEnv().uses_sandbox
    with pytest.raises(
        AgentSystemError, match=r"replies to data_source='apps' are programs: set env\.params\.programs=true"
    ):
        DataSourceEnv().check_task(task_from_row(row("apps")))
    tests = {"reward_model": {"ground_truth": {"inputs": ["1"], "outputs": ["1"]}}}
    DataSourceEnv(DataSourceOptions(programs=True)).check_task(task_from_row(row("apps") | tests))
    with pytest.raises(AgentSystemError, match=r"env\.params\.programs has no effect"):
        DataSourceOptions(graded=False, programs=True)


@pytest.mark.parametrize("truth", ["1,234", "1234", 1234, 1234.0, ["1234"]])
def test_a_truth_is_equal_to_the_number_however_either_is_written(truth: object) -> None:
    env = DataSourceEnv()
    task = task_from_row(row("openai/gsm8k") | {"reward_model": {"ground_truth": truth}})
    env.check_task(task)
    for reply, reward in (("#### 1,234", 1), ("#### 1234", 1), ("#### 123", 0)):
        env.reset(task)
        assert asyncio.run(env.step(reply)).team == reward


@pytest.mark.parametrize("truth", ["$18", "3/4", "72 apples", "He has 3.\n#### 3", "x"])
def test_a_truth_that_no_reply_equals_is_refused(truth: str) -> None:
    task = task_from_row(row("openai/gsm8k") | {"reward_model": {"ground_truth": truth}})
    with pytest.raises(
        AgentSystemError, match=r"no reply equals the reward_model\.ground_truth .*expected digits"
    ):
        DataSourceEnv().check_task(task)


def test_the_agent_is_given_the_messages_unchanged() -> None:
    seen = DataSourceEnv().reset(task_from_row(row("openai/gsm8k")))
    assert DataSourceAgent("Single Agent").messages({**seen.info, "env_prompt": seen.text}) == MESSAGES


def test_the_measured_prompt_is_the_one_that_is_played() -> None:
    task = task_from_row(
        row("openai/gsm8k") | {"prompt": [{"role": "system", "content": "Be brief. " * 99}, *MESSAGES[1:]]}
    )
    team = scripted_team(
        "single", {"Single Agent": lambda prompt, request: "#### 42"}, env_name="data_source"
    )
    (episode,) = asyncio.run(team.collect([task], n=1, step=1)).episodes
    assert team.first_prompt_lengths("Single Agent", [task]) == [len(episode.samples[0].request.prompt_ids)]


def test_a_source_without_a_reward_is_refused_unless_a_function_scores() -> None:
    with pytest.raises(AgentSystemError, match="known: openai/gsm8k"):
        DataSourceEnv().check_task(task_from_row(row("other")))
    env = DataSourceEnv(DataSourceOptions(graded=False))
    env.reset(task_from_row(row("other")))
    assert asyncio.run(env.step("x")).team == 0


def test_the_environment_passes_the_conformance_test() -> None:
    check_env(
        lambda seed: DataSourceEnv(seed=seed),
        task_from_row(row("math_dapo")),
        ["Answer: 42"],
        team_range=(-1, 1),
    )


def program_score(truth: dict[str, object], reply: str) -> float:
    env = DataSourceEnv(DataSourceOptions(programs=True))
    env.reset(task_from_row(row("codecontests") | {"reward_model": {"ground_truth": json.dumps(truth)}}))
    return float(asyncio.run(env.step(reply)).team)


ADD = "def add(a, b):\n    return a + b"
CALLS = {"fn_name": "add", "inputs": ["1\n2", "3\n4"], "outputs": ["3", "7"]}


@pytest.mark.parametrize(
    ("truth", "reply", "reward"),
    [
        (CALLS, ADD, 1), (CALLS, "def add(a, b):\n    return 3", 0.5),
        (CALLS, "class Solution:\n    def add(self, a: int, b: int) -> int:\n        return a + b", 1),
        (CALLS, "from __future__ import annotations\ndef add(a: List[int], b) -> int:\n    return int(math.sqrt((a + b) ** 2))", 1),
        (CALLS | {"inputs": [[1, 2], [3, 4]], "outputs": [[3], [7]]}, ADD, 1),
        (CALLS | {"inputs": ['"a"\n"b"'], "outputs": ['"ab"']}, ADD, 1),
        (CALLS | {"inputs": ["[1]\n[2]"], "outputs": ["[1, 2]"]}, ADD, 1),
        (CALLS | {"inputs": ["[1]\n[2]"], "outputs": ["[[1, 2]]"]}, ADD, 1),
        (CALLS | {"outputs": [3, 7]}, ADD, 1),
        (CALLS | {"inputs": ["true\nfalse"], "outputs": ["1"]}, ADD, 1),
        (CALLS | {"inputs": ["null\n1"], "outputs": ["1"]}, ADD, 0),
        ({"inputs": ["1 2\n"], "outputs": [3]}, "print(sum(map(int, input().split())))", 1),
        ({"inputs": [["1", "2"]], "outputs": [["3", "4"]]}, "print(int(input()) + int(input()))\nprint(4)", 1),
        ({"inputs": ["16\n"], "outputs": ["4"]}, "print(isqrt(int(sys.stdin.readline())))", 1),
        ({"inputs": ["1\n"], "outputs": ["2"]}, "print(1)", 0),
    ],
)  # fmt: skip
def test_tests_in_verls_form_and_programs_in_the_form_of_its_judge_are_scored(truth, reply, reward) -> None:
    try:
        configure(SandboxConfig(min_level="rlimits", workers=1))
        assert program_score(truth, reply) == reward
    finally:
        close_shared()


@pytest.mark.parametrize(
    "box", [r"\boxed{42}", r"\fbox{42}", r"\boxed 42", r"$\boxed 42$.", r"\fbox {42}", r"\boxed {42}"]
)
def test_every_kind_of_box_is_read(box: str) -> None:
    env = DataSourceEnv()
    env.reset(task_from_row(row("lighteval/MATH")))
    assert asyncio.run(env.step(f"So it is {box}")).team == 1
    assert asyncio.run(env.step(f"So it is {box.replace('42', 'x')}")).team == 0


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        ("class Solution:\n    def add(self, a, b):\n        return a + b + 1", 0),
        ("class Solution:\n    def add(self, a, b):\n        return a + b", 1),
        ("add", 0),
        ("def add(a, b):\n    return a + b", 1),
    ],
)
def test_a_function_that_judges_import_is_not_the_one_of_the_program(reply: str, reward: float) -> None:
    assert program_score({"fn_name": "add", "inputs": ["1\n2"], "outputs": ["3"]}, reply) == reward
