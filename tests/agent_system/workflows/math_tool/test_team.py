import json
from typing import Any

import pytest

from agent_system import AgentSystemError
from agent_system.registry import AgentRegistry, OrchestraRegistry
from agent_system.tools import runs_programs
from agent_system.workflows.math_tool import REASONER, TOOL_USER
from agent_system.workflows.single import SINGLE


def called(source: str) -> str:
    return f"<tool_call>{json.dumps({'name': 'python', 'arguments': {'code': source}})}</tool_call>"


def boxed(answer: str) -> str:
    return f"So \\boxed{{{answer}}}"


def of(episode: Any, agent: str) -> list[Any]:
    return [s for s in episode.samples if s.agent_id == agent]


async def test_the_tool_user_answers_with_what_its_program_prints_and_each_generation_is_a_sample(
    play: Any,
) -> None:
    result = await play([boxed("42")], [called("print(6 * 7)"), boxed("42")])
    (episode,) = result.episodes
    asked, answered = of(episode, TOOL_USER)
    assert "<tool_response>\n42\n" in answered.request.prompt_text and (asked.action, answered.action) == (
        "",
        "42",
    )
    assert [s.rewards.local_reward for s in (asked, answered)] == [1.0, 1.0] and [
        s.rewards.reward for s in (asked, answered)
    ] == [2.0, 2.0]
    assert (episode.turns, episode.team_reward, episode.info["agreed"]) == (1, 1.0, 1) and len(
        result.batch
    ) == 3
    assert result.metrics["agent/tool_agent/tools/calls_per_episode"] == 1


async def test_they_see_each_others_answers_in_the_next_turn_and_stop_when_they_agree(play: Any) -> None:
    (episode,) = (await play([boxed("41"), boxed("42")], [boxed("42")] * 2)).episodes
    assert (
        episode.turns == 2
        and episode.team_reward == 1.0
        and (episode.info["success"], episode.info["agreed"]) == (1, 1)
    )
    first, second = of(episode, REASONER)
    assert "# The last turn" not in first.request.prompt_text and first.rewards.local_reward == pytest.approx(
        0.2
    )
    assert "The Reasoner's answer: 41\nThe Tool-user's answer: 42" in second.request.prompt_text
    assert '"42"' not in first.request.prompt_text


async def test_errors_are_shown_to_the_tool_user_and_missing_answers_are_named(play: Any) -> None:
    replies = [called("raise ValueError('no')"), '<tool_call>{"name": "python"', "?", boxed("42")]
    (episode,) = (await play(["?", boxed("42")], replies, max_steps=2)).episodes
    _, second, third, _ = of(episode, TOOL_USER)
    assert (
        "ValueError: no" in second.request.prompt_text
        and "error: the tool call is not valid JSON" in third.request.prompt_text
    )
    assert [s.valid for s in of(episode, TOOL_USER)] == [True, False, False, True]
    assert (
        "The Reasoner's answer: (none)\nThe Tool-user's answer: (none)"
        in of(episode, TOOL_USER)[3].request.prompt_text
    )
    assert (
        episode.info["reasoner/unparsed"] == 1
        and episode.info["tool/unparsed"] == 1
        and episode.team_reward == 1.0
    )


async def test_it_ends_after_max_steps_where_they_never_agree(play: Any) -> None:
    (episode,) = (await play([boxed("42")] * 3, [boxed("1")] * 3)).episodes
    assert episode.turns == 3 and episode.team_reward == 1.0 and episode.info["agreed"] == 0.0


async def test_with_one_round_no_call_is_run(play: Any) -> None:
    result = await play([boxed("1")], [called("print(6 * 7)")], max_steps=1, max_rounds=1)
    (sample,) = of(result.episodes[0], TOOL_USER)
    assert (sample.action, sample.valid) == ("", False) and result.metrics["agent/tool_agent/tools/cut"] == 1
    assert result.episodes[0].info["tool/unparsed"] == 1


async def test_a_tree_is_refused_because_a_call_has_several_generations(play: Any) -> None:
    with pytest.raises(AgentSystemError, match=r"'Tool Agent' is a ToolAgent.*rollout\.sampling=parallel"):
        await play([boxed("1")], [boxed("1")], k=3)


async def test_the_short_style_says_the_same_in_few_words(play: Any) -> None:
    (episode,) = (await play([boxed("41"), boxed("42")], [boxed("42")] * 2, style="short")).episodes
    assert (
        "\nReason: What is 6 times 7?\nReasoner 41\nTool 42<" in of(episode, REASONER)[1].request.prompt_text
    )


def test_the_run_gets_a_sandbox_for_its_agents() -> None:
    team = {
        name: AgentRegistry.get(name, orchestra="math_tool", env="math_tool")
        for name in (REASONER, TOOL_USER)
    }
    single = AgentRegistry.get(SINGLE, orchestra="single", env="math_tool")
    assert [runs_programs(cls) for cls in (*team.values(), single)] == [False, True, True]
    assert OrchestraRegistry.get("math_tool", env="math_tool").agents == (REASONER, TOOL_USER)
