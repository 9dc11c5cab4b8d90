import re

import pytest

from agent_system import AgentSystemError
from agent_system.options import build_options
from agent_system.workflows.plan_path import (
    EXECUTOR,
    TOOL,
    PlanPathExecutorAgent,
    PlanPathOptions,
    PlanPathProposerAgent,
)
from agent_system.workflows.plan_path.world.generate import generate
from agent_system.workflows.plan_path.world.grid import parse_map

MAP = generate(1, 0)[0]


def best_reply(prompt, request):
    """Reads the whole map off the prompt and answers with the shortest way."""
    rows = re.findall(r"^[.#@G]{10}$", prompt, flags=re.MULTILINE)
    grid = parse_map("\n".join(rows).replace("@", "S"))
    return f"<moves>{', '.join(grid.shortest_moves(grid.start)[:4])}</moves>"


async def test_a_scripted_team_solves_a_map(play):
    result = await play(tool=best_reply, executor=best_reply, text=MAP.text, n=2)
    for episode in result.episodes:
        assert (
            episode.info["success"] == 1.0
            and episode.info["path_ratio"] == 1.0
            and episode.info["executor/followed"] == 1.0
        )
        assert episode.team_reward == pytest.approx(1.5) and episode.turns == -(-MAP.shortest // 4)
        assert [s.agent_id for s in episode.samples] == [TOOL, EXECUTOR] * episode.turns
        assert all(s.rewards.local_reward == 0.0 for s in episode.samples)
    assert result.metrics["episode/success_rate"] == 1.0


async def test_the_executor_reads_the_proposal_and_the_next_turn_starts_where_it_went(play):
    result = await play(
        tool=["go <moves>R</moves>", "<moves>D</moves>"], executor=["<moves>D</moves>"] * 2, max_steps=2
    )
    samples = result.episodes[0].samples
    assert "[Tool]\ngo <moves>R</moves>" in samples[1].request.prompt_text
    assert (
        "row 1, column 0" in samples[2].request.prompt_text and "[Tool]" not in samples[2].request.prompt_text
    )
    assert result.episodes[0].info["tool/illegal"] == 1.0 and result.episodes[0].info["moves"] == 2.0


HOSTILE = [
    "I do not know",
    "<moves></moves>",
    "<moves>[]</moves>",
    "<moves>{env_prompt} %s {0}</moves>",
    "<moves>U" + " U" * 90 + "</moves>",
    "<moves>__import__('os')</moves>",
    "<moves>R</moves" + "<moves>" * 20,
    "<think><moves>D</moves></think>",
    "S#G\x00\x1b[2J 🧭",
]


@pytest.mark.parametrize("reply", HOSTILE)
async def test_hostile_replies_are_scored_counted_and_survived(play, reply):
    result = await play(tool=[reply] * 2, executor=[reply] * 2, max_steps=2)
    episode = result.episodes[0]
    assert (
        not episode.failed
        and episode.turns == 2
        and episode.team_reward == 0.0
        and episode.info["success"] == 0.0
    )
    assert episode.info["executor/unparsed"] + episode.info["executor/illegal"] == 2.0
    assert all(s.rewards.local_reward < 0.0 for s in episode.samples)


@pytest.mark.parametrize("agent", [PlanPathProposerAgent(), PlanPathExecutorAgent()])
def test_the_last_list_counts_and_an_unreadable_one_is_invalid(agent):
    assert agent.project("<moves>U</moves> no: <MOVES>right, Down</Moves>").action == "RD"
    found = agent.project("<moves>north</moves>")
    assert found.action == "" and not found.valid


def test_short_style_is_the_view_and_the_proposal():
    from agent_system import Entry

    options = PlanPathOptions(prompt_style="short")
    tool, executor = PlanPathProposerAgent(config=options), PlanPathExecutorAgent(config=options)
    variables = {
        "env_prompt": "VIEW",
        "max_moves": 4,
        "team_context": executor.team_context([Entry(TOOL, "<moves>R</moves>", "R")]),
    }
    assert tool.messages(variables)[0]["content"] == "Plan: VIEW"
    assert executor.messages(variables)[0]["content"] == "Check: VIEW\nTool: <moves>R</moves>"


@pytest.mark.parametrize(
    ("options", "message"),
    [({"prompt_style": "tiny"}, "one of full, short"), ({"style": "full"}, "not an option")],
)
def test_bad_option_names_the_choices(options, message):
    with pytest.raises(AgentSystemError, match=message):
        build_options(PlanPathOptions, options, "agent.orchestra.plan_path")
