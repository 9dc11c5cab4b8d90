"""Tokens of an episode, in all and along its longest chain of calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_system import BaseEnv, Observation, Outcome, Task
from agent_system.registry import EnvRegistry
from agent_system.rollout.metrics import critical_tokens
from agent_system.testing import make_tokenizer, scripted_team
from agent_system.workflows.graph import Team

TASK = Task("t", "What?", "demo", "7")
AGENTS = "".join(f"  {name}: {{prompt: '{name}: {{env_prompt}}'}}\n" for name in "ABC")


@EnvRegistry.register("waits_for_three_turns")
class Waits(BaseEnv):
    blocking = False

    def reset(self, task: Task) -> Observation:
        return Observation(task.prompt)

    def step(self, action: Any) -> Outcome:
        return Outcome()


LENGTHS = {"A": 3, "B": 5, "C": 9}  # tokens of a reply, with the one that ends it


@pytest.mark.parametrize(
    ("steps", "tokens", "critical"),
    [
        ("[{call: A, id: s}, {call: B}, {call: C}]", 17, 17),
        ("[{parallel: [{call: A, id: s}, {call: B}, {call: C}]}]", 17, 9),
        ("[{parallel: [{call: A, id: s}, {call: B}]}, {call: C}]", 17, 14),
        ("[{call: A, id: s}, {parallel: [{call: B}, {call: C}]}]", 17, 12),
        ("[{parallel: [[{call: A, id: s}, {call: C}], [{call: B}, {call: A}]]}]", 20, 14),
        ("[{vote: A, n: 5, id: s}, {call: B}, {call: C}]", 29, 17),
        ("[{loop: 3, do: [{call: A, id: s}, {call: B}, {call: C}]}]", 51, 51),
    ],
)
@pytest.mark.parametrize("delayed", ["A", "C"])
async def test_the_longest_chain_follows_the_steps_and_not_the_order_of_arrival(
    tmp_path: Any, steps: str, tokens: int, critical: int, delayed: str
) -> None:
    (tmp_path / "team.yaml").write_text(f"team: 1\nagents:\n{AGENTS}do: {steps}\nreturn: s\n")
    tokenizer = make_tokenizer()

    async def delay(request: Any) -> None:
        late = f"user\n{delayed}: " in tokenizer.decode(request.prompt_ids)
        await asyncio.sleep(0.01 if late else 0)

    team = scripted_team(
        "graph",
        {name: lambda *_, n=n: "x" * (n - 1) for name, n in LENGTHS.items()},
        env_name="math",
        options={"file": str(tmp_path / "team.yaml")},
        tokenizer=tokenizer,
        delay=delay,
    )
    result = await team.collect([TASK], 2, step=1)
    assert result.metrics["episode/tokens"] == tokens
    assert result.metrics["episode/critical_tokens"] == critical
    assert Team.load(tmp_path / "team.yaml").calls == len(result.episodes[0].samples)


async def test_the_turns_of_an_episode_follow_each_other(tmp_path: Any) -> None:
    steps = "[{parallel: [{call: A, id: s}, {call: B}, {call: C}]}]"
    (tmp_path / "team.yaml").write_text(f"team: 1\nagents:\n{AGENTS}do: {steps}\nreturn: s\n")
    team = scripted_team(
        "graph",
        {name: lambda *_, n=n: "x" * (n - 1) for name, n in LENGTHS.items()},
        env_name="waits_for_three_turns",
        options={"file": str(tmp_path / "team.yaml")},
        max_steps=3,
    )
    (episode,) = (await team.collect([TASK], 1, step=1)).episodes
    assert episode.turns == 3 and critical_tokens(episode) == 27
