"""What a critic of the whole team reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agent_system import BaseEnv, BaseOrchestra, Observation, Outcome, Task, Turn
from agent_system.rollout import Collector
from agent_system.rollout.tokens import decode

Make = Callable[..., Any]


class TwoTurns(BaseEnv):
    blocking = False

    def reset(self, task: Task) -> Observation:
        self.turns = 0
        return Observation(task.prompt)

    def step(self, action: str) -> Outcome:
        self.turns += 1
        return Outcome(done=self.turns == 2)


class Together(BaseOrchestra):
    agents = ("Solver", "Verifier")

    async def run(self, turn: Turn) -> str:
        await asyncio.gather(turn.act("Solver"), turn.act("Solver"))
        return (await turn.act("Verifier")).action


def reply(prompt: str, request: Any) -> str:
    return "checked" if "Check:" in prompt else f"try {request.request_id[-3:]}"


@pytest.fixture
def collector(make_collector: Make, scripted: Make) -> Callable[[int], Collector]:
    return lambda limit: make_collector(
        scripted(reply),
        orchestra=Together(),
        env=TwoTurns,
        max_steps=2,
        joint_prompt_length=limit,
        max_prompt_length=300,
    )


def said_before(result: Any, tokenizer: Any) -> list[str]:
    """The transcript of every row, without the prompt that follows it."""
    rows = [s for e in result.episodes for s in e.samples]
    tensors, texts = result.batch.batch, []
    for i, sample in enumerate(rows):
        ids = tensors["critic_prompts"][i][tensors["critic_prompt_mask"][i].bool()].tolist()
        assert tuple(ids[len(ids) - len(sample.request.prompt_ids) :]) == sample.request.prompt_ids
        texts.append(decode(tokenizer, ids[: len(ids) - len(sample.request.prompt_ids)]))
    return texts


async def test_a_critic_of_the_team_reads_all_that_was_said_before_the_call(
    collector: Make, tasks: Sequence[Task], tokenizer: Any
) -> None:
    result = await collector(1000).collect(tasks[:1], 1, step=1)
    first, second = "Solver: try 1.0\n\n", "Solver: try 1.1\n\n"
    turn = first + second + "Verifier: checked\n\n"
    assert said_before(result, tokenizer) == [
        "",
        "",
        first + second,
        turn,
        turn,
        turn + "Solver: try 2.0\n\nSolver: try 2.1\n\n",
    ]
    mask = result.batch.batch["critic_prompt_mask"]
    assert (mask.diff(dim=1) >= 0).all() and mask[:, -1].all(), "padding is on the left"


async def test_the_oldest_words_are_cut_and_the_prompt_never(
    collector: Make, tasks: Sequence[Task], tokenizer: Any
) -> None:
    whole = said_before(await collector(1000).collect(tasks, 2, step=1), tokenizer)
    short = await collector(130).collect(tasks, 2, step=1)
    longest = max(len(s.request.prompt_ids) for e in short.episodes for s in e.samples)
    assert short.batch.batch["critic_prompts"].shape[1] == max(130, longest)
    cut = said_before(short, tokenizer)
    assert all(all_.endswith(end) for all_, end in zip(whole, cut, strict=True))
    assert any(0 < len(end) < len(all_) for all_, end in zip(whole, cut, strict=True))


async def test_own_view_and_validation_make_no_prompts_for_critics(
    collector: Make, tasks: Sequence[Task]
) -> None:
    for result in (
        await collector(0).collect(tasks, 1, step=1),
        await collector(900).collect(tasks, 1, step=1, validate=True),
    ):
        assert "critic_prompts" not in result.batch.batch.keys()  # noqa: SIM118
