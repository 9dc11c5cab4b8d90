from typing import Any

import pytest

from agent_system.workflows.math_tool import REASONER, TOOL_USER


def fenced(source: str) -> str:
    return f"So:\n```python\n{source}\n```"


def boxed(answer: str) -> str:
    return f"So \\boxed{{{answer}}}"


def of(episode: Any, agent: str) -> list[Any]:
    return [s for s in episode.samples if s.agent_id == agent]


async def test_they_see_each_others_answers_in_the_next_turn_and_stop_when_they_agree(play: Any) -> None:
    (episode,) = (await play([boxed("41"), boxed("42")], [fenced("print(42)")] * 2)).episodes
    assert episode.turns == 2 and episode.team_reward == 1.0 and (episode.info["success"], episode.info["agreed"]) == (1, 1)
    first, second = of(episode, REASONER)
    assert "# The last turn" not in first.prompt_text and first.local_reward == pytest.approx(0.2)
    assert (
        "The Reasoner's answer: 41\nThe Tool-user's answer: 42" in second.prompt_text
        and "print(42)" in of(episode, TOOL_USER)[1].prompt_text
    )
    assert '"42"' not in first.prompt_text


async def test_an_error_is_shown_and_missing_answers_are_named(play: Any) -> None:
    (episode,) = (await play(["?", "?"], [fenced("raise ValueError('no')"), "?"], max_steps=2)).episodes
    text = of(episode, TOOL_USER)[1].prompt_text
    assert "The Reasoner's answer: (none)\nThe Tool-user's answer: failed (error) ValueError: no" in text
    assert episode.info["reasoner/unparsed"] == 2 and episode.info["tool/unparsed"] == 1 and episode.team_reward == 0.0


async def test_it_ends_after_max_steps_where_they_never_agree(play: Any) -> None:
    (episode,) = (await play([boxed("42")] * 3, [fenced("print(1)")] * 3)).episodes
    assert episode.turns == 3 and episode.team_reward == 1.0 and episode.info["agreed"] == 0.0


async def test_candidates_get_different_rewards_and_the_best_of_each_call_is_committed(play: Any) -> None:
    (episode,) = (await play([boxed("1"), "?", boxed("42")], [fenced("1 / 0"), fenced("print(42)"), fenced("print(1)")], k=3)).episodes
    reasoner, tool = of(episode, REASONER), of(episode, TOOL_USER)
    assert [s.local_reward for s in reasoner] == pytest.approx([0.2, 0.0, 1.0]) and [s.fork_reward for s in reasoner] == [0, 0, 1]
    assert [s.local_reward for s in tool] == pytest.approx([0.1, 1.0, 0.2]) and [s.committed for s in tool] == [False, True, False]
    assert episode.turns == 1 and episode.info["success"] == 1.0


async def test_the_short_style_says_the_same_in_few_words(play: Any) -> None:
    (episode,) = (await play([boxed("41"), boxed("42")], [fenced("print(42)")] * 2, style="short")).episodes
    assert "\nReason: What is 6 times 7?\nReasoner 41\nTool 42<" in of(episode, REASONER)[1].prompt_text
