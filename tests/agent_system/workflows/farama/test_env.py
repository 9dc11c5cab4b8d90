import pickle
from functools import partial

import pytest

from agent_system import AgentSystemError, Task
from agent_system.options import build_options
from agent_system.testing import check_env
from tests.agent_system.workflows.farama.conftest import LAKE, MEET, RPS, TICTACTOE

pytest.importorskip("pettingzoo", reason="needs the extra farama")

from agent_system.workflows.farama import FaramaEnv, FaramaEnvOptions
from agent_system.workflows.farama.env import NOTHING_DONE
from agent_system.workflows.farama.team import check_forks
from tests.agent_system.workflows.farama.toys import HERE

QUESTION = Task("t", "Play.")


def moves(env, **said):
    """One turn: everybody says what is given, then the move is made."""
    paid = {agent: env.act(agent, text).local for agent, text in said.items()}
    return paid, env.step("")


CONFORMING = [
    (
        TICTACTOE,
        [
            ("player_1", "0"),
            "",
            ("player_2", "0"),
            "",
            ("player_2", "4"),
            "",
            ("player_1", "1"),
            "",
            ("player_2", "8"),
            "",
            "2",
        ],
    ),
    (
        {**TICTACTOE, "random_seats": ["player_1"]},
        [("player_2", "4"), "", ("player_2", "0"), "", ("player_2", "8"), "", "1", "2", "3"],
    ),
    (
        LAKE,
        [
            ("Adviser", "down"),
            ("Player", "down"),
            "",
            ("Player", "fly"),
            "",
            "down",
            "right",
            "right",
            "down",
            "right",
        ],
    ),
    (
        {**LAKE, "kwargs": {"is_slippery": True}},
        [("Player", "down"), "", "down", "right", "right", "down", "right"],
    ),
    ({"env_id": "Taxi-v4"}, [("Player", "0"), "", ("Player", "5"), "", "1", "2", "4"]),
    (MEET, [("a", "[1]"), ("b", "[0]"), "", ("b", "[9]"), ("a", "[1]"), ""]),
    ({"env_id": f"{HERE}:Mixed-v0"}, [("Player", '{"move": 2, "push": [0.5, 1], "say": "hi"}'), ""]),
]


@pytest.mark.parametrize(
    ("options", "actions"), CONFORMING, ids=lambda v: v["env_id"].split(".")[-1] if "env_id" in v else ""
)
def test_real_environments_pass_the_conformance_test(options, actions):
    check_env(
        partial(make, FaramaEnvOptions(**options)),
        QUESTION,
        actions,
        team_range=(-30, 30),
        local_range=(-1, 1),
    )


def make(options, seed):
    return FaramaEnv(options, seed=seed)


def test_players_of_tictactoe_act_in_turn_and_the_winner_and_the_loser_are_paid(start):
    env = start(TICTACTOE)
    for turn, cell in enumerate(["0", "3", "1", "4", "2"]):
        mover = f"player_{turn % 2 + 1}"
        seen = env.observe(mover)
        assert seen.info["to_act"] == [mover]
        assert cell in seen.info["actions"].split(", ")
        paid, outcome = moves(env, **{mover: cell})
        assert paid == {mover: None}
        assert outcome.done == (cell == "2")
    assert (outcome.team, outcome.local) == (0.0, {"player_1": 1.0, "player_2": -1.0})
    assert outcome.info == {
        "return": 0.0, "return/player_1": 1.0, "return/player_2": -1.0, "moves": 5.0, "truncated": 0.0,
        "unparsed": 0.0, "illegal": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [("0", "illegal"), ("9", "illegal"), ("corner", "illegal"), ("", "unparsed"), (" ", "unparsed")],
)
def test_a_reply_without_a_legal_action_costs_and_the_player_is_asked_again(start, text, problem):
    env = start(TICTACTOE, illegal_penalty=0.25)
    moves(env, player_1="0")
    paid, outcome = moves(env, player_2=text)
    assert paid == {"player_2": -0.25}
    assert not outcome.done and not outcome.local
    assert outcome.info[problem] == 1.0 and outcome.info["moves"] == 1.0
    assert outcome.observation.info["to_act"] == ["player_2"]
    assert NOTHING_DONE in outcome.observation.text
    assert moves(env, player_2="1")[1].info["moves"] == 2.0
    assert NOTHING_DONE not in env.observe("player_1").text


def test_the_loser_sees_its_own_side_of_the_board(start):
    env = start(TICTACTOE)
    first = env.step("0").observation
    assert env.observe("player_1").text != env.observe("player_2").text == first.text
    assert env.observe("Adviser").text == first.text


def test_a_random_opponent_answers_at_once_and_its_answer_is_paid_with_the_move(start):
    results = set()
    for seed in range(30):
        env = start(TICTACTOE, seed=seed, random_seats=["player_2"], success_return=1)
        for _ in range(5):
            legal = env.observe("player_1").info["actions"].split(", ")
            outcome = env.step(legal[0])
            assert not outcome.local
            if outcome.done:
                break
        assert outcome.done and outcome.info["return"] == outcome.team
        assert outcome.info["success"] == float(outcome.team == 1.0)
        results.add((outcome.team, outcome.info["moves"] % 2))
    assert {(1.0, 1.0), (-1.0, 0.0)} <= results, "a game is lost by the opponent's move, which is an even one"


def test_a_random_seat_that_begins_has_moved_before_the_first_turn(start):
    env = start(TICTACTOE, random_seats=["player_1"])
    assert env.observe("player_2").info["to_act"] == ["player_2"]
    assert len(env.observe("player_2").info["actions"].split(", ")) == 8


@pytest.mark.parametrize(
    ("rewards", "team", "local"),
    [
        ("auto", 0.0, {"a": 2.0, "b": 2.0}),
        ("each", 0.0, {"a": 2.0, "b": 2.0}),
        ("sum", 4.0, {}),
        ("mean", 2.0, {}),
    ],
)
def test_rewards_go_to_each_player_or_to_the_team(start, rewards, team, local):
    env = start(MEET, rewards=rewards, reward_scale=2.0)
    _, outcome = moves(env, a="[1]", b="[-1]")
    assert (outcome.team, outcome.local, outcome.done) == (team, local, True)
    assert outcome.info["return"] == 2.0


def test_players_at_the_same_time_move_together_and_a_missing_action_is_drawn(start):
    env = start(RPS)
    paid, outcome = moves(env, player_0="rock", player_1="paper")
    assert (paid, outcome.local) == (
        {"player_0": None, "player_1": None},
        {"player_0": -1.0, "player_1": 1.0},
    )
    assert outcome.observation.info["to_act"] == ["player_0", "player_1"]
    drawn = []
    for seed in range(12):
        env = start(RPS, seed=seed)
        paid, outcome = moves(env, player_0="rock", player_1="lizard")
        assert paid == {"player_0": None, "player_1": -0.1}
        assert outcome.info["moves"] == 1.0 and outcome.info["illegal"] == 1.0
        drawn.append(env.observe("player_0").text)
    assert set(drawn) == {"0", "1", "2"}, "the first player sees what the second one played"


def test_the_last_player_of_the_team_ends_the_episode_and_gone_ones_are_not_asked(start):
    env = start(MEET, kwargs={"leaves": True, "far": 4})
    for _ in range(2):
        _, outcome = moves(env, a="[0]", b="[0]")
    assert outcome.observation.info["to_act"] == ["a"]
    assert env.observe("b").text == "The game is over."
    assert start(MEET, kwargs={"leaves": True, "far": 4}, random_seats=["a"]).step("[0]").done is False
    env = start(MEET, kwargs={"leaves": True, "far": 4}, random_seats=["a"])
    env.step("[0]")
    assert env.step("[0]").done


def test_a_limit_ends_the_episode_and_is_reported(start):
    env = start(RPS, kwargs={"max_cycles": 2})
    moves(env, player_0="rock", player_1="rock")
    _, outcome = moves(env, player_0="rock", player_1="rock")
    assert outcome.done and outcome.info["truncated"] == 1.0
    assert outcome.observation.text == "The game is over."


def test_the_ice_is_walked_in_words_and_arriving_is_success(start):
    env = start(LAKE, task=QUESTION)
    assert env.observe("Player").text == "Play.\n\n[S]FFF\nFHFH\nFFFH\nHFFG"
    assert env.observe("Player").info["actions"] == "left, down, right, up"
    for move in ("down", "Down", "right", "right", "down"):
        assert moves(env, Player=move)[1].info["success"] == 0.0
    _, outcome = moves(env, Player="right")
    assert (outcome.team, outcome.local, outcome.done, outcome.info["success"]) == (1.0, {}, True, 1.0)


def test_proposals_move_nothing_but_are_judged_and_scored(start):
    env = start(LAKE)
    assert env.act("Adviser", "fly").local == -0.1
    assert (
        env.act("Adviser", "down").local is None
        and start(LAKE, illegal_penalty=0.0).act("Adviser", "fly").local is None
    )
    assert env.step("").info["moves"] == 0.0
    for move in ("down", "down", "right", "right", "down"):
        env.step(move)
    assert env.act("Adviser", "right").team == 0.0
    assert env.score("Adviser", "right").team == 1.0
    assert env.score("Adviser", "left").team == env.score("Adviser", "fly").team == 0.0
    assert not env.step("left").done


def test_a_score_is_what_the_move_pays_its_own_player(start):
    env = start(TICTACTOE)
    for cell in ["0", "3", "1", "4"]:
        env.step(cell)
    assert env.score("player_1", "2").local == 1.0
    assert env.score("player_1", "8").local == 0.0
    env.step("8")
    assert env.score("player_2", "5").local == 1.0


def test_a_score_among_many_draws_the_actions_of_the_others(start):
    scores = []
    for seed in range(20):
        env = start(MEET, seed=seed)
        scores += [env.score("a", "[1]").local, env.score("a", "[-1]").local]
        before = env.observe("a").text
        assert env.score("a", "[1]").local == scores[-2]
        assert env.observe("a").text == before
    assert set(scores[::2]) == {0.0, 1.0} and set(scores[1::2]) == {0.0}
    assert start(MEET).score("Adviser", "[1]").local is None


def test_the_start_is_the_groups_unless_the_row_has_a_seed(start):
    def seen(group, **extra):
        return (
            start({"env_id": "Taxi-v4"}, task=Task("t", "", extra=extra), seed=group).observe("Player").text
        )

    assert seen(1) == seen(1) != seen(2)
    assert seen(1, seed=5) == seen(2, seed=5)
    assert seen(1, seed=None) == seen(1)
    mixed = start({"env_id": f"{HERE}:Mixed-v0"}, task=Task("t", "", extra={"options": {"move": 2}}))
    assert mixed.observe("Player").text.startswith("move: 2")


def test_no_action_is_a_legal_answer_for_hostile_replies(start):
    for text in ("__import__('os')", "[" * 3000, "\x00", "🧭", "0; drop", "null", "NaN"):
        env = start(TICTACTOE)
        assert moves(env, player_1=text)[0] == {"player_1": -0.1}
        assert moves(start(MEET), a=text, b="[1]")[0]["a"] == -0.1


def test_a_pickled_game_continues_in_the_same_state(start):
    env = start(TICTACTOE)
    env.step("0")
    twin = pickle.loads(pickle.dumps(env))
    assert twin.observe("player_2") == env.observe("player_2")
    assert twin.step("4") == env.step("4")


def test_what_cannot_be_copied_and_what_copies_otherwise_are_named(start):
    with pytest.raises(
        AgentSystemError, match=r"Locked-v0' cannot be copied: .*lock.*use rollout.sampling=parallel"
    ):
        start({"env_id": f"{HERE}:Locked-v0"}).fork()
    for name in ("Weather", "Shared"):
        with pytest.raises(
            AgentSystemError, match="a copy of the game and the game itself do not go the same way"
        ):
            check_forks(start({"env_id": f"{HERE}:{name}-v0"}))
    for options in (TICTACTOE, LAKE, MEET, RPS):  # the last has a picture, which only its own rule copies
        check_forks(start(options))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "env.params.env_id is missing"),
        (
            {"env_id": "x", "api": "ace"},
            "env.params.api must be one of gymnasium, aec, parallel, found 'ace'; did you mean 'aec'",
        ),
        ({"env_id": "x", "rewards": "all"}, "env.params.rewards must be one of auto, each"),
        ({"env_id": "x", "kwargs": [1]}, "env.params.kwargs must be arguments by name"),
        ({"env_id": "x", "actions": "left"}, "env.params.actions must be a list of names"),
        ({"env_id": "x", "actions": [0, 1]}, "quote numbers"),
        ({"env_id": "x", "actions": ["up", "Up"]}, "names something twice"),
        ({"env_id": "x", "random_seats": ["a"]}, "random_seats has no effect"),
        ({"env_id": "x", "reward_scale": float("nan")}, "reward_scale must be a finite number"),
        ({"env_id": "x", "illegal_penalty": -0.1}, "illegal_penalty must be a finite number, 0 or more"),
        ({"env_id": "x", "success_return": "high"}, r"success_return must be float \| None, found 'high'"),
        (
            {"env_id": "x", "illegal": 1.0},
            "env.params.illegal is not an option; did you mean 'illegal_penalty'",
        ),
    ],
)
def test_a_bad_option_names_the_key(options, words):
    with pytest.raises(AgentSystemError, match=words):
        build_options(FaramaEnvOptions, options, "env.params")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"env_id": "FrozenLak-v1"}, "env_id='FrozenLak-v1'.*FrozenLake"),
        ({"env_id": "classic/tictactoe-v3"}, "api=gymnasium.*PettingZoo's games need env.params.api=aec"),
        ({"env_id": "FrozenLake-v1", "kwargs": {"map": "9x9"}}, "env.params.kwargs=.*map.*cannot be made"),
        (
            {"env_id": "classic/tictacto-v3", "api": "aec"},
            "no such environment; did you mean 'classic/tictactoe-v3'",
        ),
        ({"env_id": "no.such:env", "api": "aec"}, "needs the module 'no'"),
        ({"env_id": f"{HERE}:nobody", "api": "parallel"}, "has no 'nobody' that makes an environment"),
        ({"env_id": f"{HERE}:Mixed", "api": "aec"}, "has no possible_agents"),
        ({"env_id": "classic/chess-v6", "api": "aec"}, r"pettingzoo\[classic\].*No module named 'chess'"),
        (
            {**TICTACTOE, "api": "parallel"},
            "api=parallel: PettingZoo has no such environment; there is one with env.params.api=aec",
        ),
        ({**TICTACTOE, "kwargs": {"size": 4}}, "cannot be made: .*size"),
        (
            {**TICTACTOE, "random_seats": ["player_3"]},
            "random_seats names 'player_3'; did you mean 'player_2'.*seats: player_1, player_2",
        ),
        ({**TICTACTOE, "random_seats": ["player_1", "player_2"]}, "no player is left for the team"),
        ({**TICTACTOE, "actions": ["up"]}, "env.params.actions has 1 names"),
        ({"env_id": f"{HERE}:Camera-v0"}, "override describe"),
    ],
    ids=lambda v: "",
)
def test_a_world_that_cannot_be_played_is_named(start, options, words):
    with pytest.raises(AgentSystemError, match=words):
        start(options)


@pytest.mark.parametrize("seed", ["3", -1, True, 1.5])
def test_an_invalid_seed_names_the_task(start, seed):
    with pytest.raises(AgentSystemError, match=r"task 'row': extra_info.seed must be a whole number"):
        start(LAKE, task=Task("row", "", extra={"seed": seed}))
