"""Tree sampling: K candidates a call on forks of the world, one of them committed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from agent_system import AgentSystemError, BaseAgent, BaseEnv, BaseOrchestra, Observation, Outcome, Task, Turn
from agent_system.rollout import CollectorSettings, TooManyFailuresError
from agent_system.rollout.tree_call import choose
from agent_system.testing import ScriptedEngine
from verl.protocol.generate import GenerateRequest, Generation
from verl.trainer.config.reward import RewardConfig
from verl.trainer.config.run import TreeConfig
from verl.trainer.config.spec import ConfigError

from .conftest import OneTurn

CALL = RewardConfig(alpha=2.0, team_scope="call")
TASKS = [Task("a", "go", "worlds", None), Task("b", "go", "worlds", None)]


class Adder(BaseEnv):
    """Agents say numbers: each pays itself to the team, half to the speaker. 9 ends the episode, 13 breaks
    the world.
    """

    blocking = False
    alive = 0

    def __init__(self, config: Any = None, *, seed: int = 0, said: tuple[str, ...] = ()) -> None:
        super().__init__(config, seed=seed)
        self.said = said
        type(self).alive += 1

    def reset(self, task: Task) -> Observation:
        return Observation("start")

    def observe(self, agent_id: str) -> Observation:
        return Observation(f"said {' '.join(self.said)}.")

    def act(self, agent_id: str, action: str) -> Outcome:
        if action == "13":
            raise ValueError("unlucky")
        self.said += (action,)
        return Outcome(
            float(action),
            float(action) / 2,
            action == "9",
            {"sum": sum(int(s) for s in self.said if s.isdigit())},
        )

    def step(self, action: str) -> Outcome:
        self.said += ("/",)
        return Outcome(100.0, done=self.said.count("/") == 2)

    def fork(self) -> Adder:
        return type(self)(self.config, seed=self.seed, said=self.said)

    def close(self) -> None:
        type(self).alive -= 1


class Speaker(BaseAgent):
    prompt = "{env_prompt} heard: {team_context}"


class InTurn(BaseOrchestra):
    agents = ("A", "B")

    async def run(self, turn: Turn) -> str:
        await turn.act("A")
        return (await turn.act("B")).action


class Together(BaseOrchestra):
    agents = ("A", "B")

    async def run(self, turn: Turn) -> str:
        said = await asyncio.gather(turn.act("A"), turn.act("B"))
        return " ".join(s.action for s in said)


@pytest.fixture
def play(make_collector: Any, scripted: Any) -> Callable[..., Any]:
    async def run(
        script: Any,
        *,
        tasks: list[Task] = TASKS[:1],
        n: int = 1,
        k: int = 3,
        select: str = "greedy",
        **options: Any,
    ) -> Any:
        engine = script if isinstance(script, ScriptedEngine) else scripted(script)
        kinds = {"validate": options.pop("validate", False), "greedy": options.pop("greedy", False)}
        options = {
            "orchestra": InTurn(),
            "env": Adder,
            "reward": CALL,
            "max_steps": 3,
            "max_failure_rate": 1.0,
        } | options
        agents = {name: Speaker(name) for name in ("A", "B")}
        tree = TreeConfig(k=k, select=select, temperature=0.5, k_per_agent=options.pop("k_per_agent", {}))
        collector = make_collector(engine, agents=agents, tree=tree, **options)
        return await collector.collect(tasks, n, step=1, **kinds)

    return run


def numbers(seed: int = 0) -> Callable[[str, GenerateRequest], str]:
    """A script of digits from 1 to 8, distinct within a request."""
    left: dict[str, list[int]] = {}

    def script(_prompt: str, request: GenerateRequest) -> str:
        pool = left.setdefault(
            request.request_id, random.Random(f"{seed}{request.seed}").sample(range(1, 9), 8)
        )
        return str(pool.pop())

    return script


async def test_every_call_is_one_request_whose_candidates_have_rewards_of_their_own(play, scripted) -> None:
    engine = scripted(["1", "3", "2", "5", "4", "6", "1", "2", "3", "2", "1", "3"])
    result = await play(engine)
    columns = result.batch.non_tensor_batch
    assert [r.n for r in engine.requests] == [3] * 4
    assert columns["candidate"].tolist() == [0, 1, 2] * 4
    assert columns["team_reward"].tolist() == [1, 3, 2, 5, 4, 6, 1, 2, 3, 2, 1, 3]
    assert columns["reward"].tolist() == [2.5 * r for r in (1, 3, 2, 5, 4, 6, 1, 2, 3, 2, 1, 3)]
    assert columns["local_reward"].tolist()[:3] == [0.5, 1.5, 1.0]
    assert [s.action for s in result.episodes[0].committed] == ["3", "6", "3", "3"]
    assert result.metrics["tree/candidates/mean"] == 3.0
    assert result.metrics["tree/signal_rate"] == 1.0


async def test_the_committed_state_is_the_best_branch_and_the_next_agent_reads_it(play, scripted) -> None:
    engine = scripted(["1", "3", "2", "5", "4", "6", "1", "2", "3", "2", "1", "3"])
    episode = (await play(engine)).episodes[0]
    prompts = [s.request.prompt_text for s in episode.committed]
    for prompt, said in zip(prompts, ["said .", "said 3.", "said 3 6 /.", "said 3 6 / 3."], strict=True):
        assert said in prompt
    assert "A: 3" in prompts[1]
    assert [
        len({s.request.prompt_ids for s in episode.samples if (s.identity.turn, s.identity.call) == at})
        for at in ((1, 0), (1, 1))
    ] == [1, 1]
    assert episode.info["sum"] == 3 + 6 + 3 + 3


async def test_only_what_was_committed_is_paid_to_the_episode(play) -> None:
    episode = (await play(["1", "3", "2", "5", "4", "6", "1", "2", "3", "2", "1", "3"])).episodes[0]
    assert episode.team_reward == 3 + 6 + 100 + 3 + 3 + 100
    assert [s.rewards.act_reward for s in episode.samples[:3]] == [None, 3.0, None]
    assert [s.rewards.fork_reward for s in episode.samples[:3]] == [1.0, 3.0, 2.0]
    assert [s.rewards.step_reward for s in episode.samples[:3]] == [2.5, 7.5, 5.0]


@pytest.mark.parametrize("seed", range(5))
async def test_groups_have_k_samples_and_never_span_episodes(play, seed: int) -> None:
    batch = (await play(numbers(seed), tasks=TASKS, n=2, k=4)).batch.non_tensor_batch
    keys = list(zip(*(batch[f].tolist() for f in ("traj_uid", "agent_id", "turn", "call")), strict=True))
    assert set(Counter(keys).values()) == {4}
    assert len(set(keys)) == 2 * 2 * 2 * 2
    for key in set(keys):
        rewards = [r for k, r in zip(keys, batch["reward"].tolist(), strict=True) if k == key]
        committed = [c for k, c in zip(keys, batch["committed"].tolist(), strict=True) if k == key]
        assert len(set(rewards)) == 4
        assert committed == [r == max(rewards) for r in rewards]


async def test_done_of_the_chosen_ends_the_episode_at_once_and_done_of_a_loser_does_not(
    play, scripted
) -> None:
    engine = scripted(["1", "9", "2"])
    episode = (await play(engine)).episodes[0]
    assert (len(engine.requests), episode.turns, len(episode.samples)) == (1, 1, 3)
    assert episode.team_reward == 9.0
    assert not episode.failed
    passed_over = (await play(["1", "9", "2", *"123123123"], select="first")).episodes[0]
    assert [s.action for s in passed_over.committed] == ["1", "1", "1", "1"]


async def test_a_candidate_that_breaks_its_fork_is_left_out_of_its_group_alone(play) -> None:
    result = await play(["1", "13", "2", *"456123123"])
    episode = result.episodes[0]
    assert [(s.identity.candidate, s.action) for s in episode.samples[:3]] == [(0, "1"), (2, "2"), (0, "4")]
    assert [s.action for s in episode.committed] == ["2", "6", "3", "3"]
    assert result.metrics["tree/left_out"] == 1.0 == episode.left_out
    assert not episode.failed


async def test_a_step_with_more_broken_candidates_than_episodes_may_fail_stops_with_the_causes(play) -> None:
    replies = ["1", "13", "2", *"456123123"]  # one of twelve breaks
    assert (await play(replies, max_failure_rate=1 / 12)).metrics["tree/left_out"] == 1.0
    with pytest.raises(
        TooManyFailuresError,
        match=r"1 of 12 candidates failed.*max_failure_rate=0\.08 allows:\n  1 x ValueError: unlucky",
    ):
        await play(replies, max_failure_rate=0.08)


class Aborts(ScriptedEngine):
    """The second reply of every request is aborted."""

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        replies = await super().generate(request)
        return [replies[0], Generation((), (), "abort"), *replies[2:]]


async def test_an_aborted_candidate_is_left_out(play, tokenizer) -> None:
    result = await play(Aborts(tokenizer, ["1", "7", "2"] * 4))
    assert result.batch.non_tensor_batch["candidate"].tolist() == [0, 2] * 4
    assert [s.action for s in result.episodes[0].committed] == ["2"] * 4
    assert result.metrics["tree/left_out"] == 4.0


async def test_an_episode_without_a_candidate_left_fails_with_the_cause(play) -> None:
    result = await play(["1", "2", "3", "13", "13", "13"])
    assert (
        "none of the 3 candidates of B in turn 1 could be scored: ValueError: unlucky"
        in result.episodes[0].failure
    )
    assert result.batch is None


async def test_calls_at_the_same_time_act_on_one_state_and_are_applied_in_call_order(play, scripted) -> None:
    async def slow_first(request: GenerateRequest) -> None:
        await asyncio.sleep(0.02 * request.request_id.endswith(".0"))

    def script(prompt: str, request: GenerateRequest) -> str:
        return {"1.0": "4", "1.1": "5"}.get(request.request_id[-3:], "2")

    episode = (await play(scripted(script, delay=slow_first), orchestra=Together(), k=2)).episodes[0]
    first = [s for s in episode.samples if s.identity.turn == 1]
    assert [(s.identity.call, s.identity.candidate, s.action) for s in first] == [
        (0, 0, "4"),
        (0, 1, "4"),
        (1, 0, "5"),
        (1, 1, "5"),
    ]
    assert all("said ." in s.request.prompt_text for s in first)
    assert "said 4 5 /." in episode.samples[4].request.prompt_text
    assert episode.team_reward == 4 + 5 + 100 + 2 + 2 + 100
    assert [s.rewards.fork_reward for s in first] == [4.0, 4.0, 5.0, 5.0]


async def test_of_simultaneous_actions_those_after_the_end_are_not_applied(play) -> None:
    episode = (
        await play(lambda _p, r: "9" if r.request_id.endswith(".0") else "5", orchestra=Together(), k=2)
    ).episodes[0]
    assert (episode.team_reward, episode.turns, len(episode.samples)) == (9.0, 1, 4)


async def test_of_simultaneous_calls_one_that_fails_does_not_hold_up_the_other(play) -> None:
    class Tolerant(BaseOrchestra):
        agents = ("A", "B")

        async def run(self, turn: Turn) -> str:
            said = await asyncio.gather(turn.act("A"), turn.act("B"), return_exceptions=True)
            return type(said[0]).__name__

    episode = (
        await play(lambda _p, r: "13" if r.request_id.endswith(".0") else "5", orchestra=Tolerant(), k=2)
    ).episodes[0]
    assert not episode.failed
    assert [s.agent_id for s in episode.committed] == ["B", "B"]


async def test_every_fork_is_closed(play) -> None:
    for script in (
        numbers(),
        ["1", "13", "2", *"456123123"],
        ["1", "2", "3", "13", "13", "13"],
        ["1", "9", "2"],
    ):
        Adder.alive = 0
        await play(script)
        assert Adder.alive == 0
    await play(numbers(), orchestra=Together())
    assert Adder.alive == 0


@pytest.mark.parametrize("kind", ["validate", "greedy"])
async def test_validation_and_baselines_take_one_reply_a_call(play, scripted, kind: str) -> None:
    engine = scripted(["1", "2", "3", "4"])
    result = await play(engine, **{kind: True})
    assert [r.n for r in engine.requests] == [1] * 4
    assert result.batch.non_tensor_batch["team_reward"].tolist() == [1.0, 102.0, 3.0, 104.0]
    assert "tree/candidates/mean" not in result.metrics


@pytest.mark.parametrize(
    ("orchestra", "given", "asked"),
    [
        (InTurn(), {}, {"A": 1, "B": 3}),
        (Together(), {}, {"A": 1, "B": 3}),
        (InTurn(), {"A": 4}, {"A": 4, "B": 3}),
        (InTurn(), {"B": 2}, {"A": 1, "B": 2}),
        (Together(), {"A": 2, "B": 1}, {"A": 2, "B": 1}),
    ],
)
async def test_a_frozen_agent_has_one_reply_a_call_and_any_agent_may_have_a_k_of_its_own(
    play, orchestra: BaseOrchestra, given: dict[str, int], asked: dict[str, int]
) -> None:
    result = await play(numbers(), orchestra=orchestra, frozen=("A",), k_per_agent=given)
    (episode,) = result.episodes
    candidates = Counter((s.agent_id, s.identity.turn) for s in episode.samples)
    assert candidates == {(name, turn): k for name, k in asked.items() for turn in (1, 2)}
    assert Counter(s.agent_id for s in episode.committed) == {"A": 2, "B": 2}
    assert episode.team_reward == sum(int(s.action) for s in episode.committed) + 200, (
        "what is committed is paid, whoever said it"
    )
    assert set(result.batch.non_tensor_batch["agent_id"]) == {"B"}
    several = [k for k in asked.values() if k > 1]
    assert result.metrics["tree/candidates/mean"] == sum(several) / len(several)
    assert result.metrics["tree/signal_rate"] == 1.0, "calls with one candidate have nothing to compare"
    assert [f"agent/{name.lower()}/tied_calls" in result.metrics for name in ("A", "B")] == [
        k > 1 for k in asked.values()
    ]


class Proposals(OneTurn):
    """Nothing is paid before the end; `score` knows what an action is worth."""

    def score(self, agent_id: str, action: str) -> Outcome:
        return Outcome(team=float(action), local=1.0, done=True)

    def fork(self) -> Proposals:
        twin = type(self)(self.config, seed=self.seed)
        twin.task = self.task
        return twin


async def test_score_compares_candidates_and_pays_the_episode_nothing(play) -> None:
    episode = (await play(["1", "3", "2", "5", "4", "6"], env=Proposals)).episodes[0]
    assert [s.action for s in episode.committed] == ["3", "6"]
    assert [s.rewards.reward for s in episode.samples] == [2.0 * x + 1.0 for x in (1, 3, 2, 5, 4, 6)]
    assert episode.team_reward == 0.0


async def test_a_blocking_world_tries_its_candidates_at_the_same_time(play) -> None:
    import threading

    class Slow(Adder):
        blocking = True
        meeting = threading.Barrier(3, timeout=30)

        def act(self, agent_id: str, action: str) -> Outcome:
            self.meeting.wait()
            return super().act(agent_id, action)

    assert not (await play(numbers(), env=Slow)).episodes[0].failed


async def test_a_run_is_the_same_whatever_the_order_of_completion(play, scripted) -> None:
    async def jitter(request: GenerateRequest) -> None:
        await asyncio.sleep(0.002 * (request.seed % 5))

    results = [
        await play(scripted(numbers(), **o), tasks=TASKS, n=2, select="softmax")
        for o in ({}, {"delay": jitter})
    ]
    actions = [
        [
            (s.request.seed, s.identity.candidate, s.action, s.identity.committed)
            for e in r.episodes
            for s in e.samples
        ]
        for r in results
    ]
    assert actions[0] == actions[1]


def test_each_selection_chooses_as_it_says() -> None:
    rewards = [1.0, 3.0, 3.0, 2.0]
    drawn = {
        name: Counter(
            choose(TreeConfig(k=4, select=name, temperature=0.5), rewards, seed) for seed in range(400)
        )
        for name in ("random", "softmax")
    }
    assert choose(TreeConfig(k=4, select="greedy"), rewards, 0) == 1
    assert choose(TreeConfig(k=4, select="first"), rewards, 0) == 0
    assert min(drawn["random"][i] for i in range(4)) > 70
    assert drawn["softmax"][1] + drawn["softmax"][2] > 330 > 300 > drawn["softmax"][3] > drawn["softmax"][0]


def test_epsilon_commits_any_candidate_in_its_share_of_calls() -> None:
    drawn = Counter(
        choose(TreeConfig(k=4, select="greedy", epsilon=0.4), [1.0, 3.0, 3.0, 2.0], seed)
        for seed in range(2000)
    )
    assert all(abs(drawn[i] - 200) < 60 for i in (0, 2, 3)) and abs(drawn[1] - 1400) < 80
    assert {
        choose(TreeConfig(k=2, select="greedy", epsilon=0.0), [0.0, 1.0], seed) for seed in range(50)
    } == {1}


async def test_a_call_that_outlives_its_turn_is_refused(play) -> None:
    class Leaves(BaseOrchestra):
        agents = ("A", "B")

        async def run(self, turn: Turn) -> str:
            if turn.step == 2:
                await self.late
            self.late = asyncio.create_task(turn.act("A"))
            return ""

    episode = (await play(numbers(), orchestra=Leaves())).episodes[0]
    assert "a turn must await its calls" in episode.failure


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"k": 1}, "rollout.tree.k=1"),
        ({"select": "best"}, "rollout.tree.select='best'"),
        ({"temperature": 0.0}, "rollout.tree.temperature"),
        ({"epsilon": 1.5}, "rollout.tree.epsilon"),
        ({"k_per_agent": {"A": 0}}, r"rollout\.tree\.k_per_agent\.A=0"),
    ],
)
def test_settings_that_cannot_be_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        CollectorSettings(reward=RewardConfig(team_scope="call"), tree=TreeConfig(**settings))


async def test_a_world_that_cannot_be_forked_or_compared_is_refused_before_anything_is_played(play) -> None:
    class Silent(OneTurn):
        def fork(self) -> Silent:
            return Silent()

    with pytest.raises(AgentSystemError, match="OneTurn has no fork"):
        await play([], env=OneTurn)
    with pytest.raises(AgentSystemError, match="Silent has neither"):
        await play([], env=Silent)
    with pytest.raises(ConfigError, match=r"reward\.team_scope=call"):
        await play([], reward=RewardConfig())


async def test_a_fork_that_is_the_world_itself_is_refused(play) -> None:
    class Same(Adder):
        def fork(self) -> Same:
            return self

    assert "returned the environment itself" in (await play(numbers(), env=Same)).episodes[0].failure


async def advantages_of(result: Any) -> tuple[Any, Any]:
    """First token's advantage of every row under the preset, and the columns of the batch."""
    import torch

    from verl.trainer.config import RunConfig
    from verl.trainer.plan.presets import apply_preset
    from verl.trainer.ppo.credit.advantage import compute_advantage

    config = RunConfig()
    apply_preset(config, "at_grpo")
    batch = result.batch
    mask = batch.batch["response_mask"]
    last = mask.cumsum(-1) == mask.sum(-1, keepdim=True)
    rewards = torch.tensor(batch.non_tensor_batch["reward"].astype(float), dtype=torch.float32)
    batch.batch["token_level_rewards"] = (last & mask.bool()).float() * rewards[:, None]
    advantages = compute_advantage(batch, "grpo", config=config.algorithm).batch["advantages"][:, 0]
    return advantages, batch.non_tensor_batch


async def test_advantages_compare_the_candidates_of_a_call_and_favour_the_committed_one(play) -> None:
    import torch

    found, columns = await advantages_of(await play(numbers(3), tasks=TASKS, n=2, k=4))
    advantages = found.reshape(-1, 4)
    assert torch.allclose(advantages.sum(1), torch.zeros(len(advantages)), atol=1e-5)
    committed = torch.tensor(columns["committed"].astype(bool)).reshape(-1, 4)
    assert torch.equal(advantages.argmax(1), committed.int().argmax(1))


@pytest.mark.parametrize(("said", "survivors"), [(["1", "13", "3", "5"], 3), (["13", "13", "4", "13"], 1)])
async def test_what_survives_of_a_call_is_compared_and_one_alone_teaches_nothing(
    play, said: list[str], survivors: int
) -> None:
    """13 breaks the fork that it is tried on."""
    found, columns = await advantages_of(await play(said * 4, k=4))
    advantages = found.reshape(-1, survivors)
    calls = [
        set(zip(*part, strict=True))
        for part in zip(*(columns[f].reshape(-1, survivors) for f in ("turn", "call")), strict=True)
    ]
    assert calls == [{(1, 0)}, {(1, 1)}, {(2, 0)}, {(2, 1)}]
    for group in advantages.tolist():
        assert sum(group) == pytest.approx(0.0, abs=1e-5)
        assert group == sorted(group)
        assert len(set(group)) == survivors
