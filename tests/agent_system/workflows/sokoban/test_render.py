import pytest

from agent_system.workflows.sokoban.render import CELL, draw, replay, save_gif, save_png
from agent_system.workflows.sokoban.rules import is_solved

from .conftest import UP

PIL = pytest.importorskip("PIL.Image")


def test_an_episode_becomes_a_gif_of_its_states(tmp_path) -> None:
    room, states = replay(UP, ["D", "nonsense", "LLL", "RUU"])
    assert len(states) == 6 and is_solved(room, states[-1])
    save_gif(tmp_path / "episode.gif", room, states)
    with PIL.open(tmp_path / "episode.gif") as gif:
        assert gif.n_frames == 6 and gif.size == (6 * CELL, 6 * CELL)


def test_pictures_tell_states_apart(tmp_path) -> None:
    room, states = replay(UP, ["D"])
    assert draw(room, states[0]).tobytes() != draw(room, states[1]).tobytes()
    save_png(tmp_path / "room.png", room, states[0])
    with PIL.open(tmp_path / "room.png") as png:
        assert png.size == (6 * CELL, 6 * CELL)
