import pytest

from agent_system import AgentSystemError
from agent_system.options import build_options
from agent_system.workflows.moves import moves_reply
from agent_system.workflows.sokoban import EXECUTOR, TOOL, SokobanOptions
from agent_system.workflows.sokoban.team import read_moves
from agent_system.workflows.sokoban.world.rules import parse_room
from agent_system.workflows.sokoban.world.solver import solve

from .conftest import TWO, UP


async def test_a_scripted_team_solves_a_room_over_several_turns(play) -> None:
    solution = solve(*parse_room(TWO)).solution
    assert solution is not None
    parts = [solution.moves[i : i + 3] for i in range(0, len(solution.moves), 3)]
    replies = [f"I think so. {moves_reply(part)}" for part in parts]
    result = await play(tool=replies, executor=replies, room=TWO, turns=len(parts) + 3)
    episode = result.episodes[0]
    assert episode.turns == len(parts) and [s.agent_id for s in episode.samples] == [TOOL, EXECUTOR] * len(
        parts
    )
    assert episode.team_reward == pytest.approx(1.0)
    assert (
        episode.info["success"] == 1.0
        and episode.info["plan/followed"] == 1.0
        and episode.info["push_efficiency"] == 1.0
    )
    assert result.metrics["episode/success_rate"] == 1.0


async def test_the_executor_reads_the_plan_and_may_act_otherwise(play) -> None:
    result = await play(tool=["<think>hm</think>Down. <moves>D</moves>"], executor=["No: <moves>U</moves>"])
    tool, executor = result.episodes[0].samples
    assert UP in tool.request.prompt_text and UP in executor.request.prompt_text
    assert (
        "Down. <moves>D</moves>" in executor.request.prompt_text and "hm" not in executor.request.prompt_text
    )
    assert result.episodes[0].info["plan/followed"] == 0.0 and result.episodes[0].info["success"] == 1.0


async def test_the_next_turn_starts_from_the_committed_state(play) -> None:
    result = await play(tool=["<moves>L</moves>"] * 2, executor=["<moves>L</moves>", "<moves>R U</moves>"])
    samples = result.episodes[0].samples
    assert (
        "#-$--#\n#@---#" in samples[2].request.prompt_text and "#@---#" not in samples[1].request.prompt_text
    )
    assert (
        samples[2].identity.anchor != samples[0].identity.anchor
        and samples[1].identity.anchor == samples[0].identity.anchor
    )


async def test_both_roles_are_shown_what_stopped_the_last_turn_so_that_the_prompts_of_equal_states_differ(
    play,
) -> None:
    replies = ["<moves>L L</moves>", "<moves>L R</moves>", "<moves>R U</moves>"]
    result = await play(
        tool=["<moves>D</moves>"] * 3, executor=replies, env={"show_last": True, "max_moves": 2}
    )
    prompts = [sample.request.prompt_text for sample in result.episodes[0].samples]
    seen = ["last - - stop -"] * 2 + ["last - L stop L"] * 2 + ["last - - stop L"] * 2
    assert all(f"#----#\n######\n{line}\n" in prompt for prompt, line in zip(prompts, seen, strict=True))
    assert result.episodes[0].samples[2].identity.anchor == result.episodes[0].samples[4].identity.anchor


async def test_short_prompts_quote_moves_alone(play) -> None:
    result = await play(
        tool=["blah <moves>[u, l]</moves>", "???"],
        executor=["", "<moves>U</moves>"],
        options={"prompt_style": "short"},
        env={"view": "spaced"},
    )
    first, second, third, fourth = (s.request.prompt_text for s in result.episodes[0].samples)
    assert (
        "Plan:\n# # # # # #" in first
        and "# - . - - #\n" in second
        and "\nPlan: U L" in second
        and "blah" not in second
    )
    assert third.startswith("<|im_start|>user\nPlan:") and "\nPlan: ?" in fourth


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "no",
        "<moves></moves>",
        "<moves>up up and away</moves>",
        "<moves>" * 20,
        "<moves>UUUUUUUUUUUUUUUUUUU</moves>",
    ],
)
async def test_hostile_replies_leave_the_episode_whole(play, reply: str) -> None:
    result = await play(tool=[reply] * 3, executor=[reply] * 3, turns=3, room=TWO)
    episode = result.episodes[0]
    assert not episode.failed and episode.turns == 3 and episode.team_reward == 0.0
    assert all(s.rewards.local_reward < 0 for s in episode.samples)
    assert episode.info["unparsable"] + episode.info["illegal"] == 3


def test_projection_reads_the_last_list_outside_the_thinking() -> None:
    found = read_moves("<think><moves>D</moves></think> <moves>L</moves> no, <MOVES>u, R</MOVES>")
    assert (found.action, found.valid, found.fields["moves"]) == ("UR", True, 2)
    assert (
        read_moves("<moves>north</moves>").valid is False and read_moves("<moves>north</moves>").action == ""
    )
    assert read_moves(moves_reply("UDLR")).action == "UDLR"


def test_unknown_prompt_style_is_named() -> None:
    with pytest.raises(
        AgentSystemError, match="prompt_style must be one of full, short, found 'shirt'; did you mean 'short'"
    ):
        build_options(SokobanOptions, {"prompt_style": "shirt"}, "agent.orchestra.sokoban")
