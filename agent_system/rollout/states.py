"""States of an environment for readers of its episodes (`BaseEnv.render`), in JSON types."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from agent_system.env_caller import EnvHandle
from agent_system.env_workers.messages import EnvWorkerError
from agent_system.environment import Grid
from agent_system.errors import AgentSystemError

logger = logging.getLogger(__name__)

LONGEST_TEXT = 20_000
MOST_CELLS = 64 * 64
MOST_SYMBOLS = 64
LONGEST_CELL = 16
LONGEST_MEANING = 80
# Classes whose `render` has failed.
_failed: set[str] = set()


class StateRecord:
    """The states of one episode.

    Attributes:
        states: that after the reset, and that after every turn; None for one that is not drawn. A
            grid without `legend` has that of the last one that has it, and a row is a text where
            every cell is one character.
    """

    def __init__(self) -> None:
        self.states: list[Any] = []
        self._legend: dict[str, str] | None = None

    async def add(self, env: EnvHandle) -> None:
        """Record the present state. An error of `render` is logged once for a class, and the state
        is None.

        Raises:
            EnvWorkerError: the environment's worker died.
        """
        self.states.append(await self._state(env))

    async def _state(self, env: EnvHandle) -> Any:
        try:
            drawing = await env.render()
            if not isinstance(drawing, Grid):
                return _text(drawing)
            cells, legend = _cells(drawing)
        except EnvWorkerError:
            raise
        except Exception as error:
            # of a user's class, which costs no episode
            if env.name not in _failed:
                logger.warning(
                    "%s.render() gives no state for trajectories/: %s: %s",
                    env.name,
                    type(error).__name__,
                    error,
                )
            _failed.add(env.name)
            return None
        rows = (
            ["".join(row) for row in cells] if all(len(cell) == 1 for row in cells for cell in row) else cells
        )
        if legend == self._legend:
            return {"cells": rows}
        self._legend = legend
        return {"cells": rows, "legend": legend}


def _text(drawing: Any) -> str | None:
    if drawing is not None and not isinstance(drawing, str):
        raise AgentSystemError(f"it must return a str, a Grid or None, found {type(drawing).__name__}")
    if drawing is not None and len(drawing) > LONGEST_TEXT:
        raise AgentSystemError(f"its text has {len(drawing)} characters, more than {LONGEST_TEXT}")
    return drawing


def _cells(grid: Grid) -> tuple[list[list[str]], dict[str, str]]:
    rows = grid.cells
    if not isinstance(rows, Sequence) or not all(isinstance(row, Sequence) for row in rows):
        raise AgentSystemError("Grid.cells must be rows of texts, such as ['#..', '#.P']")
    # a row may also be a text, of which each character is a cell
    cells = [[str(cell) for cell in row] for row in rows]
    count = sum(map(len, cells))
    if len({len(row) for row in cells}) != 1 or not 0 < count <= MOST_CELLS:
        raise AgentSystemError(f"Grid.cells must be equally long rows of up to {MOST_CELLS} cells in all")
    if (longest := max(len(cell) for row in cells for cell in row)) > LONGEST_CELL:
        raise AgentSystemError(f"a cell has {longest} characters, more than {LONGEST_CELL}")
    if not isinstance(grid.legend, Mapping) or len(grid.legend) > MOST_SYMBOLS:
        raise AgentSystemError(
            f"Grid.legend must have up to {MOST_SYMBOLS} entries of a cell and its meaning"
        )
    legend = {
        str(cell)[:LONGEST_CELL]: str(meaning)[:LONGEST_MEANING] for cell, meaning in grid.legend.items()
    }
    return cells, legend
