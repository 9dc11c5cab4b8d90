import random

import pytest

from agent_system.workflows.sokoban import SokobanDifficulty
from agent_system.workflows.sokoban.world.generate import generate
from agent_system.workflows.sokoban.world.rules import MOVES, move, parse_room, render
from agent_system.workflows.sokoban.world.view import compact_text, view_text, way

from .conftest import TWO, UP

SEEN = """\
box U 1 R 0 goal U 1 R 0
U $ D - L - R -
a # # # # #
b # - . - -
c # - $ - -
d # - @ - -
e # - - - -"""


def test_the_compact_view_shows_the_ways_what_is_ahead_and_the_cells_around_the_box() -> None:
    assert compact_text(*parse_room(UP)) == SEEN


def test_every_sign_has_its_place_in_every_state() -> None:
    rng = random.Random(0)
    for puzzle in generate(5, 1, SokobanDifficulty(size=7, wall_share=0.2)):
        state = puzzle.start
        for _ in range(20):
            state = move(puzzle.room, state, rng.choice(MOVES)) or state
            view = compact_text(puzzle.room, state)
            assert [len(line.split()) for line in view.splitlines()] == [10, 8, 6, 6, 6, 6, 6]
            assert view.splitlines()[4].split()[3] == "$"


@pytest.mark.parametrize(
    ("end", "text"), [(7, "U 0 R 0"), (9, "U 0 R 2"), (6, "U 0 L 1"), (19, "D 2 R 0"), (1, "U 1 R 0")]
)
def test_a_way_names_rows_then_columns(end: int, text: str) -> None:
    assert way(parse_room(UP)[0], 7, end) == text


def test_the_map_is_shown_as_it_is_or_with_its_cells_apart() -> None:
    room, state = parse_room(TWO)
    assert (
        view_text(room, state, "map")
        == render(room, state)
        == view_text(room, state, "spaced").replace(" ", "")
    )
