import random
import time

import pytest

from agent_system import AgentSystemError, Task
from agent_system.options import build_options
from agent_system.workflows.sokoban import EXECUTOR, TOOL, SokobanEnv, SokobanEnvOptions

from .conftest import TOO_WIDE, TWO, UNSOLVABLE, UP

HOSTILE = [
    "",
    " ",
    "XYZ",
    "U" * 100_000,
    "<moves>U</moves>",
    "\x00\uffff",
    "[" * 5000,
    "🙂",
    "-1",
    "U;rm",
    "None",
    "__import__('os')",
]


def start(text: str = UP, **options) -> SokobanEnv:
    env = SokobanEnv(SokobanEnvOptions(**options))
    env.reset(Task("t", text))
    return env


def test_reset_shows_the_room_and_anchors_its_state() -> None:
    env = SokobanEnv(SokobanEnvOptions(view="spaced"))
    seen = env.reset(Task("t", UP))
    assert seen.text.splitlines()[1] == "# - . - - #" and seen.info["anchor"] == UP
    env.step("D")
    back = env.step("U").observation
    assert back.info["anchor"] == UP, "walking away and back is the same state"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (UNSOLVABLE, "cannot be solved"),
        (TOO_WIDE, "equal length"),
        ("#####\n#@*-#\n#---#\n#####", "solved before"),
        ("Solve this", "at least 3 rows"),
    ],
)
def test_a_room_that_cannot_be_played_is_refused(text: str, words: str) -> None:
    with pytest.raises(AgentSystemError, match=words):
        start(text)


def test_the_compact_view_is_for_rooms_with_one_box() -> None:
    assert start(UP, view="compact")._make_observation().text.startswith("box U 1 R 0 goal U 1 R 0\n")
    with pytest.raises(
        AgentSystemError, match="view=compact shows rooms with one box, found 2; use view=spaced or map"
    ):
        start(TWO, view="compact")


def test_solving_pays_one_and_ends() -> None:
    outcome = start().act(EXECUTOR, "U")
    assert outcome.done and outcome.team == pytest.approx(1.0) and outcome.local == 0.0
    assert outcome.info["success"] == 1.0 and outcome.info["push_efficiency"] == 1.0


def test_progress_is_paid_once_and_success_pays_the_rest() -> None:
    env = start(TWO, progress_weight=0.4)
    first = env.act(EXECUTOR, "LUR")
    assert first.info["boxes_on_goals"] == 1 and first.team == pytest.approx(0.2) and not first.done
    env.step("")
    second = env.act(EXECUTOR, "UU")
    assert second.team == pytest.approx(0.2 + 0.6) and second.done


def test_a_box_pushed_off_its_goal_and_on_again_in_circles_earns_nothing() -> None:
    env = start(TWO)
    assert env.act(EXECUTOR, "LUR").team == pytest.approx(0.25)
    env.step("LUR")
    circle = ["URRD", "L", "ULLD", "R"]
    earned, seen = [], set()
    for turn in range(12):
        for agent in (TOOL, EXECUTOR):
            outcome = env.act(agent, circle[turn % 4])
            earned += [outcome.team, outcome.local]
        ended = env.step(circle[turn % 4])
        earned.append(ended.team)
        seen.add(ended.info["boxes_on_goals"])
    assert earned == [0.0] * len(earned) and seen == {0, 1} and ended.info["illegal"] == 0


@pytest.mark.parametrize("kind", ["boxes", "distance"])
def test_a_repeated_plan_is_paid_once(kind: str) -> None:
    env = start(progress=kind, shortfall_penalty=0.2)
    earned = 0.0
    for _ in range(12):
        earned += env.act(TOOL, "U").local
        env.act(EXECUTOR, "LR")
        env.step("LR")
    assert earned == pytest.approx(0.5)


def test_plans_are_not_paid_for_what_the_executor_has_made_without_them() -> None:
    env = start(TWO)
    env.act(EXECUTOR, "LUR")
    env.step("LUR")
    assert env.act(TOOL, "L").local == 0.0
    assert env.act(TOOL, "UU").local == pytest.approx(0.5 * 0.75), (
        "the other half of the progress, and success"
    )


@pytest.mark.parametrize("kind", ["boxes", "distance"])
def test_no_plans_of_an_episode_earn_more_than_the_weight_of_one(kind: str) -> None:
    rng = random.Random(2)
    for _ in range(30):
        env, earned = start(TWO, progress=kind, illegal_penalty=0.0, deadlock_penalty=0.0), 0.0
        for _ in range(12):
            earned += env.act(
                TOOL, rng.choice(["LUR", "LURUU", "UU", "".join(rng.choices("UDLR", k=4))])
            ).local
            made = env.act(EXECUTOR, "".join(rng.choices("UDLR", k=3)))
            if made.done:
                break
            env.step("")
        assert earned <= 0.5 + 1e-9


@pytest.mark.parametrize("kind", ["boxes", "distance"])
def test_no_walk_is_paid_more_than_its_best_progress(kind: str) -> None:
    rng = random.Random(0)
    for _ in range(30):
        env = start(TWO, progress=kind)
        team = 0.0
        for _ in range(20):
            moves = "".join(rng.choices("UDLR", k=3))
            team += env.act(EXECUTOR, moves).team
            info = env.step(moves).info
            assert team == pytest.approx(0.5 * info["progress"] + 0.5 * info["success"])
            if info["success"]:
                break


def test_distance_pays_for_pushes_towards_a_goal() -> None:
    text = "#######\n#-----#\n#@$--.#\n#-----#\n#######"
    env = start(text, progress="distance")
    assert env.act(EXECUTOR, "R").team == pytest.approx(0.5 / 3)
    assert start(text).act(EXECUTOR, "R").team == 0.0


def test_a_plan_is_tried_and_not_made() -> None:
    env = start()
    outcome = env.act(TOOL, "U")
    assert outcome.team == 0.0 and outcome.local == pytest.approx(0.5) and not outcome.done
    assert env.act(TOOL, "D").local == pytest.approx(-0.5), "a plan that takes back the last one"
    assert env.act(EXECUTOR, "D").info["plan/followed"] == 0.5
    assert env.step("D").info["plan/legal"] == 1.0


def test_the_executors_moves_are_made_once() -> None:
    env = start("######\n#----#\n#@$-.#\n######")
    env.act(EXECUTOR, "R")
    assert env.step("R").info["moves"] == 1
    assert env.step("R").info["success"] == 1.0, "without an Executor the turn's action is made by step"


def test_illegal_unreadable_and_surplus_moves_are_penalised_and_counted() -> None:
    env = start(max_moves=3)
    assert env.act(TOOL, "LLL").local == pytest.approx(-0.05)
    assert env.act(EXECUTOR, "LLLL").local == pytest.approx(-0.05)
    env.step("")
    assert env.act(EXECUTOR, "what?").local == pytest.approx(-0.1)
    env.step("")
    assert env.act(EXECUTOR, "RLRLR").local == pytest.approx(-0.05)
    info = env.step("").info
    assert (info["illegal"], info["unparsable"], info["cut"], info["moves"]) == (1, 1, 2, 4)


def test_the_moves_of_the_last_turn_and_what_stopped_them_are_shown_and_are_no_part_of_the_state() -> None:
    env = start(view="compact", show_last=True, max_moves=2)
    plain = start(view="compact", max_moves=2)
    seen = []
    for action in ("LL", "RR", "RR", "what?", "L"):
        env.act(TOOL, "RRR")
        for world in (env, plain):
            world.act(EXECUTOR, action)
        outcome, other = env.step(action).observation, plain.step(action).observation
        view, last = outcome.text.rsplit("\n", 1)
        assert view == other.text and outcome.info == other.info
        seen.append(last)
    assert seen == [
        "last - L stop L",
        "last R R stop -",
        "last - R stop R",
        "last - - stop -",
        "last - L stop -",
    ]
    assert start(show_last=True, max_moves=2)._make_observation().text.endswith("######\nlast - - stop -")


def test_forks_are_shown_their_own_last_turn() -> None:
    env = start(show_last=True, max_moves=2)
    fork = env.fork()
    fork.act(EXECUTOR, "DD")
    assert fork.step("DD").observation.text.endswith("last - D stop D")
    assert env.step("R").observation.text.endswith("last - R stop -"), (
        "step makes the moves of a turn without an Executor"
    )


def test_the_illegal_move_of_the_last_turn_costs_more_when_it_is_repeated() -> None:
    env = start(repeat_penalty=0.2, illegal_penalty=0.05)
    assert env.act(TOOL, "LL").local == pytest.approx(-0.05), "nothing has been made yet"
    assert env.act(EXECUTOR, "LL").local == pytest.approx(-0.05)
    env.step("")
    for agent in (TOOL, EXECUTOR):
        assert env.fork().act(agent, "LR").local == pytest.approx(-0.25)
        assert env.fork().act(agent, "RL").local == 0.0
    env.act(EXECUTOR, "RLL")
    env.step("")
    env.act(EXECUTOR, "R")
    env.step("")
    assert env.act(EXECUTOR, "L").local == 0.0, "made in between, it is legal again"


def test_a_lost_box_is_reported_penalised_once_and_may_end_the_episode() -> None:
    text = "######\n#.---#\n#-$--#\n#-@--#\n######"
    env = start(text)
    assert env.act(EXECUTOR, "LUR").info["deadlock"] == 0.0
    env.step("")
    lost = env.act(EXECUTOR, "R")
    assert lost.info["deadlock"] == 1.0 and lost.local == pytest.approx(-0.1) and not lost.done, (
        "along the right wall there is no goal"
    )
    env.step("")
    assert env.act(EXECUTOR, "L").local == 0.0
    assert start(text).act(TOOL, "LURR").local == pytest.approx(-0.1)
    assert start(text, deadlock_ends=True).act(EXECUTOR, "LURR").done


@pytest.mark.parametrize("agent", [TOOL, EXECUTOR])
@pytest.mark.parametrize(
    ("moves", "short"),
    [
        ("RU", 0.0),  # the solver's
        ("R", 0.25),  # one of the two moves that fit
        ("RL", 0.5),  # there and back
        ("D", 0.75),
        ("DL", 0.75),  # a wall after it
        ("RRUU", 1.0),  # round the box, away from the cell to push it from
        ("LL", 0.5),  # a wall: no move is made, which costs illegal_penalty as well
        ("north", 1.0),  # and format_penalty
    ],
)
def test_moves_that_lead_away_cost_the_call_that_makes_them(agent: str, moves: str, short: float) -> None:
    env = start(
        "######\n#-.--#\n#-$--#\n#@---#\n#----#\n######",
        shortfall_penalty=0.2,
        illegal_penalty=0.0,
        format_penalty=0.0,
        plan_weight=0.0,
    )
    assert env.act(agent, moves).local == pytest.approx(-0.2 * short)


def test_a_push_that_loses_the_room_costs_the_whole_shortfall_and_nothing_costs_it_afterwards() -> None:
    env = start("######\n#.---#\n#-$--#\n#-@--#\n######", shortfall_penalty=0.2)
    assert env.act(EXECUTOR, "LURR").local == pytest.approx(-0.2 - 0.1), (
        "along the right wall there is no goal"
    )
    env.step("")
    assert env.act(EXECUTOR, "L").local == 0.0


def test_a_turn_that_could_have_led_further_costs_what_it_left() -> None:
    env = start(
        "######\n#-.--#\n#-$--#\n#@---#\n#----#\n######", shortfall_penalty=0.2, plan_weight=0.0, max_moves=1
    )
    assert env.act(EXECUTOR, "R").local == 0.0, "no more than one fits"


SEALED = "######\n#---@#\n##-$-#\n#-#--#\n#---.#\n######"


@pytest.mark.parametrize("agent", [TOOL, EXECUTOR])
@pytest.mark.parametrize(
    ("text", "moves"),
    [
        (SEALED, "LDD"),  # the box comes nearer to the goal, and the player can never get behind it
        # nearer to the goal on the way into the corner
        (
            "######\n#@-#-#\n#-$--#\n#--.-#\n#----#\n######",
            "RDD",
        ),
        ("#######\n#.--@-#\n#-----#\n#-$-$-#\n#---.-#\n#-----#\n#######", "DDD"),  # onto the goal and past it
    ],
)
def test_moves_that_lose_the_room_earn_nothing_on_the_way_and_cost_more_than_standing(
    agent: str, text: str, moves: str
) -> None:
    script = {
        "progress": "distance",
        "deadlock_penalty": 0.3,
        "deadlock_ends": True,
        "shortfall_penalty": 0.2,
        "max_moves": 3,
    }
    for options in (script, {}):
        outcome = start(text, **options).act(agent, moves)
        assert outcome.team == 0.0
        assert outcome.local <= -0.1
    assert start(text, **script).act(EXECUTOR, moves).done
    others = [
        start(text, **script).act(agent, worse).local for worse in ("L", "LR", "LLL", "LLLLLLLL", "north", "")
    ]
    assert start(text, **script).act(agent, moves).local < min(others), (
        "the script's order: nothing costs more"
    )


def test_an_executor_that_speaks_twice_moves_twice() -> None:
    env = start(UP)
    assert env.act(EXECUTOR, "north").local < 0
    assert env.act(EXECUTOR, "north").local < 0, "junk is not free the second time"
    assert env.step("").info["unparsable"] == 2


@pytest.mark.parametrize("kind", ["boxes", "distance"])
def test_no_way_of_playing_pays_the_executor_more_than_the_team_s_progress(kind: str) -> None:
    rng = random.Random(1)
    for _ in range(20):
        env, local, team = start(UP, progress=kind, shortfall_penalty=0.2), 0.0, 0.0
        for _ in range(12):
            moves = "".join(rng.choices("UDLR", k=2))
            made = env.act(EXECUTOR, moves)
            assert made.local <= 0.0
            local, team = local + made.local, team + made.team
            info = env.step(moves).info if not made.done else made.info
            assert local + team <= 0.5 * info["progress"] + 0.5 * info["success"] + 1e-9
            if made.done:
                break


@pytest.mark.parametrize("action", HOSTILE)
def test_hostile_actions_are_survived(action: str) -> None:
    env = start()
    for agent in (TOOL, EXECUTOR, "Nobody"):
        outcome = env.act(agent, action)
        assert outcome.local is None if agent == "Nobody" else -1.0 <= float(outcome.local) <= 1.0
    assert env.step(action).info["progress"] in (0.0, 1.0)
    assert env.step(None).info["unparsable"] >= 1  # type: ignore[arg-type]


def test_forks_and_their_origin_go_their_own_ways() -> None:
    env = start(TWO)
    env.act(TOOL, "LUR")
    fork, other = env.fork(), env.fork()
    before = env._world
    assert fork.act(EXECUTOR, "LUR").team == pytest.approx(0.25)
    assert other.act(EXECUTOR, "zzz").local < 0
    assert env._world is before and env.act(EXECUTOR, "L").info["moves"] == 1
    assert fork.step("").info["boxes_on_goals"] == 1 and env.step("").info["unparsable"] == 0
    assert fork.fork().act(EXECUTOR, "U").info["moves"] == 4


@pytest.mark.timing
def test_a_fork_costs_less_than_50_microseconds() -> None:
    env = start(TWO)
    timings = []
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(50):
            env.fork()
        timings.append((time.perf_counter() - began) / 50)
    assert min(timings) < 50e-6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_moves": 0}, "max_moves must be 1"),
        ({"progress": "box"}, "did you mean 'boxes'"),
        ({"view": "spacd"}, "did you mean 'spaced'"),
        ({"shortfall_penalty": -1.0}, "shortfall_penalty"),
        ({"progress_weight": 1.5}, "progress_weight"),
        ({"illegal_penalty": -0.1}, "illegal_penalty"),
        ({"repeat_penalty": -0.1}, "repeat_penalty"),
        ({"max_move": 3}, "did you mean 'max_moves'"),
    ],
)
def test_bad_options_are_named(options: dict, words: str) -> None:
    with pytest.raises(AgentSystemError, match=words):
        build_options(SokobanEnvOptions, options, "env.params")


@pytest.mark.parametrize("action", ["", "U", "XYZ"])
def test_a_role_that_is_paid_nothing_for_itself_is_given_no_local_reward(action: str) -> None:
    free = {
        "plan_weight": 0.0,
        "format_penalty": 0.0,
        "illegal_penalty": 0.0,
        "repeat_penalty": 0.0,
        "deadlock_penalty": 0.0,
    }
    assert all(start(**free).act(agent, action).local is None for agent in (TOOL, EXECUTOR))
    assert start(**free | {"deadlock_penalty": 0.1}).act(EXECUTOR, action).local is not None
