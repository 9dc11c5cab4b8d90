"""Rewards on their way from an environment to the batch, the metrics and the trajectory file."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from agent_system import BaseEnv, BaseOrchestra, Observation, Outcome, Task, Turn
from verl.trainer.config.reward import OverlongBufferConfig, PropagationConfig, RewardConfig

from .conftest import OneTurn


class Pays(BaseEnv):
    """Two turns of Solver and Verifier: acts pay 1, 2, 16, 32; steps pay 4 and 64; locals 0.5 for the Solver,
    0.25 by call.
    """

    blocking = False

    def reset(self, task: Task) -> Observation:
        self.acts = iter([1.0, 2.0, 16.0, 32.0])
        self.steps = iter([(4.0, {"Solver": 0.5}), (64.0, {1: 0.25})])
        self.turn = 0
        return Observation("start", {"anchor": "key of the start"})

    def observe(self, agent_id: str) -> Observation:
        if self.turn == 0:
            return Observation("start", {"anchor": "key of the start"})
        return Observation(f"second, for {agent_id}")

    def act(self, agent_id: str, action: str) -> Outcome:
        return Outcome(team=next(self.acts), local=0.125)

    def step(self, action: str) -> Outcome:
        self.turn += 1
        team, local = next(self.steps)
        return Outcome(team, local, self.turn == 2, observation=Observation("second"))


async def collect(collector: Any, tasks: list[Task] | None = None, **options: Any) -> Any:
    return await collector.collect(tasks or [Task("a", "2+2?", "sums", "4")], 1, step=1, **options)


@pytest.mark.parametrize(
    ("scope", "team"),
    [
        ("episode", [119.0] * 4),
        ("turn", [7.0, 7.0, 112.0, 112.0]),
        ("call", [1.0, 2.0 + 4.0, 16.0, 32.0 + 64.0]),
    ],
)
async def test_the_scope_chooses_among_the_team_rewards_kept_where_they_arrived(
    make_collector, scripted, scope, team
) -> None:
    settings = RewardConfig(alpha=2.0, team_scope=scope)
    result = await collect(make_collector(scripted(), env=Pays, max_steps=3, reward=settings))
    columns = result.batch.non_tensor_batch
    local = [0.625, 0.125, 0.125, 0.375]
    assert columns["team_reward"].tolist() == team
    assert columns["local_reward"].tolist() == local
    assert columns["reward"].tolist() == [2.0 * t + one for t, one in zip(team, local, strict=True)]
    # Solver: 1 + 2 + 4, then 16 + 32 + 64. Verifier: 2 + 4 + 16 (it had not spoken again), then 32 + 64.
    assert columns["step_reward"].tolist() == [
        2.0 * t + one for t, one in zip([7.0, 22.0, 112.0, 96.0], local, strict=True)
    ]
    assert result.episodes[0].team_reward == 119.0
    assert result.metrics["episode/team_reward/mean"] == 119.0
    assert (
        result.metrics["agent/solver/local_reward/std"],
        result.metrics["agent/verifier/local_reward/std"],
    ) == (0.25, 0.125)


async def test_the_anchor_is_what_the_agent_saw_or_the_key_that_the_environment_gives(
    make_collector, scripted
) -> None:
    anchors = (
        (await collect(make_collector(scripted(), env=Pays, max_steps=3)))
        .batch.non_tensor_batch["anchor"]
        .tolist()
    )
    assert anchors == ["key of the start", "key of the start", "second, for Solver", "second, for Verifier"]
    plain = (await collect(make_collector(scripted()))).batch.non_tensor_batch["anchor"].tolist()
    assert plain == ["2+2?", "2+2?"]


async def test_every_term_is_in_the_metrics_and_in_the_trajectory(make_collector, scripted) -> None:
    reward = RewardConfig(overlong_buffer=OverlongBufferConfig(20, 0.5))

    def script(prompt: str, request: Any) -> str:
        return "no idea" if "Check:" in prompt else "\\boxed{4} and then some more"

    # The Solver writes 28 bytes and the end: 29 of 30 tokens, 19 of the 20 in the buffer. The Verifier's
    # reply is invalid and short; it did not approve, so the Solver speaks again.
    collector = make_collector(
        scripted(script), max_tokens=30, reward=reward, invalid_action_penalty={"Verifier": 0.25}
    )
    result = await collect(collector)
    metrics, (solver, verifier, _), columns = (
        result.metrics,
        result.episodes[0].to_json()["calls"],
        result.batch.non_tensor_batch,
    )
    assert [
        columns[term][1] for term in ("mixed_reward", "invalid_penalty", "overlong_penalty", "reward")
    ] == [1.0, 0.25, 0.0, 0.75]
    assert (
        solver["overlong_penalty"]
        == pytest.approx(0.5 * 19 / 20)
        == metrics["agent/solver/overlong_penalty/mean"]
    )
    assert verifier["invalid_penalty"] == 0.25 == metrics["agent/verifier/invalid_penalty/mean"]
    assert (verifier["team_reward"], verifier["mixed_reward"], verifier["reward"]) == (1.0, 1.0, 0.75)
    assert metrics["agent/verifier/reward/mean"] == 0.75
    validated = (await collect(collector, validate=True)).metrics
    assert validated["agent/verifier/reward/mean"] == 1.0
    assert validated["agent/solver/overlong_penalty/mean"] == 0.0


async def test_propagation_sees_the_whole_collection_and_reports_it(make_collector, scripted, tasks) -> None:
    class Judged(OneTurn):
        def step(self, action: str) -> Outcome:
            return Outcome(1.0, {"Verifier": float(self.task.task_id == "a")}, True)

    settings = RewardConfig(propagation=PropagationConfig("threshold", theta=0.5, min_pass_rate=0.0))
    result = await collect(make_collector(scripted(), env=Judged, reward=settings), tasks)
    assert result.batch.non_tensor_batch["team_reward"].tolist() == [1.0, 1.0, 0.0, 1.0]
    assert result.metrics["reward/propagation/pass_rate"] == 0.5


async def test_a_call_without_a_local_reward_differs_from_one_with_a_local_reward_of_zero(
    make_collector, scripted
) -> None:
    class Judges(OneTurn):
        def act(self, agent_id: str, action: str) -> Outcome:
            return Outcome(local=0.0) if agent_id == "Verifier" else Outcome()

    result = await collect(make_collector(scripted(), env=Judges))
    assert [(c["agent_id"], c["local_reward"], c["local_given"]) for c in result.episodes[0].to_json()["calls"]] == [
        ("Solver", 0.0, False), ("Verifier", 0.0, True)
    ]  # fmt: skip


async def test_joined_collections_are_rewarded_as_one_batch(make_collector, scripted, tasks) -> None:
    class Judged(OneTurn):
        def step(self, action: str) -> Outcome:
            return Outcome(1.0, {"Verifier": float(self.task.task_id == "a")}, True)

    settings = RewardConfig(propagation=PropagationConfig("threshold", theta_quantile=0.9))
    collector = make_collector(scripted(), env=Judged, reward=settings)
    whole = await collect(collector, tasks)
    joined = collector.join([await collect(collector, tasks[:1]), await collect(collector, tasks[1:])])
    for name in ("team_reward", "reward"):
        assert joined.batch.non_tensor_batch[name].tolist() == whole.batch.non_tensor_batch[name].tolist()
    assert joined.metrics["reward/propagation/theta"] == whole.metrics["reward/propagation/theta"]


@pytest.mark.parametrize(
    ("term", "bad"),
    [*((term, bad) for term in ("team", "local") for bad in (math.nan, math.inf, -math.inf)), ("team", None)],
)
async def test_a_reward_that_is_no_finite_number_fails_the_episode_and_names_environment_and_call(
    make_collector, scripted, term, bad
) -> None:
    class Broken(OneTurn):
        def act(self, agent_id: str, action: str) -> Outcome:
            return Outcome(**{term: bad}) if agent_id == "Verifier" else Outcome()

    result = await collect(make_collector(scripted(), env=Broken, max_failure_rate=1.0))
    assert (
        f"Broken.act() after call 1 of Verifier in turn 1 gave {term}={bad!r}" in result.episodes[0].failure
    )
    assert result.batch is None


class TakesTurns(BaseOrchestra):
    """The Verifier speaks in turn 2 alone."""

    agents = ("Solver", "Verifier")

    async def run(self, turn: Turn) -> str:
        return (await turn.act("Verifier" if turn.step == 2 else "Solver")).action


async def test_an_agent_without_a_call_in_the_turn_gets_the_reward_at_its_last_call(
    make_collector, scripted
) -> None:
    class Duel(BaseEnv):
        """Each turn pays both by name, 1, 10 and 100 to the Solver and ten times as much less to the
        Verifier.
        """

        blocking = False

        def reset(self, task: Task) -> Observation:
            self.pays = iter([1.0, 10.0, 100.0])
            return Observation("start")

        def step(self, action: str) -> Outcome:
            paid = next(self.pays)
            return Outcome(local={"Solver": paid, "Verifier": -10 * paid}, done=paid == 100.0)

    result = await collect(make_collector(scripted(), env=Duel, orchestra=TakesTurns(), max_steps=3))
    columns = result.batch.non_tensor_batch
    assert columns["agent_id"].tolist() == ["Solver", "Verifier", "Solver"]
    assert columns["local_reward"].tolist() == [1.0 + 10.0, -100.0 - 1000.0, 100.0]
    assert columns["step_reward"].tolist() == columns["local_reward"].tolist()


async def test_a_step_that_pays_nan_is_named_with_its_turn(make_collector, scripted) -> None:
    class Broken(OneTurn):
        def step(self, action: str) -> Outcome:
            return Outcome(local={"Solver": math.nan}, done=True)

    result = await collect(make_collector(scripted(), env=Broken, max_failure_rate=1.0))
    assert (
        "Broken.step() at the end of turn 1 gave local for Solver=nan; rewards must be finite numbers"
        in result.episodes[0].failure
    )


class Race(BaseOrchestra):
    agents = ("Solver", "Verifier")

    async def run(self, turn: Turn) -> str:
        await asyncio.gather(turn.act("Solver"), turn.act("Verifier"), turn.act("Solver"))
        return ""


@pytest.mark.parametrize("slow", ["0", "1", "2"])
async def test_the_sum_of_rewards_does_not_depend_on_who_answers_first(
    make_collector, scripted, slow: str
) -> None:
    class Thirds(OneTurn):
        def act(self, agent_id: str, action: str) -> Outcome:
            return Outcome(team=0.1 if agent_id == "Solver" else 1e16)

        def step(self, action: str) -> Outcome:
            return Outcome(team=-1e16, done=True)

    async def delay(request: Any) -> None:
        await asyncio.sleep(0.01 * request.request_id.endswith(slow))

    result = await collect(make_collector(scripted(delay=delay), env=Thirds, orchestra=Race()))
    assert result.episodes[0].team_reward == ((0.1 + 1e16) + 0.1) - 1e16


class Lingers(BaseOrchestra):
    """The Verifier of turn 1 answers in turn 2."""

    agents = ("Solver", "Verifier")

    async def run(self, turn: Turn) -> str:
        if turn.step == 1:
            self.late = asyncio.create_task(turn.act("Verifier"))
            await asyncio.sleep(0)
            return (await turn.act("Solver")).action
        await self.late
        return (await turn.act("Solver")).action


class PaysByName(BaseEnv):
    """Two turns; an act pays the Verifier 1, the Solver 0.25."""

    blocking = False

    def reset(self, task: Task) -> Observation:
        self.turn = 0
        return Observation("start")

    def act(self, agent_id: str, action: str) -> Outcome:
        paid = 1.0 if agent_id == "Verifier" else 0.25
        return Outcome(team=paid, local=2 * paid)

    def step(self, action: str) -> Outcome:
        self.turn += 1
        return Outcome(done=self.turn == 2)


async def test_a_reply_that_comes_a_turn_later_is_paid_where_it_was_asked_for(
    make_collector, scripted
) -> None:
    async def delay(request: Any) -> None:
        if request.request_id.endswith("1.0"):
            await asyncio.sleep(0.05)

    settings = RewardConfig(team_scope="call")
    result = await collect(
        make_collector(
            scripted(delay=delay), orchestra=Lingers(), env=PaysByName, max_steps=2, reward=settings
        )
    )
    columns = result.batch.non_tensor_batch
    calls = zip(columns["agent_id"], columns["turn"], columns["call"], strict=True)
    assert list(calls) == [("Verifier", 1, 0), ("Solver", 1, 1), ("Solver", 2, 0)]
    assert columns["team_reward"].tolist() == [1.0, 0.25, 0.25]
    assert columns["local_reward"].tolist() == [2.0, 0.5, 0.5]
