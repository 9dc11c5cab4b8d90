"""The recipe of the colleagues: what the team is paid for, what the prompts tell apart, a run made small, and
the committed rows.

The small run is also that of recipe/skills.
"""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_system.environment import Task
from agent_system.testing import scripted_team
from recipe.roles.measure import LABELS
from recipe.roles.prepare import WORLD, Problem, to_row
from recipe.roles.team import COLLEAGUES, NAME, part
from tests.house.source import ROOT

SMALL = [
    "trainer.total_training_steps=1",
    "data.train_batch_size=2",
    "data.val_max_samples=4",
    "env.rollout.n=2",
    "env.rollout.val_n=1",
]
ROW = to_row(Problem("Ben", 6, 7, 19, 4), 0, "test")
TASK = Task("t", ROW["prompt"][0]["content"], ground_truth=ROW["reward_model"]["ground_truth"])


@pytest.mark.parametrize(
    ("replies", "success", "covered", "right"),
    [
        (("apples 6+7=13", "pears 19-4=15"), 1, 1, 1),
        (("pears 19-4=15", "apples 6+7=13"), 1, 1, 1),
        (("apples 6+7=13", "apples 6+7=13"), 0, 0, 1),
        (("apples 6+7=13", "pears 19-4=16"), 0, 1, 0.5),
        (("apples 6+7=13", "pears 19-4=15, apples 6+7=13"), 0, 0, 0.5),
    ],
)
async def test_the_team_is_paid_for_right_replies_about_different_parts(
    replies: tuple[str, str], success: float, covered: float, right: float
) -> None:
    team = scripted_team(NAME, {agent: [reply] for agent, reply in zip(COLLEAGUES, replies, strict=True)})
    found = await team.collect([TASK], n=1, step=1)
    columns = found.batch.non_tensor_batch
    assert list(columns["team_reward"]) == [success, success]
    assert sum(columns["local_reward"]) == 2 * right
    metrics = [found.metrics[name] for name in ("episode/success_rate", "env/covered", "env/right")]
    assert metrics == [success, covered, right]
    assert found.metrics["env/a/adds"] == replies[0].startswith("apples")


@pytest.mark.parametrize("named", [False, True])
async def test_only_named_prompts_tell_the_colleagues_apart_and_neither_shows_a_reply(named: bool) -> None:
    seen: dict[str, str] = {}

    def reply_of(agent: str) -> Callable[[str, object], str]:
        return lambda prompt, _: seen.setdefault(agent, prompt) and "apples 6+7=13"

    await scripted_team(
        NAME, {agent: reply_of(agent) for agent in COLLEAGUES}, options={"named": named}
    ).collect([TASK], n=1, step=1)
    assert (seen[COLLEAGUES[0]] == seen[COLLEAGUES[1]]) is not named
    assert all(TASK.prompt in prompt and "=" not in prompt for prompt in seen.values())


def test_demonstrations_answer_either_part_rightly_and_never_a_test_problem() -> None:
    tested = WORLD.tasks.split(10, 20, 3)
    demos = WORLD.demos(WORLD.course.__class__(count=400), 3, tested.test_keys)
    replies = [part(demo[-1]["content"]) for demo in demos]
    assert len(demos) == 400 and all(reply.valid for reply in replies)
    adds = sum(reply.action.startswith("apples") for reply in replies)
    assert 150 < adds < 250
    assert not any(demo[0]["content"].split(": ")[-1] in tested.test_keys for demo in demos)


@pytest.mark.parametrize(("recipe", "level"), [("roles", "L2"), ("skills", "L2_rank1")])
def test_the_script_trains_a_level_and_draws_it(
    recipe: str, level: str, checkout: Path, tmp_path: Path
) -> None:
    (tmp_path / "results.json").write_text(json.dumps([{"level": "L1", "seed": 7, "before": 0.3}]))
    command = [
        checkout / ".venv/bin/python",
        f"recipe/{recipe}/measure.py",
        "--seeds",
        "7",
        "--levels",
        level,
        "--out",
        str(tmp_path),
    ]
    subprocess.run(
        [*command, *SMALL], cwd=checkout, env=os.environ | {"DEMOS": "96"}, check=True, timeout=240
    )
    kept, row = json.loads((tmp_path / "results.json").read_text())
    assert kept == {"level": "L1", "seed": 7, "before": 0.3}
    assert (row["level"], row["seed"], row["steps"]) == (level, 7, 1)
    own = (
        ("covered_after", "right_after", "a_adds_after")
        if recipe == "roles"
        else ("coder_right_after", "coder_shelf_after")
    )
    assert all(0 <= row[name] <= 1 for name in ("before", "after", *own))
    assert list(json.loads((tmp_path / "curves.json").read_text())) == [f"{level}/7"]
    assert "<svg" in (tmp_path / "curves.svg").read_text()


def test_the_table_of_the_readme_is_that_of_the_committed_rows() -> None:
    folder = ROOT / "recipe" / "roles"
    rows, readme = (
        json.loads((folder / "results.json").read_text()),
        (folder / "README.md").read_text(encoding="utf-8"),
    )
    assert {row["level"] for row in rows} <= set(LABELS)
    for row in rows:
        shares = [
            f"{100 * row[f'{a}before']:.1f} → **{100 * row[f'{a}after']:.1f}**"
            for a in ("", "covered_", "right_")
        ]
        adds = [f"{100 * row[f'{colleague}_adds_after']:.0f}" for colleague in "ab"]
        assert f"| `{row['level']}` | {row['seed']} | {' | '.join(shares)} | {', '.join(adds)} |" in readme
    curves = json.loads((folder / "curves.json").read_text())
    assert {run: [points[0][1], points[-1][1]] for run, points in curves.items()} == {
        f"{row['level']}/{row['seed']}": [row["before"], row["after"]] for row in rows
    }
