"""Rewards of a program's replies."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from agent_system import Outcome, Task
from agent_system.gateway.session import Session
from tests.waiting import until
from verl.trainer.config.reward import OverlongBufferConfig, RewardConfig

from .conftest import TASK, Graded, requests_of, say


async def test_a_local_reward_goes_to_a_reply_that_was_heard(play: Any) -> None:
    class ForTheWriter(Graded):
        def step(self, action: str) -> Outcome:
            done = super().step(action).done
            return Outcome(local={"Writer": 1.0} if done else {}, done=done)

    async def team(task: Task, session: Session) -> None:
        await say(session, "Writer")
        await session.step("4")
        release.clear()
        client = asyncio.create_task(say(session, "Writer"))
        await until(lambda: len(requests_of(session)) == 2)
        client.cancel()
        left = requests_of(session)[1]
        await until(lambda: not left.connected())
        release.set()
        await asyncio.wait([left.task])
        await session.step("4")

    release = asyncio.Event()
    release.set()
    task = replace(TASK, extra={"turns": 2})
    episode, _, _ = await play(
        team, env=ForTheWriter, task=task, max_steps=2, delay=lambda request: release.wait()
    )
    assert [(s.identity.turn, s.rewards.local_reward) for s in episode.samples] == [(1, 1.0)] and len(
        episode.unheard
    ) == 1


async def test_a_limit_of_the_program_does_not_move_the_penalty_of_long_replies(make_team: Any) -> None:
    async def team(task: Task, session: Session) -> str:
        return (await say(session, "Writer", max_tokens=3)).text

    collector, _ = make_team(team, reward=RewardConfig(overlong_buffer=OverlongBufferConfig(100, 1.0)))
    (episode,) = (await collector.collect([TASK], 1, step=1)).episodes
    assert (episode.samples[0].rewards.overlong_penalty, episode.samples[0].rewards.reward) == (0.0, 1.0)


async def test_a_reply_after_the_end_of_the_episode_is_no_act(play: Any) -> None:
    class EndsWithAnAct(Graded):
        blocking = True

        def act(self, agent_id: str, action: str) -> Outcome:
            return Outcome(1.0, done=True)

    async def team(task: Task, session: Session) -> None:
        await asyncio.gather(say(session, "Writer", n=2), say(session, "Editor"))

    episode, _, _ = await play(team, env=EndsWithAnAct)
    assert episode.failure is None and episode.team_reward == 1.0
    assert sorted(s.rewards.act_reward or 0.0 for s in episode.samples) == [0.0, 0.0, 1.0]
