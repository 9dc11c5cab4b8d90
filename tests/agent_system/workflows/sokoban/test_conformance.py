from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent_system import Task
from agent_system.testing import check_env
from agent_system.workflows.sokoban import EXECUTOR, TOOL, SokobanDifficulty, SokobanEnv, SokobanEnvOptions
from agent_system.workflows.sokoban.world.generate import generate
from tests.agent_system.workflows.plays import ends, plays

from .conftest import TWO

ROOMS = [puzzle.text for puzzle in generate(4, 0, SokobanDifficulty())] + [TWO]
# A plan is paid the difference to the last one (plan_weight=0.5, either sign), less its penalties (0.25
# together by default).
RANGES = {"team_range": (0.0, 1.0), "local_range": (-0.75, 0.5)}
ONE_PUSH = "######\n#----#\n#---##\n#.-$@#\n#---##\n######"


class Own(SokobanEnv):
    """A user's own kind: its forks are of the same kind."""


def check(room: str, play: list, **options) -> None:
    config = SokobanEnvOptions(**options)
    check_env(lambda seed: Own(config, seed=seed), Task("t", room), play, **RANGES)


def test_a_whole_episode_from_mistakes_to_the_solution_conforms() -> None:
    mistakes = [
        (TOOL, "LLLL"),
        (EXECUTOR, "LLLL"),
        "LLLL",
        (TOOL, "north"),
        (EXECUTOR, ""),
        "",
        (TOOL, "RRR"),
        (EXECUTOR, "R" * 12),
        "R",
    ]
    play = [
        *mistakes,
        "D",
        (TOOL, "LUR"),
        (EXECUTOR, "LL"),
        "",
        (TOOL, "UR"),
        (EXECUTOR, "LUR"),
        "LUR",
        (EXECUTOR, "UU"),
    ]
    assert ends(SokobanEnv(), Task("t", TWO), play)
    check(TWO, play)


@example([(TOOL, "LL"), (TOOL, "D")], ONE_PUSH)  # a plan that solves the room, then a worse one
@given(plays([TOOL, EXECUTOR], st.text("UDLR", min_size=1, max_size=4)), st.sampled_from(ROOMS[:-1]))
@settings(max_examples=10, deadline=None)
def test_any_play_in_the_compact_view_with_every_penalty_conforms(play, room) -> None:
    config = SokobanEnvOptions(
        view="compact", show_last=True, max_moves=3, shortfall_penalty=0.2, deadlock_ends=True
    )
    check_env(
        lambda seed: Own(config, seed=seed),
        Task("t", room),
        play,
        team_range=(0.0, 1.0),
        local_range=(-0.95, 0.5),
    )


@example([(TOOL, "LL"), (TOOL, "D")], ONE_PUSH, "boxes")
@given(
    plays([TOOL, EXECUTOR], st.text("UDLR", min_size=1, max_size=12)),
    st.sampled_from(ROOMS),
    st.sampled_from(["boxes", "distance"]),
)
@settings(max_examples=25, deadline=None)
def test_any_play_in_any_room_conforms(play, room, progress) -> None:
    check(room, play, progress=progress)
