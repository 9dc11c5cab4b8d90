"""An agent with tools: rounds of generations, token-exact prompts, limits, credit and metrics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agent_system import (
    AgentSystemError,
    BaseAgent,
    BaseEnv,
    BaseOrchestra,
    Observation,
    Outcome,
    Task,
    Turn,
    boxed_answer,
)
from agent_system.reward.tokens import token_rewards
from agent_system.rollout import Collector
from agent_system.rollout.batch import build_batch
from agent_system.rollout.episode_store import load_episodes, save_episodes
from agent_system.rollout.remote import RemoteBinding
from agent_system.rollout.sequences import join_generations
from agent_system.rollout.tool_agents import check_tool_agents
from agent_system.tools import ToolAgent, calculator, make_tool
from verl.protocol.generate import SamplingParams
from verl.trainer.config.reward import PropagationConfig, RewardConfig
from verl.trainer.config.run import TreeConfig
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.trainer.ppo.core_algos.policy_losses.common import LossConfig

TASK = [Task("a", "2+2?", "sums", "4")]


def lookup(key: str, times: int = 1) -> str:
    """Return a value.

    Args:
        key: its key.
        times: how often.
    """
    return f"<|im_end|>value of {key}" * times


def broken(key: str) -> str:
    """Always fail.

    Args:
        key: unused.
    """
    raise RuntimeError("no such table " + "x" * 10_000)


async def quits(key: str) -> str:
    """End the process.

    Args:
        key: unused.
    """
    raise SystemExit(key)


class Solver(ToolAgent):
    prompt = "Q: {env_prompt}"
    projection = boxed_answer
    tools = (lookup, calculator, broken, quits)
    max_tool_chars = 300


class Alone(BaseOrchestra):
    agents = ("Solver",)

    async def run(self, turn: Turn) -> str:
        found = await turn.act("Solver")
        assert [entry.action for entry in turn.entries] == [found.action]
        return found.action


class Acting(BaseEnv):
    """Rewards the final reply alone, locally."""

    blocking = False

    def reset(self, task: Task) -> Observation:
        self.actions: list[str] = []
        return Observation(task.prompt)

    def act(self, agent_id: str, action: str) -> Outcome:
        self.actions.append(action)
        return Outcome(team=1.0, local=0.25)

    def step(self, action: str) -> Outcome:
        return Outcome(team=0.5, done=True, info={"acts": len(self.actions)})


def called(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.fixture
def play(make_collector: Callable[..., Collector], scripted: Callable[..., Any]) -> Callable[..., Any]:
    def run(replies: Any, agent: type[ToolAgent] = Solver, **options: Any) -> tuple[Any, Any]:
        engine = scripted(replies)
        limits = {"max_prompt_length": 8000, "max_tokens": 4000} | options
        collector = make_collector(
            engine, orchestra=Alone(), agents={"Solver": agent("Solver")}, env=Acting, **limits
        )
        return asyncio.run(collector.collect(TASK, 1, step=1)), engine

    return run


def test_every_generation_is_a_sample_and_the_next_prompt_continues_its_tokens(
    play: Any, tokenizer: Any
) -> None:
    first = f"look <think>hm</think> {called('lookup', key='k')} {called('calculator', expression='2*(3+4)')}"
    result, engine = play([first, "so \\boxed{4}"])
    (episode,) = result.episodes
    asked, answered = episode.samples
    assert (
        [s.identity.call for s in episode.samples] == [0, 1]
        and (asked.action, answered.action) == ("", "4")
        and asked.valid
    )
    assert answered.request.prompt_ids[: len(asked.request.prompt_ids)] == asked.request.prompt_ids
    rest = answered.request.prompt_ids[len(asked.request.prompt_ids) :]
    assert rest[: len(asked.generation.token_ids)] == asked.generation.token_ids
    added = tokenizer.decode(rest[len(asked.generation.token_ids) :])
    assert added == (
        "\n<|im_start|>user\n<tool_response>\nvalue of k\n</tool_response>\n"
        "<tool_response>\n14\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert asked.request.seed != answered.request.seed and [r.seed for r in engine.requests] == [
        asked.request.seed,
        answered.request.seed,
    ]
    assert len(result.batch) == 2
    again, _ = play([first, "so \\boxed{4}"])
    assert [s.to_json() for s in again.episodes[0].samples] == [s.to_json() for s in episode.samples]


def test_the_environment_acts_once_and_every_round_is_credited_with_it(play: Any) -> None:
    result, _ = play([called("lookup", key="k"), "\\boxed{4}"], reward=RewardConfig(team_scope="call"))
    (episode,) = result.episodes
    assert episode.info["acts"] == 1 and episode.team_reward == 1.5
    assert [
        (s.rewards.act_reward, s.rewards.local_reward, s.rewards.team_reward) for s in episode.samples
    ] == [
        (None, 0.25, 1.5),
        (1.0, 0.25, 1.5),
    ]
    assert sum(s.rewards.step_reward for s in episode.samples) == 1.75


def test_all_rounds_of_a_call_have_its_credit_and_anchors_of_their_own(play: Any) -> None:
    for propagation, shaping in (
        (PropagationConfig("threshold", min_pass_rate=0.0), "hop_weighted"),
        (PropagationConfig("discounted"), "hop_discount"),
    ):
        reward = RewardConfig(propagation=propagation, shaping=shaping)
        apart, joined = (
            play(ROUNDS, reward=reward, tool_sequences=t)[0].episodes[0].samples for t in ([], ["Solver"])
        )
        assert (
            [(s.rewards.team_reward, s.rewards.reward) for s in apart]
            == [(s.rewards.team_reward, s.rewards.reward) for s in joined] * 3
            == [(1.5, 1.75)] * 3
        )
    anchors = ["2+2?", "2+2?\nlookup {'key': 'k'}\n<|im_end|>value of k"]
    assert [s.identity.anchor for s in apart] == [
        *anchors,
        f"{anchors[1]}\ncalculator {{'expression': '2+2'}}\n4",
    ] and joined[0].identity.anchor == "2+2?"


def test_a_template_that_wants_user_and_assistant_in_turn_shows_several_results(
    play: Any, tokenizer: Any, monkeypatch: Any
) -> None:
    strict = (
        "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% set messages = messages[1:] %}{% "
        "endif %}{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ "
        "raise_exception('roles must alternate') }}{% endif %}[{{ message.role }}]{{ message['content'] }}{% "
        "endfor %}[assistant]"
    )
    monkeypatch.setattr(tokenizer, "chat_template", strict)
    result, _ = play([called("lookup", key="k") + called("calculator", expression="1+1"), "\\boxed{4}"])
    (episode,) = result.episodes
    assert episode.failure is None and episode.samples[1].request.prompt_text.endswith(
        "[user]<tool_response>\nvalue of k\n</tool_response>\n<tool_response>\n2\n</tool_response>[assistant]"
    )


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        ('<tool_call>{"name": "lookup"', "malformed", "not valid JSON"),
        ("<tool_call>[1]</tool_call>", "malformed", "an object with"),
        ("<tool_call>" + "[" * 3000 + "</tool_call>", "malformed", "JSON"),
        (called("lookpu", key="k"), "malformed", "did you mean"),
        (called("lookup"), "malformed", "key: Field required"),
        (called("lookup", key={"a": 1}), "malformed", "key: Input should be a valid string"),
        (called("lookup", **{f"a{i}": 1 for i in range(200)}), "malformed", "no argument 'a0'"),
        ('<tool_call>{"name": "lookup", "arguments": "k"}</tool_call>', "malformed", "not valid JSON"),
        (called("lookup", key="k", times=10**5), "ok", "more characters"),
        (called("broken", key="k"), "errors", "broken failed: RuntimeError: no such table"),
        (called("quits", key="k"), "errors", "SystemExit"),
        (called("calculator", expression="9**9**9"), "errors", "more than 4096 bits"),
        (called("calculator", expression="().__class__"), "errors", "only numbers"),
    ],
)
def test_a_call_that_fails_costs_a_readable_message(play: Any, reply: str, kind: str, message: str) -> None:
    result, _ = play([reply, "\\boxed{4}"])
    (episode,) = result.episodes
    first, last = episode.samples
    assert episode.failure is None and message in last.request.prompt_text.partition("<tool_response>")[2]
    assert first.valid == (kind != "malformed") and last.valid
    counts = {
        name: result.metrics[f"agent/solver/tools/{name}"] for name in ("malformed", "errors", "timeouts")
    }
    assert counts == {"malformed": 0, "errors": 0, "timeouts": 0} | ({kind: 1} if kind != "ok" else {})
    assert (
        result.metrics["agent/solver/tools/rounds/mean"] == 2
        and result.metrics["agent/solver/tools/calls_per_episode"] == 1
    )
    assert (
        len(last.request.prompt_ids) - len(first.request.prompt_ids) - len(first.generation.token_ids) < 600
    )


def test_malformed_calls_are_penalized_in_training(play: Any) -> None:
    result, _ = play([called("nothing"), "\\boxed{4}"], invalid_action_penalty={"Solver": 0.5})
    assert [s.rewards.invalid_penalty for s in result.episodes[0].samples] == [0.5, 0.0]


def test_rounds_prompts_and_calls_are_limited(play: Any) -> None:
    endless, _ = play(lambda _prompt, _request: called("lookup", key="k"))
    assert (
        len(endless.episodes[0].samples) == Solver.max_rounds
        and endless.metrics["agent/solver/tools/cut"] == 1
    )
    first = play([called("lookup", key="k"), "\\boxed{4}"])[0].episodes[0].samples[0]
    short, _ = play(
        [called("lookup", key="k"), "\\boxed{4}"], max_prompt_length=len(first.request.prompt_ids) + 20
    )
    assert len(short.episodes[0].samples) == 1 and short.metrics["agent/solver/tools/cut"] == 1
    wrong, _ = play(
        ["\\boxed{4} " + called("no such tool", key="k")],
        max_prompt_length=len(first.request.prompt_ids) + 20,
    )
    (sample,) = wrong.episodes[0].samples
    assert (sample.action, sample.valid) == ("4", False), (
        "the last reply stands, and is penalized for its call"
    )
    many, _ = play([called("lookup", key="k") * 30, "\\boxed{4}"])
    assert many.metrics["agent/solver/tools/malformed"] == 22


def test_a_template_that_drops_thinking_begins_anew(
    play: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = "{{ message['content'].split('</think>')[-1] }}"
    dropping = tokenizer.chat_template.replace("{{ message['content'] }}", content)
    monkeypatch.setattr(tokenizer, "chat_template", dropping)
    result, _ = play([f"<think>much</think>{called('lookup', key='k')}", "\\boxed{4}"])
    last = result.episodes[0].samples[1]
    assert "much" not in last.request.prompt_text and "value of k" in last.request.prompt_text
    assert result.metrics["agent/solver/tools/restarted"] == 1


def test_a_template_with_tools_shows_their_schemas_and_messages(
    play: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = (
        "{% if tools %}<tool_call> of {% for t in tools %}{{ t.function.name }} {% endfor %}{% endif %}"
        + tokenizer.chat_template
    )
    monkeypatch.setattr(tokenizer, "chat_template", native)
    result, _ = play([called("lookup", key="k"), "\\boxed{4}"])
    first, last = result.episodes[0].samples
    assert first.request.prompt_text.startswith(
        "<tool_call> of lookup calculator broken quits <|im_start|>user"
    )
    assert last.request.prompt_text == (
        f"{first.request.prompt_text}{first.text}<|im_end|>\n<|im_start|>tool\nvalue of "
        "k<|im_end|>\n<|im_start|>assistant\n"
    )
    assert result.metrics["agent/solver/tools/restarted"] == 0


def test_a_reply_that_was_cut_off_is_closed_by_the_template(play: Any, tokenizer: Any) -> None:
    call = called("lookup", key="k")
    length = len(tokenizer.encode(call, add_special_tokens=False))
    result, _ = play(lambda _prompt, _request: call, max_tokens=length)
    first, last = result.episodes[0].samples[:2]
    assert first.generation.stop_reason == "length" and last.request.prompt_text.startswith(
        f"{first.request.prompt_text}{call}<|im_end|>\n<|im_start|>"
    )


def test_tools_are_refused_where_they_cannot_work(make_collector: Any, scripted: Any) -> None:
    class Untyped(ToolAgent):
        tools = (lambda x: x,)

    class Forkable(Acting):
        def fork(self) -> Forkable:
            return self

    with pytest.raises(AgentSystemError, match="no JSON schema"):
        Untyped("Solver")
    with pytest.raises(AgentSystemError, match="no tools"):
        ToolAgent("Solver")
    with pytest.raises(AgentSystemError, match="named arguments"):

        def spread(*values: int) -> int:
            """Sum.

            Args:
                values: numbers.
            """
            return sum(values)

        make_tool(spread)
    params = SamplingParams(8)
    remote = RemoteBinding("Solver", "api", None, params, params)  # type: ignore[arg-type]
    with pytest.raises(AgentSystemError, match="behind an API"):
        check_tool_agents({"Solver": Solver("Solver")}, {"Solver": remote}, branches=False)
    plain = {"Solver": BaseAgent("Solver"), "Other": Solver("Other")}
    with pytest.raises(
        AgentSystemError, match=r"tool_samples=sequence has no effect: none of Solver is a ToolAgent"
    ):
        check_tool_agents(plain, {"Solver": remote, "Other": None}, branches=False, sequences=["Solver"])
    check_tool_agents(plain, {"Solver": remote, "Other": None}, branches=False, sequences=["Solver", "Other"])
    with pytest.raises(AgentSystemError, match=r"rollout\.sampling=parallel"):
        make_collector(
            scripted(), orchestra=Alone(), agents={"Solver": Solver("Solver")}, env=Forkable,
            tree=TreeConfig(), reward=RewardConfig(team_scope="call"),
        )  # fmt: skip


class Learner(Solver):
    """Shows one tool more for each letter of its task, and after `add`."""

    tools = (lookup, "add")

    def start(self, task: Task) -> None:
        self.known = list(task.prompt)

    def add(self, word: str) -> str:
        """Learn a word.

        Args:
            word: the word.
        """
        self.known.append(word)
        return "learned"

    def messages(self, variables: Any) -> Any:
        return [{"role": "user", "content": "the same for all"}]

    def describe_tools(self) -> str:
        return f"known: {' '.join(self.known)}"


def test_tools_that_depend_on_the_state_are_shown_as_they_are(make_collector: Any, scripted: Any) -> None:
    tasks = [Task("a", "xy"), Task("b", "z")]
    engine = scripted(
        lambda prompt, _request: "\\boxed{4}" if "learned" in prompt else called("add", word="new")
    )
    collector = make_collector(
        engine, orchestra=Alone(), agents={"Solver": Learner("Solver")}, env=Acting, tool_sequences=["Solver"]
    )
    result = asyncio.run(collector.collect(tasks, 1, step=1))
    texts = [
        [s.request.prompt_text.partition("known: ")[2].partition("<")[0] for s in e.samples]
        for e in result.episodes
    ]
    assert texts == [["x y", "x y new"], ["z", "z new"]], (
        "a prompt that shows other tools begins a sample of its own"
    )
    assert (
        result.metrics["agent/solver/tools/restarted"] == 2
        and collector.runtimes["Solver"].agent.__dict__.get("known") is None
    )


ROUNDS = [
    f"look {called('lookup', key='k')}",
    f"and {called('calculator', expression='2+2')}",
    "so \\boxed{4}",
]


def test_the_generations_of_a_call_are_one_masked_sequence(play: Any, tmp_path: Path) -> None:
    apart, engine = play(ROUNDS, reward=RewardConfig(team_scope="call"))
    joined, again = play(ROUNDS, reward=RewardConfig(team_scope="call"), tool_sequences=["Solver"])
    assert [r.prompt_ids for r in engine.requests] == [r.prompt_ids for r in again.requests], (
        "the replies are the same"
    )
    first, _, last = rounds = apart.episodes[0].samples
    (sample,) = joined.episodes[0].samples
    assert (sample.identity.call, sample.request.prompt_ids, sample.action, sample.rewards.reward) == (
        0,
        first.request.prompt_ids,
        "4",
        last.rewards.reward,
    )
    assert (
        sample.request.prompt_ids + sample.generation.token_ids
        == last.request.prompt_ids + last.generation.token_ids
    )
    batch = joined.batch.batch
    mask = batch["response_mask"][0].bool()
    assert batch["responses"][0][mask].tolist() == [t for s in rounds for t in s.generation.token_ids]
    assert batch["rollout_log_probs"][0][mask].tolist() == pytest.approx(
        [p for s in rounds for p in s.generation.log_probs]
    )
    assert (
        not mask.all() and not batch["rollout_log_probs"][0][~mask].any() and batch["attention_mask"][0].all()
    )
    versions = [
        replace(s, generation=replace(s.generation, version=v, earlier=((0, 1),) if v == 2 else ()))
        for v, s in enumerate(rounds)
    ]
    (swapped,) = join_generations(versions, ["Solver"], lambda *_: "")
    rows = build_batch([replace(joined.episodes[0], samples=(swapped, sample))]).non_tensor_batch
    assert {name: list(rows[name]) for name in ("replies", "partial_replies", "partial_span")} == {
        "replies": [3, 3], "partial_replies": [1, 0], "partial_span": [2, 0],
    }  # fmt: skip
    assert sample.response_tokens == sum(s.response_tokens for s in rounds) == joined.episodes[0].reply_tokens
    assert joined.metrics["agent/solver/calls"] == 1 and joined.metrics["agent/solver/tools/rounds/mean"] == 3
    save_episodes(joined.episodes, tmp_path)
    assert load_episodes(tmp_path) == joined.episodes
    for name in ("calls_per_episode", "malformed", "restarted", "cut"):
        assert joined.metrics[f"agent/solver/tools/{name}"] == apart.metrics[f"agent/solver/tools/{name}"]


class Brief(Solver):
    def describe_tools(self) -> str:
        return "tools"


def test_the_gradient_of_a_sequence_is_the_sum_of_its_generations(play: Any, tokenizer: Any) -> None:
    torch.manual_seed(0)
    words, places, head = (
        torch.nn.Embedding(len(tokenizer), 8),
        torch.nn.Embedding(1024, 8),
        torch.nn.Linear(8, len(tokenizer)),
    )
    block = torch.nn.TransformerEncoderLayer(8, 1, 16, dropout=0.0, batch_first=True)
    model = torch.nn.ModuleList([words, places, block, head]).double()

    def gradients(sequences: list[str], mode: str) -> list[torch.Tensor]:
        tensors = play(ROUNDS, Brief, tool_sequences=sequences)[0].batch.batch
        width = tensors["responses"].shape[1]
        seen = (
            tensors["attention_mask"][:, None, :].bool()
            & torch.ones((tensors["input_ids"].shape[1],) * 2, dtype=torch.bool).tril()
        )
        hidden = block(
            words(tensors["input_ids"]) + places(tensors["position_ids"]),
            torch.where(seen, 0.0, -1e9).double(),
        )
        scores = head(hidden)[:, -width - 1 : -1].log_softmax(dim=-1)
        log_prob = scores.gather(-1, tensors["responses"][..., None])[..., 0]
        old = log_prob.detach() + tensors["rollout_log_probs"].double() / 10
        mask, advantages = tensors["response_mask"], torch.full_like(log_prob, 0.7)
        loss, _ = get_policy_loss_fn("vanilla")(
            old, log_prob, advantages, mask, loss_agg_mode=mode, config=LossConfig()
        )
        return list(
            torch.autograd.grad(
                loss * (len(mask) if mode == "seq-mean-token-sum" else 1), list(model.parameters())
            )
        )

    for mode in ("token-sum", "seq-mean-token-sum"):
        apart, joined = gradients([], mode), gradients(["Solver"], mode)
        assert all(
            torch.allclose(a, b, rtol=1e-10, atol=1e-14) and a.any()
            for a, b in zip(apart, joined, strict=True)
        )


def test_a_sequence_ends_where_the_template_drops_a_part(
    play: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = "{{ message['content'].split('</think>')[-1] }}"
    monkeypatch.setattr(
        tokenizer, "chat_template", tokenizer.chat_template.replace("{{ message['content'] }}", content)
    )
    replies = [ROUNDS[0], f"<think>much</think>{called('nothing')}", ROUNDS[1], ROUNDS[2]]
    settings = {
        "reward": RewardConfig(team_scope="call"),
        "tool_sequences": ["Solver"],
        "invalid_action_penalty": {"Solver": 0.5},
    }
    result, engine = play(replies, **settings)
    first, last = result.episodes[0].samples
    assert [len(s.rounds) for s in (first, last)] == [2, 2] and (
        first.identity.call,
        first.identity.final_call,
        last.identity.call,
    ) == (
        0,
        2,
        2,
    )
    assert (
        last.request.prompt_ids == engine.requests[2].prompt_ids
        and "much" in first.text
        and "much" not in last.request.prompt_text
    )
    assert [(s.rewards.local_reward, s.rewards.team_reward, s.rewards.act_reward) for s in (first, last)] == [
        (0.25, 1.5, None),
        (0.25, 1.5, 1.0),
    ]
    assert [s.rewards.invalid_penalty for s in (first, last)] == [0.5, 0.0] and sum(
        s.rewards.step_reward for s in (first, last)
    ) == 1.75 - 0.5
    assert (
        result.metrics["agent/solver/tools/restarted"] == 1
        and result.metrics["agent/solver/tools/rounds/mean"] == 4
    )


def test_a_sequence_knows_the_weights_of_every_token(play: Any) -> None:
    samples = play(ROUNDS)[0].episodes[0].samples
    spans = [(3, ()), (4, ((3, 2),)), (5, ())]
    changed = [
        replace(s, generation=replace(s.generation, version=version, earlier=earlier))
        for s, (version, earlier) in zip(samples, spans, strict=True)
    ]
    (joined,) = join_generations(changed, ["Solver"], lambda _agent, _reply: "")
    begins = [len(s.request.prompt_ids) - len(samples[0].request.prompt_ids) for s in samples[1:]]
    assert (
        joined.generation.earlier == ((3, begins[0]), (3, 2), (4, begins[1] - begins[0] - 2))
        and joined.generation.version == 5
    )


def test_a_sequence_is_as_long_as_a_prompt_and_a_reply(play: Any) -> None:
    calls = [called("lookup", key="k"), called("lookup", key="k"), "\\boxed{4}"]
    whole = play(calls, tool_sequences=["Solver"])[0].episodes[0].samples[0]
    limit = (
        len(whole.request.prompt_ids)
        + len(whole.generation.token_ids)
        - len(whole.rounds[-1].generation.token_ids)
    )
    kept = play(calls, tool_sequences=["Solver"], max_prompt_length=limit)[0]
    cut = play(calls, tool_sequences=["Solver"], max_prompt_length=limit - 1)[0]
    assert [len(r.episodes[0].samples[0].rounds) for r in (kept, cut)] == [3, 2] and cut.metrics[
        "agent/solver/tools/cut"
    ] == 1


def test_rewards_of_a_sequence_are_on_sampled_tokens(play: Any, tokenizer: Any) -> None:
    (sample,) = play(ROUNDS, tool_sequences=["Solver"])[0].episodes[0].samples
    message = sample.text.index("value of k")

    def decode(sample: Any, count: int) -> str:
        return tokenizer.decode(sample.generation.token_ids[:count], skip_special_tokens=True)

    found = token_rewards(
        [(message, message + 5, 1.0), (len(sample.text) - 3, len(sample.text), 2.0)], sample, decode, "here"
    )
    (first, _), (last, _) = places = [(i, value) for i, value in enumerate(found) if value]
    assert (
        [value for _, value in places] == [1.0, 2.0]
        and sample.response_mask[first]
        and not sample.response_mask[first + 1]
    )
    assert last >= len(found) - 2
    with pytest.raises(AgentSystemError, match="not sampled"):
        token_rewards([1.0] * len(found), sample, decode, "here")


def test_an_agent_with_tools_and_a_state_is_called_one_by_one(make_collector: Any, scripted: Any) -> None:
    class Together(BaseOrchestra):
        agents = ("Solver",)

        async def run(self, turn: Turn) -> str:
            await asyncio.gather(turn.act("Solver"), turn.act("Solver"))
            return (await turn.act("Solver")).action

    engine, agents = scripted(lambda _prompt, _request: "\\boxed{4}"), {"Solver": Learner("Solver")}
    collector = make_collector(engine, orchestra=Together(), agents=agents, env=Acting, max_failure_rate=1.0)
    (episode,) = asyncio.run(collector.collect(TASK, 1, step=1)).episodes
    assert "'Solver' has tools and a state, so its calls must not run at the same time" in str(
        episode.failure
    )
