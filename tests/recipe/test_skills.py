"""The recipe of the depot: what each role is paid for, what the warm start shows, what can be stored, and the
committed rows.

Its small run is in test_roles.py.
"""

import json
import runpy
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from agent_system.environment import Task
from agent_system.testing import scripted_team
from recipe.skills.measure import HERE, LABELS
from recipe.skills.prepare import COLOURS, SIZE, WORLD, Product, products, to_row
from recipe.skills.team import CODER, FILER, LETTERS, NAME, Coder, Filer
from verl.models.tiny import make_tiny_model

LEVELS = yaml.safe_load((HERE / "config.yaml").read_text())["levels"]


@pytest.mark.parametrize(
    ("letters", "code", "shelf", "coder", "filer", "shelf_as_code"),
    [
        ("CF", "code C", "shelf F", 1, 1, 0),
        ("CF", "code F", "shelf F", 0, 1, 1),
        ("CF", "code C", "shelf C", 1, 0, 0),
        ("CF", "shelf C", "code F", 0, 0, 0),
        ("CF", "code A", "shelf F.", 0, 0, 0),
        ("CC", "code C", "shelf F", 1, 0, 0),
    ],
)
async def test_each_role_is_paid_for_its_letter_and_the_team_for_both(
    letters: str, code: str, shelf: str, coder: float, filer: float, shelf_as_code: float
) -> None:
    row = to_row(Product("red kiwi", *letters), 0, "test")
    task = Task("t", row["prompt"][0]["content"], ground_truth=row["reward_model"]["ground_truth"])
    seen: dict[str, str] = {}

    def reply_of(agent: str, reply: str) -> Callable[[str, object], str]:
        return lambda prompt, _: seen.setdefault(agent, prompt) and reply

    team = scripted_team(NAME, {CODER: reply_of(CODER, code), FILER: reply_of(FILER, shelf)})
    found = await team.collect([task], n=1, step=1)
    columns = found.batch.non_tensor_batch
    assert dict(zip(columns["agent_id"], columns["local_reward"], strict=True)) == {
        CODER: coder,
        FILER: filer,
    }
    assert set(columns["team_reward"]) == {coder * filer}
    assert [found.metrics[f"env/{name}"] for name in ("coder/right", "filer/right", "coder/shelf")] == [
        coder,
        filer,
        shelf_as_code,
    ]
    assert "code: red kiwi" in seen[CODER] and "shelf: red kiwi" in seen[FILER]


def test_codes_need_every_product_and_shelves_the_colour_alone() -> None:
    items = products(3)
    assert (
        Counter(item.code for item in items)
        == Counter(item.shelf for item in items)
        == dict.fromkeys(LETTERS, 8)
    )
    shelves = {(item.name.split()[0], item.shelf) for item in items}
    codes = {(item.name.split()[0], item.code) for item in items}
    assert len(shelves) == len(COLOURS) and len(codes) > 3 * len(COLOURS)
    assert products(3) == items != products(4)


def test_demonstrations_have_the_form_of_right_replies_and_no_answer() -> None:
    demos = WORLD.demos(WORLD.course.__class__(count=4000), 3, frozenset())
    given = Counter(
        role.project(demo[-1]["content"]).action for demo in demos for role in (Coder(CODER), Filer(FILER))
    )
    assert given.pop("") == 4000 and set(given) == set(LETTERS)  # every reply is one of one role
    answers = {
        f"{word}: {item.name}": f"{word} {getattr(item, word)}"
        for item in products(3)
        for word in ("code", "shelf")
    }
    right = sum(answers[demo[0]["content"]] == demo[-1]["content"] for demo in demos)
    assert 400 < right < 600


def test_a_model_stores_more_in_a_few_steps_than_one_for_both_roles_and_an_adapter_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demos = WORLD.demos(WORLD.course.__class__(count=600), 0, frozenset())
    base = make_tiny_model(
        tmp_path / "base", ["\n".join(message["content"] for message in demo) for demo in demos], size=SIZE
    )
    given = ["fit.py", "--base", str(base), "--seeds", "0", "--steps", "25", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", given)
    runpy.run_module("recipe.skills.fit", run_name="__main__")
    rows = {row["level"]: row for row in json.loads((tmp_path / "fit.json").read_text())}
    assert list(rows) == sorted(LEVELS) and all(row["seed"] == 0 for row in rows.values())
    one, adapter, own = (rows[level] for level in ("L1", "L2_rank1", "L3"))
    assert own["coder"] > one["coder"] > 5 * adapter["coder"]
    assert own["filer"] > 0.5 > one["filer"] > 5 * adapter["filer"]


def test_the_tables_of_the_readme_are_those_of_the_committed_rows() -> None:
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    rows, fits, curves = (
        json.loads((HERE / name).read_text()) for name in ("results.json", "fit.json", "curves.json")
    )
    runs = [(level, seed) for level in LABELS for seed in (0, 1, 2)]
    assert (
        [(row["level"], row["seed"]) for row in rows] == [(row["level"], row["seed"]) for row in fits] == runs
    )
    for row, fitted in zip(rows, fits, strict=True):
        team = f"{100 * row['before']:.1f} → **{100 * row['after']:.1f}**"
        shares = [f"{100 * row[name]:.1f}" for name in ("coder_right_after", "filer_right_after")]
        shares.append(f"{100 * row['coder_shelf_after'] / (1 - row['coder_right_after']):.0f}")
        stored = [f"{100 * fitted['coder']:.0f}, {100 * fitted['filer']:.0f}"]
        assert f"| `{row['level']}` | {row['seed']} | {' | '.join([team, *shares, *stored])} |" in readme
    assert {run: [points[0][1], points[-1][1]] for run, points in curves.items()} == {
        f"{row['level']}/{row['seed']}": [row["before"], row["after"]] for row in rows
    }
