"""A search in the scripted world as a process of its own, to be killed: `scripted_search.py FOLDER SECONDS`,
the time that every batch takes at least.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from agent_system.evolve.edits import Parts
from agent_system.evolve.evaluate import Batch
from agent_system.evolve.ledger import SearchLedger
from agent_system.evolve.replay import ReplayMemory
from agent_system.evolve.report import write_report
from agent_system.evolve.search import SearchInputs, TeamSearch
from agent_system.evolve.settings import EvolveSettings
from agent_system.workflows.graph.team import Team
from benchmarks.shared.scripted_lookup import ScriptedPlayer, roles_team, start_team


class SlowPlayer(ScriptedPlayer):
    """Counts its batches in a file, and takes a while for each."""

    async def play(self, teams: Sequence[Team], first: int, count: int, *, held_out: bool = False) -> Batch:
        batch = await super().play(teams, first, count, held_out=held_out)
        with open(Path(sys.argv[1]) / "batches", "a") as file:
            file.write(".")
        time.sleep(float(sys.argv[2]))
        return batch


def main() -> None:
    folder = Path(sys.argv[1])
    memory = ReplayMemory(folder / "replies.jsonl")
    settings = EvolveSettings(tasks=32, confirm=32, generations=4, children=2, budget_tokens=20_000)
    ledger = SearchLedger(folder, {"seed": 5}, memory)
    player = SlowPlayer(5, memory=memory)
    parts = Parts.of([start_team(), roles_team()])
    search = TeamSearch(SearchInputs(settings, 5, [start_team()], parts, player, num_val=32), ledger)
    asyncio.run(search.run())
    write_report(search, folder, lambda mean, count, confidence: (0.0, 1.0))


if __name__ == "__main__":
    main()
