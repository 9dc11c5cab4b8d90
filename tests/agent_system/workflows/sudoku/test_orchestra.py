import pytest

from agent_system import AgentSystemError
from agent_system.options import build_options
from agent_system.task import task_from_row
from agent_system.workflows.sudoku import EXECUTOR, TOOL, SudokuOptions
from agent_system.workflows.sudoku.world.action import cells_text
from agent_system.workflows.sudoku.world.generate import Kind, generate, to_row

HOSTILE = [
    "", "<action></action>", "<action>[[1,2,3]</action>", "<action>__import__('os')</action>",
    "<action>1 1 1</action>",
    "<plan>1 2 2</plan>",
    "<action>" + "[" * 3000 + "</action>", "<action>99 99 99</action>", "<think><action>1 2 2</action>",
    "<action>\x00\ud7ff</action>",
    "<action>{env_prompt}</action>", "<action>1e9 2 3</action>",
]  # fmt: skip


def action(text: str) -> str:
    return f"<action>{text}</action>"


async def test_a_scripted_team_solves_a_puzzle_over_several_turns(play):
    result = await play(
        tool=["<plan>1 2 2; 1 4 4</plan>", "<plan>2 1 3</plan>", "<plan>3 2 1</plan>"],
        executor=[
            action("1 2 2; 1 4 4"),
            action("2 1 3; 2 3 2"),
            action("2 3 1; 3 2 1; 3 4 3; 4 1 4; 4 3 2"),
        ],
        turns=5,
    )
    episode = result.episodes[0]
    assert [sample.agent_id for sample in episode.samples] == [TOOL, EXECUTOR] * 3
    assert result.metrics["episode/success_rate"] == 1.0 and episode.turns == 3
    assert episode.team_reward == pytest.approx(1.5)
    assert [sample.rewards.act_reward for sample in episode.samples] == pytest.approx(
        [0, 2 / 16, 0, 1 / 16, 0, 5 / 16 + 1]
    )
    assert "Now:\n1 2 3 4\n. 4 . 2" in episode.samples[2].request.prompt_text
    assert (
        episode.samples[2].identity.anchor
        == episode.samples[3].identity.anchor
        != episode.samples[4].identity.anchor
    )


@pytest.mark.parametrize("kind", [Kind(4, "hard"), Kind(9, "medium")])
async def test_writing_every_cell_of_a_generated_puzzle_solves_it(play, kind):
    (puzzle,) = generate(1, 0, kind)
    cells = cells_text([(cell, puzzle.solution[cell]) for cell in puzzle.empty], kind.size)
    result = await play(
        tool=[f"<plan>{cells}</plan>"],
        executor=[action(cells)],
        tasks=[task_from_row(to_row(puzzle, 0, "test"))],
    )
    assert result.metrics["episode/success_rate"] == 1.0


async def test_the_executor_reads_the_plan_and_the_tool_does_not(play):
    result = await play(tool=["I say <plan>1 2 2</plan>"] * 2, executor=[action("1 4 4")] * 2, turns=2)
    tool, executor, second, _ = result.episodes[0].samples
    assert "[Tool]\nI say <plan>1 2 2</plan>" in executor.request.prompt_text
    assert "I say" not in tool.request.prompt_text and "I say" not in second.request.prompt_text


async def test_hostile_replies_are_scored_and_survived(play):
    result = await play(tool=HOSTILE, executor=HOSTILE, turns=len(HOSTILE))
    episode = result.episodes[0]
    assert episode.failure is None and episode.turns == len(HOSTILE)
    assert all(sample.rewards.reward <= 0.0 for sample in episode.samples if sample.agent_id == EXECUTOR)
    assert result.metrics["env/illegal"] == 2 and result.metrics["env/unreadable"] == len(HOSTILE) - 2
    assert result.metrics["env/progress"] == 0.0


async def test_episodes_of_one_task_do_not_share_a_board(play):
    result = await play(
        tool=lambda prompt, request: "<plan>1 2 2</plan>",
        executor=[action("1 2 2"), action("1 4 3"), action("1 4 4; 2 1 3")],
        n=3,
    )
    assert sorted(episode.info["right"] for episode in result.episodes) == [0.0, 1 / 8, 2 / 8]


async def test_short_prompts_are_the_bare_board(play):
    result = await play(
        tool=["<plan>1 2 2</plan>"], executor=[action("1 2 2")], options={"prompt_style": "short"}
    )
    tool, executor = (sample.request.prompt_text for sample in result.episodes[0].samples)
    board = "1 . 3 .\n. 4 . 2\n2 . 4 .\n. 3 . 1"
    assert f"\nPlan:\n{board}<" in tool
    assert f"\nFill:\n{board}\nTool: <plan>1 2 2</plan><" in executor


def test_an_unknown_prompt_style_is_refused():
    with pytest.raises(AgentSystemError, match="one of full, short"):
        build_options(SudokuOptions, {"prompt_style": "tiny"}, "agent.orchestra.sudoku")
