"""What the search for a team costs and finds in the scripted world, whose teams are played without a model,
beside a search that plays every new file on 256 tasks and believes these scores.

    python benchmarks/evolve.py

Both searches make edits from the Solver alone, with the roles of the world as parts. `episodes_share`:
episodes of the search over those of the other one. `regret`: utility (score less the price of tokens) of
the best team that is known, of hand-written ones and of those that any search chose, less that of the
chosen one. `optimism`: utility with which the file was chosen less its true one. `calls_share`: replies
that an engine would generate over all replies, the rest is replayed. All are means over searches; true
utilities are of `--truth` plays of held-out tasks, which no search plays. The last line is JSON:
`{"episodes_share", "regret", "optimism", "calls_share"}`; the numbers of the other search stand above it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import math
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent_system.evolve.archive import mean_score, mean_tokens
from agent_system.evolve.edits import Parts
from agent_system.evolve.ledger import SearchLedger
from agent_system.evolve.race import RULED_OUT
from agent_system.evolve.replay import ReplayMemory
from agent_system.evolve.search import SearchInputs, TeamSearch, final_episodes
from agent_system.evolve.settings import EvolveSettings
from agent_system.workflows.graph.team import Team
from benchmarks.shared.scripted_lookup import (
    REPLY_TOKENS,
    ScriptedPlayer,
    hand_written,
    roles_team,
    start_team,
)
from benchmarks.shared.short import parse_args

logger = logging.getLogger("evolve")
FIXED = 256
HAND_WRITTEN = [(tries, 1) for tries in (3, 5, 7, 9, 12)]


@dataclass(frozen=True)
class SearchResult:
    """What a search has found.

    Attributes:
        team: the file that it chose.
        believed: utility with which it chose it.
        episodes: number of episodes.
        calls_share: generated replies over all replies.
    """

    team: Team
    believed: float
    episodes: int
    calls_share: float


def run_search(seed: int, settings: EvolveSettings, limit: float) -> SearchResult:
    """Return the result of one search."""
    start = start_team()
    parts = Parts.of([start, roles_team()], settings.max_calls)
    with tempfile.TemporaryDirectory() as folder:
        ledger = SearchLedger(Path(folder), {"seed": seed}, ReplayMemory())
        search = TeamSearch(
            SearchInputs(settings, seed, [start], parts, ScriptedPlayer(seed), limit=limit), ledger
        )
        chosen = asyncio.run(search.run())
        ledger.close()
    believed = search.archive.mean_utility(final_episodes(chosen))
    counts = search.counts
    return SearchResult(chosen.team, believed, counts.episodes, counts.engine_calls / counts.calls)


def true_utilities(seed: int, teams: list[Team], price: float, tasks: int) -> list[float]:
    """Return the utility of teams on held-out tasks, each played several times with other replies."""
    batch = asyncio.run(ScriptedPlayer(seed).play(teams, 0, tasks, held_out=True))
    return [mean_score(played) - price * mean_tokens(played) / REPLY_TOKENS for played in batch.episodes]


def main() -> None:
    """Run searches of both kinds on the same seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--searches", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="seed of the first search")
    parser.add_argument("--truth", type=int, default=1536, help="plays for a true utility")
    parser.add_argument("--policy", choices=("evolution", "tree"), default="evolution")
    parser.add_argument("--generations", type=int, default=10)
    args = parse_args(parser, searches=2, truth=768)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    ours = EvolveSettings(policy=args.policy, generations=args.generations)
    fixed = EvolveSettings(policy=args.policy, generations=args.generations, tasks=FIXED, confirm=0)
    rows: dict[str, list[list[float]]] = {"ours": [], "fixed": []}
    for seed in range(args.first, args.first + args.searches):
        found = {"ours": run_search(seed, ours, RULED_OUT), "fixed": run_search(seed, fixed, math.inf)}
        known = [hand_written(*sizes) for sizes in HAND_WRITTEN]
        teams = [*(result.team for result in found.values()), *known]
        truths = true_utilities(seed, teams, ours.price, args.truth)
        for truth, (name, result) in zip(truths, found.items(), strict=False):  # the hand-written ones follow
            row = [result.episodes, max(truths) - truth, result.believed - truth, result.calls_share]
            rows[name].append(row)
            logger.info(
                "search %d, %s: episodes %d, regret %.3f, optimism %+.3f, calls %.2f", seed, name, *row
            )
    means = {name: [statistics.mean(column) for column in zip(*r, strict=True)] for name, r in rows.items()}
    logger.info("fixed %d: episodes %.0f, regret %.3f, optimism %+.3f, calls %.2f", FIXED, *means["fixed"])
    episodes, regret, optimism, calls = means["ours"]
    line = {
        "episodes_share": round(episodes / means["fixed"][0], 3),
        "regret": round(regret, 4),
        "optimism": round(optimism, 4),
        "calls_share": round(calls, 3),
    }
    logger.info(json.dumps(line))


if __name__ == "__main__":
    main()
