import os
import re
import subprocess
import sys

import pytest

from agent_system import AgentRegistry, AgentSystemError, Task
from agent_system.options import build_options
from tests.agent_system.workflows.farama.conftest import LAKE, MEET, RPS, TICTACTOE
from tests.house.source import ROOT
from verl.trainer.config.reward import RewardConfig
from verl.trainer.config.run import TreeConfig

pytest.importorskip("pettingzoo", reason="needs the extra farama")

from agent_system.workflows.farama import FaramaAgent, FaramaEnv, FaramaOptions
from tests.agent_system.workflows.farama.toys import HERE

TREE = {"tree": TreeConfig(k=3), "reward": RewardConfig(team_scope="call")}
WAY = ["down", "down", "right", "right", "down", "right"]


def says(*actions):
    return [f"I take <action>{action}</action>" for action in actions]


async def play(collector, n=1, **extra):
    return await collector.collect([Task("t", "Play.", "demo", extra=extra)], n, step=0)


async def test_a_player_and_an_adviser_walk_over_the_ice(seat):
    collector = seat(LAKE, {"Adviser": says(*WAY), "Player": says(*WAY)}, advisers=("Adviser",))
    result = await play(collector)
    (episode,) = result.episodes
    assert episode.info["success"] == 1.0 and episode.team_reward == 1.0 and episode.turns == 6
    assert [s.agent_id for s in episode.samples] == ["Adviser", "Player"] * 6
    first, second = episode.samples[:2]
    assert (
        "You advise who acts next." in first.request.prompt_text
        and "You are Adviser." in first.request.prompt_text
    )
    assert (
        "Adviser: I take <action>down</action>" in second.request.prompt_text
        and "You are Player." in second.request.prompt_text
    )
    assert (
        "Actions: left, down, right, up." in second.request.prompt_text
        and "[S]FFF" in second.request.prompt_text
    )
    assert {s.rewards.reward for s in episode.samples} == {1.0}


async def test_a_player_needs_no_adviser(seat):
    result = await play(seat(LAKE, {"Player": says("down", "fly", *WAY[1:])}))
    assert result.episodes[0].info["illegal"] == 1.0 and result.metrics["episode/success_rate"] == 1.0
    assert [s.rewards.local_reward for s in result.episodes[0].samples] == [
        0.0,
        -0.1,
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
    ]


async def test_one_agent_plays_against_a_random_seat(seat):
    alone = {**TICTACTOE, "random_seats": ["player_2"], "success_return": 1}
    collector = seat(alone, {"player_1": lambda prompt, _: says(re.search(r"Actions: (\d)", prompt)[1])[0]})
    episodes = [(await play(collector, seed=seed)).episodes[0] for seed in range(8)]
    assert {s.agent_id for e in episodes for s in e.samples} == {"player_1"}
    assert {(e.team_reward, e.info["success"]) for e in episodes} == {(1.0, 1.0), (-1.0, 0.0)}


async def test_players_act_in_the_games_order_and_the_loser_pays_for_its_last_move(seat):
    result = await play(seat(TICTACTOE, {"player_1": says("0", "1", "2"), "player_2": says("3", "4")}))
    samples = result.episodes[0].samples
    assert [(s.agent_id, s.rewards.local_reward) for s in samples] == [
        ("player_1", 0.0), ("player_2", 0.0), ("player_1", 0.0), ("player_2", -1.0), ("player_1", 1.0),
    ]  # fmt: skip
    assert [re.search(r"Actions: (.*)\.", s.request.prompt_text)[1] for s in samples[:2]] == [
        "0, 1, 2, 3, 4, 5, 6, 7, 8",
        "1, 2, 3, 4, 5, 6, 7, 8",
    ]
    assert result.metrics["env/return/player_1"] == 1.0 and result.metrics["env/return/player_2"] == -1.0
    assert result.metrics["env/return"] == 0.0 and result.metrics["env/moves"] == 5.0


async def test_players_at_the_same_time_do_not_read_each_other(seat):
    params = {**RPS, "kwargs": {"max_cycles": 2}}
    result = await play(
        seat(params, {"player_0": says("rock", "rock"), "player_1": says("paper", "scissors")})
    )
    samples = result.episodes[0].samples
    assert [(s.identity.turn, s.agent_id, s.rewards.local_reward) for s in samples] == [
        (1, "player_0", -1.0), (1, "player_1", 1.0), (2, "player_0", 1.0), (2, "player_1", -1.0),
    ]  # fmt: skip
    assert not any("I take" in s.request.prompt_text for s in samples)


async def test_hostile_replies_are_scored_counted_and_survived(seat):
    hostile = [
        "no idea",
        "<action></action>",
        "<action>{0} %s</action>",
        "<think><action>4</action></think>",
        "<action>" * 9,
    ] * 3
    result = await play(seat(TICTACTOE, {"player_1": hostile, "player_2": hostile}))
    episode = result.episodes[0]
    assert (
        not episode.failed
        and episode.turns == 12
        and episode.info["unparsed"] + episode.info["illegal"] == 12.0
    )
    assert {s.rewards.local_reward for s in episode.samples} == {-0.1}


def candidates(*replies):
    """Replies of one call each, in the order in which candidates are made."""
    return [f"<action>{reply}</action>" for reply in replies]


async def test_a_tree_tries_every_move_on_a_copy_and_continues_with_the_best(seat):
    player_1 = candidates("0", "0", "0", "1", "1", "1", "8", "2", "0")
    player_2 = candidates("3", "x", "3", "0", "4", "1")
    result = await play(seat(TICTACTOE, {"player_1": player_1, "player_2": player_2}, **TREE))
    (episode,) = result.episodes
    assert episode.info["return/player_1"] == 1.0 and episode.turns == 5 and episode.left_out == 0
    rewards = {}
    for s in episode.samples:
        rewards.setdefault((s.identity.turn, s.agent_id), []).append((s.rewards.reward, s.identity.committed))
    assert rewards[(2, "player_2")] == [(0.0, True), (-0.1, False), (0.0, False)]
    assert rewards[(4, "player_2")] == [(-0.1, False), (0.0, True), (-0.1, False)]
    assert rewards[(5, "player_1")] == [(0.0, False), (1.0, True), (-0.1, False)]


async def test_proposals_of_an_adviser_get_the_reward_of_their_move(seat):
    script = [reply for move in WAY for reply in candidates(move, "left", "fly")]
    result = await play(seat(LAKE, {"Adviser": script, "Player": script}, advisers=("Adviser",), **TREE))
    (episode,) = result.episodes
    assert episode.info["success"] == 1.0
    assert [(s.agent_id, s.rewards.reward) for s in episode.samples[-6:]] == [
        ("Adviser", 1.0), ("Adviser", 0.0), ("Adviser", -0.1), ("Player", 1.0), ("Player", 0.0),
        ("Player", -0.1),
    ]  # fmt: skip


async def test_a_tree_over_players_at_the_same_time_compares_each_ones_candidates(seat):
    params = {**MEET, "kwargs": {"far": 2}, "illegal_penalty": 0.5}
    scripts = {"a": candidates("[-1]", "[1]", "?") * 12, "b": candidates("[1]", "[-1]", "[0]") * 12}
    result = await play(seat(params, scripts, **TREE), n=4)
    samples = [s for episode in result.episodes for s in episode.samples]
    assert {s.rewards.reward for s in samples if s.agent_id == "a" and s.identity.candidate == 2} == {-0.5}
    by_candidate = [
        {
            s.rewards.reward
            for s in samples
            if s.agent_id == "b" and s.identity.candidate == i and s.identity.turn == 1
        }
        for i in range(3)
    ]
    assert by_candidate[0] == {0.0}, "away from the other one is never a meeting"
    assert result.metrics["tree/signal_rate"] > 0.5


async def test_episodes_of_a_group_start_alike(seat):
    scripts = {"Player": lambda prompt, request: "<action>5</action>"}
    result = await play(seat({"env_id": "Taxi-v4"}, scripts, max_steps=1), n=3)
    assert len({e.samples[0].request.prompt_text for e in result.episodes}) == 1


async def test_a_described_world_and_a_worded_role_take_the_place_of_the_plain_ones(seat, registered):
    class Named(FaramaEnv):
        def describe(self, game_seat, observation):
            return f"the board of {game_seat}"

        def choices(self, game_seat, mask):
            return "the corner or the middle"

        def parse(self, game_seat, text):
            return {"corner": 0, "middle": 4}[text]

    registered("named", Named)
    role = type("Cross", (FaramaAgent,), {"prompt": "X: {env_prompt} ({actions})"})
    AgentRegistry.register("player_1", orchestra="farama")(role)
    try:
        collector = seat(
            TICTACTOE, {"player_1": says("middle"), "player_2": says("corner")}, env_name="named", max_steps=2
        )
    finally:
        AgentRegistry.remove("player_1", orchestra="farama")
    first, second = (await play(collector)).episodes[0].samples
    assert "X: Play.\n\nthe board of player_1 (the corner or the middle)" in first.request.prompt_text
    assert (
        "You are player_2." in second.request.prompt_text
        and "the board of player_2" in second.request.prompt_text
    )


@pytest.mark.parametrize(
    ("params", "team", "advisers", "settings", "words"),
    [
        (
            TICTACTOE,
            ["player_1"],
            (),
            {},
            r"lacks player_2; add them, or list them in env.params.random_seats",
        ),
        (
            TICTACTOE,
            ["player_1", "player_2", "playr_2"],
            (),
            {},
            "has no player 'playr_2'; did you mean 'player_2'",
        ),
        (
            LAKE,
            ["Player", "Guide"],
            (),
            {},
            "has no player 'Guide'.*listed in agent.orchestra.farama.advisers",
        ),
        (LAKE, ["Player"], ("Guide",), {}, r"needs the agents \['Guide'\]"),
        (
            {"env_id": f"{HERE}:Locked-v0"},
            ["Player"],
            (),
            TREE,
            "cannot be copied.*use rollout.sampling=parallel",
        ),
        ({"env_id": f"{HERE}:Weather-v0"}, ["Player"], (), TREE, "do not go the same way"),
        ({"env_id": f"{HERE}:Camera-v0"}, ["Player"], (), {}, "override describe"),
        ({}, ["Player"], (), {}, "env.params.env_id is missing"),
    ],
    ids=lambda v: "",
)
async def test_a_team_or_a_world_that_does_not_fit_is_refused_before_anything_is_played(
    seat, params, team, advisers, settings, words
):
    with pytest.raises(AgentSystemError, match=words):
        seat(params, {name: says() for name in team}, advisers=advisers, **settings)


def test_the_team_plays_in_its_own_kind_of_world_only(seat):
    with pytest.raises(AgentSystemError, match=r"found PlanPathEnv; set env.env_name=farama"):
        seat({}, {"Player": says()}, env_name="plan_path")


@pytest.mark.parametrize("advisers", ["Guide", [1], ["A", "a"], [""]])
def test_advisers_are_distinct_names(advisers):
    with pytest.raises(AgentSystemError, match=r"agent\.orchestra\.farama\.advisers"):
        build_options(FaramaOptions, {"advisers": advisers}, "agent.orchestra.farama")


def test_without_the_package_one_line_names_the_extra():
    code = "import sys; sys.modules['gymnasium'] = None\nfrom agent_system import EnvRegistry\nEnvRegistry.get('farama')"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    (line,) = [
        line for line in ended.stderr.splitlines() if line.startswith("agent_system.errors.AgentSystemError")
    ]
    assert "needs the package gymnasium" in line and "pip install 'verl-mas[farama]'" in line


def test_without_pettingzoo_its_games_name_the_extra():
    code = (
        "import sys; sys.modules['pettingzoo'] = None\nfrom agent_system import Task\n"
        "from agent_system.workflows.farama import FaramaEnv, FaramaEnvOptions as Options\n"
        "FaramaEnv(Options('FrozenLake-v1')).reset(Task('t', ''))\nFaramaEnv(Options('classic/rps-v2', "
        "'aec')).reset(Task('t', ''))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (
        "needs the module 'pettingzoo', which is not there; PettingZoo comes with the extra verl-mas[farama]"
        in ended.stderr.splitlines()[-1]
    )
