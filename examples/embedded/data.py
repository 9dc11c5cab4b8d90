"""Write the generated tasks of any world of the embedded default, like
`python -m agent_system.workflows.data` for the built-in workflows:

    python -m examples.embedded.data search --out data/search --seed 0 --train 2000 --test 200

search also writes `corpus.jsonl` with the answers of both files.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent_system.workflows.data import run
from examples.embedded.worlds import WORLDS


def main(argv: Sequence[str] | None = None) -> None:
    """Write the tasks of a world."""
    run({name: world.tasks for name, world in WORLDS.items()}, argv)


if __name__ == "__main__":
    main()
