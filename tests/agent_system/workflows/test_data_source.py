"""The reward by data_source: verl's rules for each known one."""

import asyncio

import pytest

from agent_system.errors import AgentSystemError
from agent_system.task import task_from_row
from agent_system.testing import check_env, scripted_team
from agent_system.workflows.data_source import DataSourceAgent, DataSourceEnv, DataSourceOptions

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


def test_the_agent_is_given_the_messages_unchanged() -> None:
    seen = DataSourceEnv().reset(task_from_row(row("openai/gsm8k")))
    assert DataSourceAgent("Single Agent").messages({**seen.info, "env_prompt": seen.text}) == MESSAGES


def test_the_measured_prompt_is_the_one_that_is_played() -> None:
    task = task_from_row(row("openai/gsm8k") | {"prompt": [{"role": "system", "content": "Be brief. " * 99}, *MESSAGES[1:]]})
    team = scripted_team("single", {"Single Agent": lambda prompt, request: "#### 42"}, env_name="data_source")
    (episode,) = asyncio.run(team.collect([task], n=1, step=1)).episodes
    assert team.first_prompt_lengths("Single Agent", [task]) == [len(episode.samples[0].prompt_ids)]


def test_a_source_without_a_reward_is_refused_unless_a_function_scores() -> None:
    with pytest.raises(AgentSystemError, match="known: openai/gsm8k"):
        DataSourceEnv().check_source("other")
    env = DataSourceEnv(DataSourceOptions(graded=False))
    env.reset(task_from_row(row("other")))
    assert asyncio.run(env.step("x")).team == 0


def test_the_environment_passes_the_conformance_test() -> None:
    check_env(lambda seed: DataSourceEnv(seed=seed), task_from_row(row("math_dapo")), ["Answer: 42"], team_range=(-1, 1))
