"""The hand-written teams beside which a search is measured."""

from __future__ import annotations

import json
from pathlib import Path

from agent_system.workflows.graph.team import Team
from benchmarks.shared.scripted_lookup import ALONE, ROLES, hand_written
from recipe.runs import ROOT

MATH_ALONE = ROOT / "examples" / "evolve" / "alone_short.yaml"
MATH_TEAM = ROOT / "agent_system" / "workflows" / "math" / "team_short.yaml"
VOTES = (3, 5, 7, 9)
# Most tries of a Solver whose replies are checked.
TRIES = (2, 3, 5, 8, 12)
# Tries of a vote of three that is checked.
VOTE_TRIES = (2, 3)


def lookup_teams() -> dict[str, Team]:
    """Return the teams of the world `lookup` by name; all but `alone` have the Filer."""
    teams = {"alone": Team.parse(ALONE, name="alone"), "alone_filed": hand_written(1, 1)}
    teams |= {f"vote_{n}": hand_written(1, n) for n in VOTES}
    teams |= {f"checked_{tries}": hand_written(tries, 1) for tries in TRIES}
    return teams | {f"checked_{tries}_vote_3": hand_written(tries, 3) for tries in VOTE_TRIES}


def math_teams() -> dict[str, Team]:
    """Return the teams of mathematics by name: Solvers, and the Solver and Verifier of the workflow with
    several limits.
    """
    alone = Team.load(MATH_ALONE).source.value
    both = Team.load(MATH_TEAM).source.value
    teams = {"alone": Team.load(MATH_ALONE)}
    for n in VOTES:
        vote = {"vote": "Solver Agent", "n": n, "id": "solution"}
        teams[f"vote_{n}"] = _team(alone | {"do": [vote]})
    for tries in TRIES:
        teams[f"checked_{tries}"] = _team(both | {"do": [both["do"][0] | {"loop": tries}]})
    return teams


def start_files(world: str, folder: Path) -> tuple[Path, Path]:
    """Return the file with which a search begins, and that whose parts its edits take; those of `lookup`
    are written into a folder.
    """
    if world == "math":
        return MATH_ALONE, MATH_TEAM
    folder.mkdir(parents=True, exist_ok=True)
    files = folder / "start.yaml", folder / "parts.yaml"
    for path, text in zip(files, (ALONE, ROLES), strict=True):
        path.write_text(text, encoding="utf-8")
    return files


def _team(value: object) -> Team:
    return Team.parse(json.dumps(value), name="team", is_json=True)


TEAMS = {"lookup": lookup_teams, "math": math_teams}
