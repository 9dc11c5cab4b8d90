import pytest

from agent_system import Task
from agent_system.workflows.plan_path import EXECUTOR, PlanPathEnv, PlanPathEnvOptions
from agent_system.workflows.plan_path.world.grid import parse_map
from agent_system.workflows.plan_path.world.render import compact_text, grid_text, replay, save_gif
from agent_system.workflows.plan_path.world.rules import advance, initial_state, walk
from tests.agent_system.workflows.plan_path.conftest import AROUND


def after(grid, moves):
    state = initial_state(grid)
    return advance(grid, state, walk(grid, state.cell, moves))


def test_grid_view_shows_the_map_the_position_and_the_goal():
    text = grid_text(parse_map(AROUND), after(parse_map(AROUND), "DD"))
    assert text.splitlines()[:3] == [".#G", ".#.", "@.."]
    assert "row 2, column 0" in text and "row 0, column 2" in text


def test_compact_view_shows_the_way_the_cells_ahead_and_where_the_team_was():
    text = compact_text(parse_map(AROUND), after(parse_map(AROUND), "DDUDR"), 2)
    assert text == "go U 2 R 1 at 1\nU # # D # # L 2 # R . #"
    assert (
        compact_text(parse_map("S.G"), initial_state(parse_map("S.G")), 3)
        == "go D 0 R 2 at 1\nU # # # D # # # L # # # R . G #"
    )


def test_compact_view_has_the_same_length_wherever_the_team_is():
    grid = parse_map("S....\n.....\n....G")
    lengths = {len(compact_text(grid, after(grid, moves), 3)) for moves in ("R", "DR", "RRRR", "DDRRR")}
    assert len(lengths) == 1


def test_env_shows_the_view_that_is_asked_for():
    views = [
        PlanPathEnv(PlanPathEnvOptions(view=view)).reset(Task("t", AROUND)).text
        for view in ("grid", "compact")
    ]
    assert views[0].startswith("@#G") and views[1].startswith("go D 0 R 2")


@pytest.mark.parametrize("max_moves", [1, 2, 4])
def test_a_replay_is_what_the_environment_did(max_moves):
    actions = ["DDR", "nonsense", "LLLL", "RR", "UUUU"]
    env = PlanPathEnv(PlanPathEnvOptions(max_moves=max_moves))
    env.reset(Task("t", AROUND))
    for action in actions:
        env.act(EXECUTOR, action)
        env.step(action)
    cells = replay(parse_map(AROUND), actions, max_moves)
    assert (cells[-1], len(cells) - 1) == (env._state.cell, env._state.moves)


def test_gif_has_a_frame_for_every_cell(tmp_path):
    image = pytest.importorskip("PIL.Image")
    grid = parse_map(AROUND)
    save_gif(
        tmp_path / "walk.gif", grid, [grid.start, *walk(grid, grid.start, "DDRRUU").cells], cell_pixels=8
    )
    with image.open(tmp_path / "walk.gif") as gif:
        assert gif.n_frames == 7 and gif.size == (24, 24)


def test_gif_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="one cell or more"):
        save_gif(tmp_path / "walk.gif", parse_map(AROUND), [])
