"""Programs as teams: their requests are calls of the episode, their results its end."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from dataclasses import replace
from typing import Any
from urllib.request import Request, urlopen

import pytest
from aiohttp import web

from agent_system import AgentSystemError, BaseEnv, BaseOrchestra, Outcome, Task, Turn
from agent_system.gateway.session import Session
from agent_system.gateway.team import GatewayOptions, GatewayOrchestra
from agent_system.registry import AgentRegistry, OrchestraRegistry
from agent_system.rollout import Collector, CollectorSettings
from agent_system.tools import ToolAgent, calculator
from agent_system.turn import TurnOver
from tests.waiting import settle, until
from verl.protocol.generate import RolloutError
from verl.trainer.config.reward import PropagationConfig, RewardConfig
from verl.trainer.config.run import TreeConfig

from .conftest import TASK, USER, Graded, requests_of, say, send


async def draft_and_edit(task: Task, session: Session) -> str:
    draft = await say(session, "Writer", [{"role": "user", "content": f"Draft: {task.prompt}"}])
    edited = await say(session, "Editor", [{"role": "user", "content": f"Edit: {draft.text}"}])
    return edited.text


def drafts(prompt: str, request: Any) -> str:
    return "<think>hm</think> a draft" if "Draft" in prompt else "4"


async def test_every_request_is_a_sample_and_the_answer_is_scored_by_the_environment(play: Any) -> None:
    episode, metrics, engine = await play(draft_and_edit, drafts)
    assert episode.failure is None and episode.team_reward == 1.0 and episode.answer == "4"
    first, second = episode.samples
    assert [
        (
            s.agent_id,
            s.identity.turn,
            s.identity.call,
            s.identity.order,
            s.identity.prior_replies,
            s.identity.trained,
        )
        for s in episode.samples
    ] == [
        ("Writer", 1, 0, 0, 0, True),
        ("Editor", 1, 1, 1, 1, True),
    ]
    assert [(s.request.prompt_ids, s.generation.token_ids) for s in episode.samples] == engine.sampled
    assert second.request.prompt_text == "<|im_start|>user\nEdit:  a draft<|im_end|>\n<|im_start|>assistant\n"
    assert (first.text, first.action, second.rewards.reward) == ("<think>hm</think> a draft", "a draft", 1.0)
    assert (
        metrics["agent/writer/calls"] == 1
        and metrics["episode/success_rate"] == 1
        and metrics["gateway/undelivered"] == 0
    )


RESULTS = {
    "text": ("4", 1.0),
    "number": (0.25, 0.25),
    "outcome": (Outcome(0.5, {"Writer": 0.125}, info={"success": 1.0}), 0.5),
}


@pytest.mark.parametrize("name", RESULTS)
async def test_a_team_returns_its_answer_a_reward_or_an_outcome(play: Any, name: str) -> None:
    result, reward = RESULTS[name]

    async def team(task: Task, session: Session) -> Any:
        await say(session, "Writer")
        return result

    episode, _, _ = await play(team)
    assert (episode.failure, episode.team_reward, episode.turns) == (None, reward, 1)
    assert episode.samples[0].rewards.local_reward == (0.125 if name == "outcome" else 0.0)


async def test_a_local_reward_may_name_the_answer_that_it_is_for(play: Any) -> None:
    async def team(task: Task, session: Session) -> Outcome:
        answers = [await say(session, "Writer") for _ in range(2)]
        response = await send(session, {"model": "Writer", "input": "2+2?"}, path="/v1/responses")
        return Outcome(1.0, {1: 1.0, answers[1].body["id"]: 0.5, response.body["id"]: 0.25})

    episode, _, _ = await play(team)
    assert (episode.failure, [s.rewards.local_reward for s in episode.samples]) == (None, [0.0, 1.5, 0.25])


async def test_a_program_steps_through_the_turns_of_the_environment(play: Any) -> None:
    async def team(task: Task, session: Session) -> None:
        done, seen = False, []
        while not done:
            seen.append(session.observation.text)
            answer = await say(session, "Writer", [{"role": "user", "content": seen[-1]}])
            outcome = await session.step(answer.text)
            done = outcome.done
        assert seen == ["2+2?", "2 left", "1 left"]
        over = await send(session, {"model": "Writer", "messages": USER})
        assert over.status == 400 and over.body["error"]["code"] == "episode_over"

    task = Task("a", "2+2?", "sums", "4", {"turns": 3})
    episode, _, _ = await play(team, task=task, max_steps=5)
    assert (episode.failure, episode.turns, [s.identity.turn for s in episode.samples]) == (
        None,
        3,
        [1, 2, 3],
    )
    episode, _, _ = await play(team, task=task, max_steps=2)  # the limit of turns ends it as well
    assert episode.turns == 2 and "AssertionError" in episode.failure


async def test_a_program_may_be_a_plain_function(play: Any) -> None:
    def team(task: Task, session: Session) -> str:
        def ask() -> str:
            body = json.dumps({"model": "Writer", "messages": USER}).encode()
            headers = {"Authorization": f"Bearer {session.api_key}"}
            with urlopen(Request(f"{session.base_url}/chat/completions", body, headers)) as answer:
                return str(json.load(answer)["choices"][0]["message"]["content"])

        assert not session.step_in_thread(ask()).done
        return ask()

    episode, _, _ = await play(team, task=Task("a", "2+2?", "sums", "4", {"turns": 2}), max_steps=3)
    assert (episode.failure, episode.turns, episode.team_reward) == (None, 2, 2.0)


@pytest.mark.parametrize(
    ("result", "said"),
    [(None, "the team returned NoneType; expected its answer as text"), (True, "the team returned bool")],
)
async def test_a_result_that_is_none_fails_the_episode(play: Any, result: Any, said: str) -> None:
    async def team(task: Task, session: Session) -> Any:
        return result

    episode, _, _ = await play(team)
    assert said in episode.failure


async def test_a_key_is_that_of_one_episode_and_does_not_outlive_it(make_team: Any) -> None:
    keys: list[str] = []

    async def team(task: Task, session: Session) -> str:
        assert session.task.ground_truth is None
        if keys:
            late = await send(session, {"model": "Writer", "messages": USER}, key=keys[0])
            assert (late.status, late.body["error"]["code"]) == (400, "episode_over")
        keys.append(session.api_key)
        return (await say(session, "Writer")).text

    collector, _ = make_team(team)
    ports = []
    for step in (1, 2):  # each in an event loop of its own, as some programs of this package do
        result = await collector.collect([TASK], 1, step=step)
        assert result.episodes[0].failure is None
        ports.append(collector.orchestra._server._socket.getsockname())
    assert len(set(keys)) == 2 and ports[0] == ports[1]


def test_tasks_are_not_measured_with_prompts_that_the_program_does_not_send(make_team: Any) -> None:
    collector, _ = make_team(draft_and_edit, drafts, limits=(1, 400))
    assert collector.first_prompt_lengths("Writer", [TASK, TASK]) == [0, 0]


def test_the_server_serves_one_event_loop_after_another(make_team: Any) -> None:
    collector, _ = make_team(draft_and_edit, drafts)
    for step in (1, 2):
        result = asyncio.run(collector.collect([TASK, TASK], 4, step=step))
        assert [e.failure for e in result.episodes] == [None] * 8


async def test_an_engine_that_fails_ends_the_episode_with_its_message_whatever_the_program_does(
    play: Any,
) -> None:
    answers: list[Any] = []

    async def team(task: Task, session: Session) -> str:
        answers.append(await send(session, {"model": "Writer", "messages": USER}))
        await asyncio.sleep(60)
        return "4"

    def broken(prompt: str, request: Any) -> str:
        raise RolloutError("out of memory")

    episode, _, _ = await play(team, broken)
    assert episode.failure.startswith("RolloutError: out of memory")
    assert [(a.status, a.headers["x-should-retry"]) for a in answers] in ([], [(503, "false")])


async def test_a_program_that_hangs_ends_with_the_time_limit_and_so_do_its_calls(play: Any) -> None:
    started = asyncio.Event()
    ended: list[str] = []

    async def slow(request: Any) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("call")
            raise

    async def team(task: Task, session: Session) -> str:
        try:
            return (await say(session, "Writer")).text
        finally:
            ended.append("team")

    episode, _, _ = await play(team, delay=slow, episode_timeout_s=1.0)
    assert "waiting for the reply of Writer (turn 1, call 0)" in episode.failure
    assert started.is_set() and sorted(ended) == ["call", "team"]


async def test_a_function_that_goes_on_after_its_episode_cannot_reach_the_environment(play: Any) -> None:
    stepped: list[str] = []
    refused: list[Exception] = []
    over = threading.Event()

    class Counted(Graded):
        def step(self, action: str) -> Outcome:
            stepped.append(action)
            return super().step(action)

    def team(task: Task, session: Session) -> str:
        assert over.wait(60)
        try:
            session.step_in_thread("4")
        except TurnOver as error:
            refused.append(error)
        return "4"

    episode, _, _ = await play(team, env=Counted, episode_timeout_s=0.1)
    assert "episode took longer" in episode.failure
    over.set()
    await until(lambda: bool(refused or stepped))
    assert stepped == [] and len(refused) == 1


async def test_calls_that_the_program_leaves_behind_are_ended_before_its_answer_is_scored(play: Any) -> None:
    async def first_only(request: Any) -> None:
        await asyncio.sleep(0 if len(engine) else 60)
        engine.append(request)

    engine: list[Any] = [None]
    kept: list[Any] = []

    async def team(task: Task, session: Session) -> str:
        answer = await say(session, "Writer")
        engine.clear()
        kept.append(asyncio.create_task(say(session, "Editor")))
        await until(lambda: len(requests_of(session)) == 2)
        return answer.text

    episode, metrics, _ = await play(team, delay=first_only)
    assert episode.failure is None and [s.agent_id for s in episode.samples] == ["Writer"]
    assert metrics["gateway/undelivered"] == 0, "there is no reply"
    await asyncio.wait(kept)
    assert "the episode is over" in str(kept[0].exception())


async def test_at_most_max_open_calls_are_generated_at_a_time(play: Any) -> None:
    sessions: list[Session] = []
    begun: list[Any] = []

    async def until_all_have_come(request: Any) -> None:
        begun.append(request)
        await until(lambda: len(begun) >= 3 and len(requests_of(sessions[0])) == 12)
        await asyncio.sleep(0.02)

    async def team(task: Task, session: Session) -> str:
        sessions.append(session)
        answers = await asyncio.gather(
            *(say(session, "Writer", [{"role": "user", "content": str(i)}]) for i in range(12))
        )
        return answers[0].text

    episode, _, engine = await play(team, delay=until_all_have_come, max_open_calls=3)
    assert episode.failure is None and engine.most_open == 3 and len(engine.sampled) == 12
    assert {s.identity.prior_replies for s in episode.samples} == {0}, (
        "calls that overlap do not hear each other, nor those that wait"
    )


async def test_a_call_belongs_to_the_turn_in_which_it_came(play: Any) -> None:
    stepped = asyncio.Event()

    async def team(task: Task, session: Session) -> str:
        calls = [asyncio.create_task(say(session, "Writer"))]
        await until(lambda: len(requests_of(session)) == 1)
        calls.append(asyncio.create_task(say(session, "Editor")))
        await until(lambda: len(requests_of(session)) == 2)
        await settle()  # a request that has come is a call when the event loop goes on
        await session.step("4")
        stepped.set()
        return (await asyncio.gather(*calls))[1].text

    task = Task("a", "2+2?", "sums", "4", {"turns": 2})
    episode, _, _ = await play(
        team, delay=lambda request: stepped.wait(), max_open_calls=1, task=task, max_steps=2
    )
    assert (episode.failure, episode.turns) == (None, 2)
    assert [(s.agent_id, s.identity.turn, s.identity.call) for s in episode.samples] == [
        ("Writer", 1, 0),
        ("Editor", 1, 1),
    ]


async def test_the_environment_acts_on_every_reply_and_may_end_the_episode(play: Any) -> None:
    class Acting(Graded):
        def act(self, agent_id: str, action: str) -> Outcome:
            return Outcome(0.5, 0.25, done=agent_id == "Editor")

    async def team(task: Task, session: Session) -> str:
        await say(session, "Writer")
        await say(session, "Editor")
        late = await send(session, {"model": "Writer", "messages": USER})
        assert late.body["error"]["code"] == "episode_over"
        return "4"

    episode, _, _ = await play(team, env=Acting)
    assert (episode.failure, episode.team_reward) == (None, 1.0)
    assert [(s.rewards.act_reward, s.rewards.local_reward) for s in episode.samples] == [(0.5, 0.25)] * 2


async def test_an_answered_request_does_not_stay_in_memory_with_its_body(play: Any) -> None:
    def requests() -> dict[int, web.Request]:
        gc.collect()
        return {id(found): found for found in gc.get_objects() if type(found) is web.Request}

    async def team(task: Task, session: Session) -> str:
        for _ in range(3):
            await say(session, "Writer")
        await until(lambda: not requests().keys() - earlier.keys())
        return "4"

    earlier = requests()  # of other tests
    episode, *_ = await play(team)
    assert episode.failure is None and episode.answer == "4"


REWARDS = [
    RewardConfig(shaping="hop_discount"),
    RewardConfig(propagation=PropagationConfig(mode="discounted", gamma=0.5)),
    RewardConfig(team_scope="turn"),
    RewardConfig(team_scope="call"),
]


async def test_replies_that_nobody_got_change_no_reward_of_others(make_team: Any) -> None:
    class Acting(Graded):
        def act(self, agent_id: str, action: str) -> Outcome:
            return Outcome(0.25 * (self.left > 1))

    async def team(task: Task, session: Session) -> str:
        await say(session, "Writer")
        await say(session, "Editor")
        for agent in ("Writer", "Editor") if leaves else ():
            release.clear()
            arrived.clear()
            client = asyncio.create_task(say(session, agent, [{"role": "user", "content": "more"}]))
            await arrived.wait()
            client.cancel()
            left = requests_of(session)[-1]
            await until(lambda left=left: not left.connected())
            release.set()
            await asyncio.wait([left.task])
        return "4"

    async def delay(request: Any) -> None:
        arrived.set()
        await release.wait()

    arrived, release = asyncio.Event(), asyncio.Event()
    release.set()

    for reward in REWARDS:
        found = []
        for leaves in (False, True):
            collector, _ = make_team(team, delay=delay, env=Acting, reward=reward)
            result = await collector.collect([TASK], 1, step=1)
            (episode,) = result.episodes
            assert episode.failure is None and len(episode.unheard) == 2 * leaves
            assert len(result.batch) == len(episode.samples) == 2
            found.append(
                [(s.rewards.team_reward, s.rewards.step_reward, s.rewards.reward) for s in episode.samples]
            )
        assert found[0] == found[1], reward
    (episode,) = (await collector.collect([replace(TASK, extra={"turns": 2})], 1, step=1)).episodes
    assert sum(s.rewards.act_reward for s in episode.samples) == 0.5 and episode.turn_rewards == (1.5,), (
        "nor is a reward lost"
    )


async def test_a_sequential_program_is_the_same_team_as_an_orchestra(make_team: Any) -> None:
    """Prompts, seeds, tokens and rewards; weights: tests/e2e/test_gateway.py."""

    class Pair(BaseOrchestra):
        agents = ("Writer", "Editor")

        async def run(self, turn: Turn) -> str:
            await turn.act("Writer")
            return (await turn.act("Editor")).action

    async def team(task: Task, session: Session) -> str:
        draft = await say(session, "Writer", [{"role": "user", "content": task.prompt}])
        return (
            await say(
                session, "Editor", [{"role": "user", "content": f"{task.prompt}\nWriter: {draft.text}"}]
            )
        ).text

    program, _ = make_team(team, drafts, seed_by="order")
    orchestra, _ = make_team(team, drafts)
    orchestra.orchestra = Pair()
    orchestra.runtimes["Editor"].agent.prompt = "{env_prompt}\n{team_context}"
    found = [(await collector.collect([TASK], 3, step=1)).episodes for collector in (program, orchestra)]
    assert [[s.to_json() for s in e.samples] for e in found[0]] == [
        [s.to_json() for s in e.samples] for e in found[1]
    ]


def test_what_cannot_run_is_refused_before_a_model_loads(make_team: Any) -> None:
    with pytest.raises(AgentSystemError, match=r"rollout\.sampling=tree: a program cannot be forked"):
        make_team(draft_and_edit, env=Forkable, tree=TreeConfig(), reward=_by_call())
    for team, said in (
        (None, "agent.team=None: .*needs the program"),
        ("json:__name__", "agent.team=json:__name__: .*async def"),
        ("json", "agent.team=json: .*module:function"),
        (
            "no_such_module:team",
            "agent.team=no_such_module:team: No module named 'no_such_module'; expected module:function",
        ),
        ("json:no_such", "agent.team=json:no_such: module 'json' has no attribute"),
    ):
        with pytest.raises(AgentSystemError, match=said):
            GatewayOrchestra(GatewayOptions(team))
    AgentRegistry.register("Adder", orchestra="gateway", env="gateway")(WithTools)
    names: Any = {
        "orchestra_type": "gateway",
        "env_name": "gateway",
        "orchestra_options": {"team": draft_and_edit},
    }
    bindings = {"Adder": make_team(draft_and_edit)[0].runtimes["Writer"].binding}
    with pytest.raises(
        AgentSystemError, match="with WithTools for 'Adder': its tools and its memory would not be used"
    ):
        Collector.from_names(**names, bindings=bindings, settings=CollectorSettings())
    with pytest.raises(AgentSystemError, match=r"agent\.orchestra\.gateway\.rounds is not an option"):
        OrchestraRegistry.get("gateway").from_options({"rounds": 3}, "gateway")


class WithTools(ToolAgent):
    tools = (calculator,)


class Forkable(Graded):
    def act(self, agent_id: str, action: str) -> Outcome:
        return Outcome()

    def fork(self) -> BaseEnv:
        return self


def _by_call() -> Any:
    return RewardConfig(team_scope="call")


class CallableTeam:
    async def __call__(self, task: Task, session: Session) -> str:
        return (await say(session, "Writer", [{"role": "user", "content": task.prompt}])).text


@pytest.mark.parametrize("team", [CallableTeam(), lambda task, session: CallableTeam()(task, session)])
async def test_a_program_may_be_an_object_or_return_what_is_awaited(play: Any, team: Any) -> None:
    episode, _, _ = await play(team)
    assert (episode.failure, episode.answer) == (None, "4")
