from hypothesis import given, settings
from hypothesis import strategies as st

from agent_system import Task
from agent_system.testing import check_env
from agent_system.workflows.plan_path import EXECUTOR, TOOL, PlanPathEnv, PlanPathEnvOptions
from agent_system.workflows.plan_path.world.generate import generate
from tests.agent_system.workflows.plan_path.conftest import AROUND
from tests.agent_system.workflows.plays import ends, plays

RANGES = {"team_range": (0.0, 1.5), "local_range": (-0.5, 0.0)}


class Own(PlanPathEnv):
    """A user's own kind: its forks are of the same kind."""


def check(text: str, play: list, **options) -> None:
    config = PlanPathEnvOptions(**options)
    check_env(lambda seed: Own(config, seed=seed), Task("t", text, extra={"map": text}), play, **RANGES)


def test_a_whole_episode_from_mistakes_to_the_goal_conforms():
    mistakes = [(TOOL, "R"), (EXECUTOR, "R"), "R", (TOOL, "north"), (EXECUTOR, ""), "", ("Nobody", "D")]
    play = [*mistakes, (TOOL, "DDRR"), (EXECUTOR, "DDR"), "DDR", (TOOL, "UU"), (EXECUTOR, "RUUU")]
    assert ends(PlanPathEnv(), Task("t", AROUND), play)
    check(AROUND, play, view="compact")


@given(plays([TOOL, EXECUTOR], st.text("UDLR", min_size=1, max_size=6)), st.integers(0, 20))
@settings(max_examples=25, deadline=None)
def test_any_play_on_any_map_conforms(play, seed):
    check(generate(1, seed)[0].text, play)
