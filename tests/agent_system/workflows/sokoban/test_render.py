import pytest

from agent_system import Task
from agent_system.workflows.sokoban import EXECUTOR, SokobanEnv, SokobanEnvOptions
from agent_system.workflows.sokoban.world.render import CELL, draw, replay, save_gif, save_png
from agent_system.workflows.sokoban.world.rules import is_solved

from .conftest import TWO, UP

PIL = pytest.importorskip("PIL.Image")


def test_an_episode_becomes_a_gif_of_its_states(tmp_path) -> None:
    room, states = replay(UP, ["D", "nonsense", "LLL", "RUU"], 10)
    assert len(states) == 6 and is_solved(room, states[-1])
    save_gif(tmp_path / "episode.gif", room, states)
    with PIL.open(tmp_path / "episode.gif") as gif:
        assert gif.n_frames == 6 and gif.size == (6 * CELL, 6 * CELL)


@pytest.mark.parametrize(("kind", "text"), [("moves", TWO), ("pushes", UP)])
@pytest.mark.parametrize("max_moves", [1, 2, 10])
def test_a_replay_is_what_the_environment_did(kind: str, text: str, max_moves: int) -> None:
    actions = ["RR", "nonsense", "LLLL", "DU", "R"]
    env = SokobanEnv(SokobanEnvOptions(max_moves=max_moves, actions=kind))
    env.reset(Task("t", text))
    for action in actions:
        env.act(EXECUTOR, action)
        env.step(action)
    _, states = replay(text, actions, max_moves, kind)
    assert states[-1] == env._world.state
    assert len(states) - 1 == env._world.moves


def test_pictures_tell_states_apart(tmp_path) -> None:
    room, states = replay(UP, ["D"], 10)
    assert draw(room, states[0]).tobytes() != draw(room, states[1]).tobytes()
    save_png(tmp_path / "room.png", room, states[0])
    with PIL.open(tmp_path / "room.png") as png:
        assert png.size == (6 * CELL, 6 * CELL)
