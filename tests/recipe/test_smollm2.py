"""The recipe of the pretrained model: its second team, its tasks, and the committed rows. The script itself
trains for a quarter of an hour; `tests/e2e/test_smollm2.py` trains the first team with the real model.
"""

import json
from pathlib import Path

import pytest
import yaml

from agent_system.environment import BaseEnv, Task
from agent_system.testing import scripted_team
from examples.smollm2.team import TwoWords
from examples.smollm2.words import write
from recipe.smollm2.measure import KINDS_OF_WORDS, LABELS
from recipe.smollm2.team import CORRECTOR, FINDER, KINDS, NAME, ThreeWords
from tests.house.source import ROOT

FOLDER = ROOT / "recipe" / "smollm2"
TASK = Task("t", "horse, Peru, table", ground_truth="Peru/horse/table")


@pytest.mark.parametrize(
    ("first", "second", "success", "local"),
    [
        ("horse", "Peru.", 1, [0, 1]),
        ("It is Peru", "horse", 0, [1, 0]),
        ("Peru", "peru", 1, [1, 1]),
        ("Peru, horse", "Peru and table", 0, [0, 0]),
        ("Peruvian", "", 0, [0, 0]),
    ],
)
async def test_the_second_turn_answers_for_the_team_and_each_agent_is_paid_for_its_own_answer(
    first: str, second: str, success: float, local: list[float]
) -> None:
    team = scripted_team(NAME, {FINDER: [first], CORRECTOR: [second]}, max_steps=2)
    found = await team.collect([TASK], n=1, step=1)
    columns = found.batch.non_tensor_batch
    rewards = dict(zip(columns["agent_id"], columns["local_reward"], strict=True))
    assert [rewards[FINDER], rewards[CORRECTOR]] == local
    assert list(columns["turn"]) == [1, 2]
    assert set(columns["team_reward"]) == {success}


@pytest.mark.parametrize(
    ("team", "env", "second"), [("animals", TwoWords, "Checker"), (NAME, ThreeWords, CORRECTOR)]
)
async def test_both_teams_answer_a_person(team: str, env: type[BaseEnv], second: str) -> None:
    replies = {FINDER: ["lion"], second: ["the lion"]}
    episode_turns = 1 if env is TwoWords else 2
    found = await scripted_team(team, replies, max_steps=episode_turns).collect(
        [env.question("lion, Peru, kettle")], n=1, step=1
    )
    samples = found.episodes[0].samples
    assert [sample.action for sample in samples] == ["lion", "the lion"]
    assert all("lion, Peru, kettle" in sample.request.prompt_text for sample in samples)


def test_no_word_of_the_test_is_in_the_training(tmp_path: Path) -> None:
    write(tmp_path, 3, KINDS, train=400, test=60)
    words = {
        name: {
            word
            for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()
            for word in json.loads(line)["reward_model"]["ground_truth"].split("/")
        }
        for name in ("train", "test")
    }
    assert not words["train"] & words["test"]
    assert len(words["test"]) <= 48 < len(words["train"])


def test_both_tasks_have_keys_words_and_a_label() -> None:
    config = yaml.safe_load((FOLDER / "config.yaml").read_text())
    assert set(config["tasks"]) == set(KINDS_OF_WORDS) == set(LABELS)


def test_the_table_of_the_readme_is_that_of_the_committed_rows() -> None:
    rows = json.loads((FOLDER / "results.json").read_text())
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert rows and {row["task"] for row in rows} <= set(LABELS)
    for row in rows:
        share = f"{100 * row['before']:.1f} → **{100 * row['after']:.1f}**"
        figures = f"{row['minutes']:.0f} | {row['peak_gib']:.2f} | {row['said_gib']:.2f}"
        assert f"| `{row['task']}` | {row['seed']} | {share} | {figures} |" in readme
        assert row["after"] >= row["before"] + 0.4
        assert row["peak_gib"] <= 5
        assert row["minutes"] <= 30
