import pytest

from agent_system import AgentSystemError
from agent_system.workflows.plan_path.world.grid import parse_map
from agent_system.workflows.plan_path.world.rules import walk
from tests.agent_system.workflows.plan_path.conftest import AROUND


def test_distances_go_around_the_walls():
    grid = parse_map(AROUND)
    # Rows of distances to the goal at the top right; -1 is a wall.
    assert grid.distances == (6, -1, 0, 5, -1, 1, 4, 3, 2)
    assert grid.shortest == 6 and grid.shortest_moves(grid.start) == "DDRRUU"
    assert walk(grid, grid.start, "DDRRUU").reached


def test_text_of_a_map_makes_the_same_map():
    assert parse_map(AROUND).text == AROUND and parse_map(parse_map(AROUND).text) == parse_map(AROUND)


def test_moves_never_wrap_around_an_edge():
    grid = parse_map("S..\n..G")
    assert (
        grid.after(2, "R") is None
        and grid.after(3, "L") is None
        and grid.after(0, "U") is None
        and grid.after(5, "D") is None
    )
    assert [grid.after(4, move) for move in "UDLR"] == [1, None, 3, 5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("S#G", "cannot be solved"),
        ("S..\n.G", "rows of one length"),
        ("", "1 to 64 rows"),
        ("S.S\n..G", "2 S"),
        ("...\n..G", "0 S"),
        ("S.x\n..G", "'x'"),
        ("S" + "." * 80 + "G", "1 to 64 rows"),
    ],
)
def test_a_bad_map_is_refused_with_its_reason(text, message):
    with pytest.raises(AgentSystemError, match=message):
        parse_map(text)
