"""The recipe of the search for a team: its demonstrations and hand-written teams, a search and a play made
small, kills made few, and the committed rows.
"""

import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from agent_system.workflows.graph.team import Team
from benchmarks.shared.scripted_lookup import roles_team
from recipe.evolve.measure import (
    COLUMNS,
    HERE,
    SEARCHES,
    at_equal_tokens,
    best_hand_written,
    held_out_columns,
    table,
)
from recipe.evolve.prepare import PRODUCTS, SHARES, WORLD, EvolveCourse, all_tasks, some_products
from recipe.evolve.teams import TEAMS

ROWS = json.loads((HERE / "results.json").read_text())
SMALL = ["evolve.generations=3", "evolve.children=2", "evolve.tasks=16", "evolve.confirm=16",
    "data.val_max_samples=8", "env.rollout.val_n=1"]  # fmt: skip


def test_demonstrations_have_the_prompts_of_the_files_and_the_rates_of_the_world() -> None:
    demos = WORLD.demos(EvolveCourse(count=20_000), 3, frozenset())
    by_role = Counter(demo[0]["content"].split(":")[0] for demo in demos)
    assert by_role.keys() == {"Code", "Check", "File"}
    assert by_role["Code"] == pytest.approx(20_000 * SHARES["Solver"], rel=0.05)
    products = {item.name: item for item in some_products(3)}
    right = [0, 0]
    for demo in demos:
        prompt, reply = (message["content"] for message in demo)
        if prompt.startswith("Check"):
            *name, _, said = prompt.partition(": ")[2].split()
            right[(reply == "right") == (products[" ".join(name)].code == said)] += 1
    assert right[1] / sum(right) == pytest.approx(0.95, abs=0.01)
    assert {agent.prompt for agent in roles_team().agents.values()} == {
        "Code: {env_prompt}",
        "Check: {env_prompt}{team_context}",
        "File:{team_context}",
    }


def test_the_search_sees_no_product_that_is_held_out() -> None:
    train, test = all_tasks(0, 0, 3)
    assert len(train) + len(test) == 2 * PRODUCTS
    assert not {task.product.name for task in train} & {task.product.name for task in test}


@pytest.mark.parametrize("world", TEAMS)
def test_hand_written_teams_differ(world: str) -> None:
    teams = TEAMS[world]()
    assert len({team.key() for team in teams.values()}) == len(teams)
    assert max(team.calls for team in teams.values()) <= 32, "what a search may find, too"


def test_the_script_searches_plays_and_keeps_rows(checkout: Path, tmp_path: Path) -> None:
    earlier = {"world": "lookup", "weights": "warm", "seed": 7, "team": "alone", "acc": 0.5}
    (tmp_path / "results.json").write_text(json.dumps([earlier]))
    command = [
        checkout / ".venv/bin/python",
        "recipe/evolve/measure.py",
        "--worlds",
        "lookup",
        "--seeds",
        "7",
    ]
    command += ["--out", str(tmp_path), "--teams", "alone", "random", "vote_3", "--"]
    environment = os.environ | {"DEMOS": "2000"}
    subprocess.run([*command, *SMALL], cwd=checkout, env=environment, check=True, timeout=240)
    kept, random, vote = json.loads((tmp_path / "results.json").read_text())
    assert kept == earlier
    assert (random["team"], vote["team"]) == ("random", "vote_3")
    assert random["search_tokens"] > 0 and vote["search_tokens"] is None
    assert 0 <= random["low"] <= random["acc"] <= random["high"] <= 1
    assert vote["reply_tokens"] > vote["critical_tokens"] > 0 and vote["prompt_tokens"] > 0
    Team.load(tmp_path / random["file"])
    assert Team.load(tmp_path / vote["file"]).key() == TEAMS["lookup"]()["vote_3"].key()


def test_a_row_of_a_search_that_trained_is_of_its_own_play_of_the_held_out_tasks(tmp_path: Path) -> None:
    batches = [{"a": [[1.0, 4, 2], [0.0, 6, 4]], "b": [[0.0, 1, 1]] * 2}, {"a": [[1.0, 2, 3]]}]
    events = [{"event": "play", "episodes": {"a": [[0.0, 9, 9]]}}]
    events += [{"event": "held_out", "episodes": batch} for batch in batches]
    lines = [json.dumps(event) for event in [*events, {"event": "chosen", "file": "a"}]]
    (tmp_path / "ledger.jsonl").write_text("\n".join(lines) + "\n")
    row = held_out_columns(tmp_path / "ledger.jsonl")
    assert (row["acc"], row["reply_tokens"], row["critical_tokens"]) == (0.6667, 4.0, 3.0)
    assert 0 < row["low"] < row["acc"] < row["high"] < 1


def test_a_search_that_is_killed_at_random_moments_is_the_undisturbed_one(
    checkout: Path, tmp_path: Path
) -> None:
    small = ["evolve.generations=3", "evolve.tasks=32", "evolve.confirm=32", "data.val_max_samples=16"]
    command = [
        checkout / ".venv/bin/python",
        "recipe/evolve/kills.py",
        "--kills",
        "2",
        "--out",
        str(tmp_path),
    ]
    environment = os.environ | {"DEMOS": "2000"}
    subprocess.run([*command, "--", *small], cwd=checkout, env=environment, check=True, timeout=300)
    row = json.loads((tmp_path / "kills.json").read_text())
    assert row["identical"] and row["tokens"] <= row["undisturbed_tokens"] + 2 * row["largest_batch"]


def test_the_table_of_the_readme_is_that_of_the_committed_rows() -> None:
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    for line in table(ROWS):
        assert f"{line}\n" in readme
    assert all(set(COLUMNS) <= set(row) for row in ROWS)
    for row in ROWS:
        assert (HERE / row["file"]).is_file()
        Team.load(HERE / row["file"])


def test_the_rows_of_the_present_search_and_of_mathematics_are_in_the_readme() -> None:
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    again = json.loads((HERE / "again.json").read_text())
    for line in table([*(row for row in ROWS if row["search_tokens"] is None), *again]):
        assert f"{line}\n" in readme
    for row in again:
        assert Team.load(HERE / row["file"]).calls <= 32
        assert row["acc"] >= at_equal_tokens(ROWS, "vote", row)["acc"] + 0.12
    for row in (row for row in ROWS if row["world"] == "math"):
        acc, low, high = (f"{100 * row[name]:.1f}" for name in ("acc", "low", "high"))
        assert (
            f"| {row['weights']} | {row['seed']} | {row['team']} | {acc} [{low}, {high}] | "
            f"{row['reply_tokens']:.1f} |"
        ) in readme


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_search_in_lookup_beats_votes_and_reaches_the_best_hand_written_team(seed: int) -> None:
    evolved = [
        row for row in ROWS
        if row["world"] == "lookup" and row["seed"] == seed and row["team"] in SEARCHES[:2]
    ]  # fmt: skip
    assert len(evolved) == 2
    for row in evolved:
        assert row["acc"] >= at_equal_tokens(ROWS, "vote", row)["acc"] + 0.12
        assert row["acc"] >= best_hand_written(ROWS, row)["acc"] - 0.03


def test_kills_changed_nothing_and_cost_less_than_a_batch_each() -> None:
    row = json.loads((HERE / "kills.json").read_text())
    assert row["identical"] and row["kills"] == 19
    assert row["undisturbed_tokens"] <= row["tokens"]
    assert row["tokens"] <= row["undisturbed_tokens"] + row["kills"] * row["largest_batch"]
