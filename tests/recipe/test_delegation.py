"""The recipe of delegation: what the teams are paid for, what fits a context, a run made small, and
the committed rows.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from agent_system.environment import Task
from agent_system.testing import scripted_team
from recipe.delegation.measure import HERE, LABELS
from recipe.delegation.prepare import CHAPTERS, FITS, WORLD, Document, LibraryCourse, generate, to_row
from recipe.delegation.team import ALONE, COUNTER, FINDER, NAME, PLANNER, READER

DOCUMENT = Document("gold", ("red gold blue", "red blue pink", "gold pink red"))
ROW = to_row(DOCUMENT, 0, "test")
TASK = Task("t", DOCUMENT.question, ground_truth=ROW["reward_model"]["ground_truth"], extra=ROW["extra_info"])


@pytest.mark.parametrize(
    ("plan", "count", "success", "whole", "children"),
    [
        ("gold 1\ngold 2\ngold 3", "2", 1, 1, 3),
        ("gold 1\ngold 3", "2", 1, 0, 2),
        ("gold 1\ngold 2\ngold 3", "1", 0, 1, 3),
        ("gold 9\ngold 1", "2", 1, 0, 2),
        ("no plan", "2", 1, 0, 0),
        ("\n".join(["gold 1"] * 99), "2", 1, 0, 6),
    ],
)
async def test_the_team_is_paid_for_the_right_number_and_children_read_a_chapter_each(
    plan: str, count: str, success: float, whole: float, children: int
) -> None:
    def find(prompt: str, _: object) -> str:
        return "yes" if prompt.count("gold") == 2 else "no"

    replies = {PLANNER: [plan], FINDER: find, COUNTER: [count]}
    result = await scripted_team(NAME, replies).collect([TASK], n=1, step=1)
    names = ("episode/success_rate", "env/plan/whole", "env/children")
    assert [result.metrics[name] for name in names] == [success, whole, children]
    samples = result.episodes[0].samples
    assert all(s.team_reward == success and s.depth == (s.agent_id == FINDER) for s in samples)
    assert all(s.prompt_text.count("red") == 1 for s in samples if s.agent_id == FINDER)


async def test_the_reader_alone_sees_what_fits_of_the_end_of_the_document() -> None:
    team = scripted_team(ALONE, {READER: ["2"]}, env_name=NAME, max_prompt_length=70)
    result = await team.collect([TASK], n=1, step=1)
    (sample,) = result.episodes[0].samples
    assert result.metrics["episode/success_rate"] == 1 and sample.dropped_context >= 1
    assert "gold pink red" in sample.prompt_text and "red gold blue" not in sample.prompt_text


def test_documents_are_longer_than_what_fits_and_demonstrations_are_of_every_role() -> None:
    documents = generate(300, "x")
    assert min(len(d.chapters) for d in documents) == CHAPTERS[0] > FITS
    share = sum(d.answers.count("yes") for d in documents) / sum(len(d.chapters) for d in documents)
    assert 0.45 < share < 0.55
    demos = WORLD.demos(LibraryCourse(count=400), 3, frozenset())
    roles = {demo[0]["content"].split()[0] for demo in demos}
    assert roles == {"plan", "find", "count", "read"}


def test_the_script_trains_a_team_and_draws_it(checkout: Path, tmp_path: Path) -> None:
    small = ["trainer.total_training_steps=1", "data.train_batch_size=2", "data.val_max_samples=4",
        "env.rollout.n=2", "env.rollout.val_n=1"]  # fmt: skip
    command = [checkout / ".venv/bin/python", "recipe/delegation/measure.py", "--seeds", "7", "--teams",
        "delegation", "--out", str(tmp_path)]  # fmt: skip
    environment = os.environ | {"DEMOS": "96"}
    subprocess.run([*command, *small], cwd=checkout, env=environment, check=True, timeout=240)
    (row,) = json.loads((tmp_path / "results.json").read_text())
    assert (row["team"], row["seed"], row["steps"]) == ("delegation", 7, 1)
    assert "<svg" in (tmp_path / "curves.svg").read_text()


def test_the_table_of_the_readme_is_that_of_the_committed_rows() -> None:
    rows = json.loads((HERE / "results.json").read_text())
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    assert {row["team"] for row in rows} == set(LABELS)
    for row in rows:
        shares = [f"{100 * row['before']:.1f} → **{100 * row['after']:.1f}**"]
        for name in ("plan_whole", "finder_right", "counter_right"):
            shares.append(
                f"{100 * row[f'{name}_before']:.1f} → {100 * row[f'{name}_after']:.1f}"
                if f"{name}_after" in row
                else "-"
            )
        assert f"| `{row['team']}` | {row['seed']} | {' | '.join(shares)} |" in readme
    curves = json.loads((HERE / "curves.json").read_text())
    assert {run: [points[0][1], points[-1][1]] for run, points in curves.items()} == {
        f"{row['team']}/{row['seed']}": [row["before"], row["after"]] for row in rows
    }
