import pytest

from agent_system import AgentSystemError
from agent_system.workflows.sudoku.world.render import (
    CLUE,
    RIGHT,
    WRONG,
    describe,
    digits_text,
    draw,
    replay,
    save_episode,
)
from agent_system.workflows.sudoku.world.solver import puzzle_from_text

CLUES = "1.3..4.22.4..3.1"


def test_text_shows_the_clues_and_then_the_board():
    start, after = replay(puzzle_from_text(CLUES), ["1 2 2"])
    assert describe(start) == "1 . 3 .\n. 4 . 2\n2 . 4 .\n. 3 . 1"
    assert describe(after) == describe(start) + "\nNow:\n1 2 3 .\n. 4 . 2\n2 . 4 .\n. 3 . 1"


def test_the_view_of_digits_is_the_board_and_a_grid_that_can_be_written(make_env):
    env = make_env(view="digits")
    assert env.observe().text == "1 0 3 0\n0 4 0 2\n2 0 4 0\n0 3 0 1" == digits_text(env.state.board)
    after = env.step(env.observe().text.replace("1 0 3 0", "1 2 3 0"))
    assert after.observation.text.startswith("1 2 3 0\n") and after.info["illegal"] == 0.0


def test_a_replay_is_what_the_environment_did(make_env):
    actions = ["1 2 2", "1 1 1", "?", "1 4 4; 9 9 9"]
    env = make_env()
    for action in actions:
        env.step(action)
    assert replay(env.state.puzzle, actions)[-1] == env.state


def test_pictures_tell_clues_right_and_wrong_cells_apart():
    image = draw(replay(puzzle_from_text(CLUES), ["1 2 2; 1 4 1"])[-1])
    colors = [
        "#{:02x}{:02x}{:02x}".format(*image.getpixel((10 + column * 36 + 5, 15))) for column in range(4)
    ]
    assert colors == [CLUE, RIGHT, CLUE, WRONG]


def test_an_episode_becomes_a_gif_with_a_frame_per_state_or_a_png(tmp_path):
    from PIL import Image

    states = replay(puzzle_from_text(CLUES), ["1 2 2", "1 4 4", "2 1 3"])
    save_episode(states, tmp_path / "episode.gif")
    save_episode(states, tmp_path / "episode.png")
    with Image.open(tmp_path / "episode.gif") as gif:
        assert gif.n_frames == 4
    with Image.open(tmp_path / "episode.png") as png:
        assert png.size == (164, 164)


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(AgentSystemError, match=r"\.gif or \.png"):
        save_episode(replay(puzzle_from_text(CLUES), []), tmp_path / "episode.mp4")
