"""Reward functions of the user: what they are given, what their results become, and what their errors
cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent_system import AgentSystemError, RewardManager, RewardManagerRegistry, Task
from agent_system.reward.functions import build_manager
from agent_system.reward.model import ReplyScorer
from agent_system.reward.scorer import EpisodeScorer
from agent_system.reward.tokens import token_rewards
from agent_system.rollout import TooManyFailuresError
from verl.trainer.config.reward import CustomRewardFunctionConfig, RewardConfig, RewardManagerConfig
from verl.trainer.config.reward_model import RewardModelConfig
from verl.trainer.config.run import TreeConfig
from verl.trainer.config.spec import ConfigError

FUNCTIONS = """
import asyncio
import time

from math_verify import parse, verify

from agent_system import Reward


async def plus_length(episode, weight=1.0):
    return episode.team_reward + weight * len(episode.samples)


def compute_score(data_source, solution_str, ground_truth, extra_info, bonus=0.0):
    right = "boxed{" + ground_truth + "}" in solution_str
    return {"score": float(right) + bonus + extra_info.get("level", 0), "right": right, "note": "text"}


def of_a_run(data_source, solution_str, ground_truth, extra_info):
    assert (extra_info["experiment_name"], extra_info["rollout_reward_scores"]) == ("qwen", {})
    return extra_info["num_turns"]


def same(data_source, solution_str, ground_truth, extra_info):
    return float(solution_str == ground_truth)


def by_call(episode):
    return {0: 0.25, "Verifier": 0.5}


def with_terms(episode):
    return Reward(2.0, {"style": 3.0}, local={"Solver": 1.0})


def boxed(episode, call):
    return {"boxed": float("boxed" in call.text), "short": 0.5}


def truth(episode, call):
    return float(episode.task.ground_truth)


def raises(episode):
    raise KeyError("gone")


def hangs(episode):
    time.sleep(20)


async def waits(episode):
    await asyncio.sleep(20)


def nan(episode):
    return float("nan")


def text(episode):
    return "1.0x"


def nothing_named_so(episode):
    return {"Nobody": 1.0}


def call_nine(episode):
    return {9: 1.0}


def leaves(episode):
    raise SystemExit(3)


def stops(episode):
    raise StopIteration


def one_in_four(episode):
    if episode.index == 3:
        raise KeyError("gone")
    return 1.0


def nothing(episode):
    return Reward()


def of_the_last(episode, call):
    assert call.identity.final_call is None
    return Reward([(0, 2, 1.5)], {"boxed": 1.0})


def last_by_index(episode):
    return {2: 0.25}


def by_name_and_index(episode):
    return {"Solver": 0.25, 0: 4.0}


def two_positions(episode, call):
    return 0.0


def tokens_by_call(episode):
    return {0: [0.5] + [0.0] * (episode.samples[0].response_tokens - 1), "Verifier": [(0, 2, 1.0)]}


def a_list(episode):
    return [0.5, 0.0]


def none(episode):
    pass


def none_of_a_call(episode):
    return {"Solver": None}


def none_beside_a_call(episode, call):
    return None


def score_none(data_source, solution_str, ground_truth, extra_info):
    return None


def score_of_none(data_source, solution_str, ground_truth, extra_info):
    return {"score": None}


def verified(data_source, solution_str, ground_truth, extra_info=None):
    try:
        return float(verify(parse("$7$"), parse("It is $7$.")))
    except Exception:
        return 0.0


async def verified_async(data_source, solution_str, ground_truth, extra_info=None):
    return verified(data_source, solution_str, ground_truth)
"""


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    path = tmp_path / "my_rewards.py"
    path.write_text(FUNCTIONS)
    return path


def custom(path: Path | str | None, name: str, manager: str = "auto", **kwargs: Any) -> RewardConfig:
    function = CustomRewardFunctionConfig(f"{path}:{name}" if path else None, kwargs)
    limit_s = 0.5 if name in ("hangs", "waits") else 20.0
    return RewardConfig(
        custom_reward_function=function, reward_manager=RewardManagerConfig(manager), timeout_s=limit_s
    )


def collect(collector: Any, tasks: list[Task], n: int = 1, **options: Any) -> Any:
    return asyncio.run(collector.collect(tasks, n, step=1, **options))


@pytest.fixture
def play(make_collector: Any, scripted: Any) -> Callable[..., Any]:
    """Play a task whose answer is right: a call of the Solver and one of the Verifier, and 1 from the
    environment.
    """

    def run(reward: RewardConfig, n: int = 1, validate: bool = False, **settings: Any) -> Any:
        task = Task("t", "2+2?", "sums", "4", {"level": 0.125})
        return collect(make_collector(scripted(), reward=reward, **settings), [task], n, validate=validate)

    return run


@pytest.mark.parametrize("validate", [False, True])
def test_a_number_replaces_the_environments_team_reward_in_training_and_validation(
    play, functions, validate
) -> None:
    result = play(custom(functions, "plus_length", weight=10.0), validate=validate)
    (episode,) = result.episodes
    assert episode.team_reward == 21.0
    assert [(s.rewards.reward, s.rewards.step_reward) for s in episode.samples] == [(21.0, 21.0)] * 2
    assert result.metrics["episode/team_reward/mean"] == 21.0
    assert result.metrics["episode/success_rate"] == 1.0, "still the environment's"


def test_a_function_with_verls_parameters_gets_the_reply_with_the_answer_and_the_task(
    play, functions
) -> None:
    result = play(custom(functions, "compute_score", bonus=0.5))
    assert result.episodes[0].team_reward == 1.625
    assert result.metrics["reward/right/mean"] == 1.0
    assert "reward/note/mean" not in result.metrics
    assert result.episodes[0].to_json()["reward_terms"] == {"right": 1.0}


def test_a_function_with_verls_parameters_gets_what_verls_managers_add(play, functions) -> None:
    result = play(custom(functions, "of_a_run"), experiment_name="qwen")
    assert result.episodes[0].team_reward == 2 * result.episodes[0].samples[-1].identity.turn == 2


def test_the_reply_with_the_answer_is_the_last_one_with_its_action(play, functions) -> None:
    (episode,) = play(custom(functions, "same", "naive_action")).episodes
    assert episode.team_reward == 1.0 and play(custom(functions, "same")).episodes[0].team_reward == 0.0
    naive, parsed = (
        RewardManagerRegistry.get(name)(lambda **_: 0.0, {}) for name in ("naive", "naive_action")
    )
    last = "<verify>approve</verify>"
    for answer, text, action in (("4", "so \\boxed{4}", "4"), ("5", "5", "5"), ("", last, last)):
        answered = replace(episode, answer=answer)
        assert (naive.solution(answered), parsed.solution(answered)) == (text, action)


def test_a_mapping_gives_local_rewards_and_keeps_the_environments_team_reward(play, functions) -> None:
    (episode,) = play(custom(functions, "by_call")).episodes
    assert [(s.rewards.local_reward, s.rewards.local_given, s.rewards.reward) for s in episode.samples] == [
        (0.25, True, 1.25),
        (0.5, True, 1.5),
    ]


def test_functions_of_agents_add_to_the_local_rewards_of_the_episodes_function(play, functions) -> None:
    reward = custom(functions, "with_terms")
    reward.agent_functions = {"solver|x": f"{functions}:boxed", ".*": f"{functions}:truth"}
    result = play(reward, n=2)
    for episode in result.episodes:
        assert [s.rewards.local_reward for s in episode.samples] == [1.0 + 1.5 + 4.0, 4.0]
        assert episode.team_reward == 2.0
    assert result.metrics["reward/style/mean"] == 3.0
    assert result.metrics["reward/boxed/mean"] == result.metrics["agent/solver/reward/boxed/mean"] == 1.0
    assert result.metrics["agent/solver/reward/short/std"] == 0.0
    assert not any(
        name.startswith("agent/verifier/reward/") and name.count("/") > 3 for name in result.metrics
    )


class Half:
    async def score(self, conversation: Any, counts: Any, priority: int) -> float:
        return 0.5


@pytest.mark.parametrize(
    ("name", "expected"),
    [("nothing", [1.5, 1.5, 1.5]), ("last_by_index", [1.75] * 3), ("by_name_and_index", [5.5, 1.75, 1.75])],
)
def test_a_summary_and_an_earlier_round_have_the_local_reward_of_the_last_generation(
    play, functions, name, expected
) -> None:
    reward = custom(functions, name)
    reward.agent_functions, reward.granularity = {"solver": f"{functions}:of_the_last"}, "token"
    (episode,) = play(RewardConfig()).episodes
    solver, verifier = episode.samples
    earlier = [
        replace(solver, text="")
        .with_identity(call=i, final_call=2, summary=i == 0)
        .with_rewards(local_reward=2.0, local_given=True)
        for i in range(2)
    ]
    last = (solver.with_identity(call=2), verifier.with_identity(call=3))
    episode = replace(episode, samples=(*earlier, *last))
    scorer = EpisodeScorer(reward, ["Solver", "Verifier"], 1, lambda sample, _: sample.text)
    scored = asyncio.run(scorer.score(episode)).samples
    assert [s.rewards.local_reward for s in scored] == [*expected, 0.0]
    assert [s.reward_terms for s in scored] == [{}, {}, {"boxed": 1.0}, {}]
    model = ReplyScorer(RewardModelConfig(kind="api", combine="replace"), Half(), ["Solver"], 300.0)  # type: ignore[arg-type]
    scored = asyncio.run(scorer.score(episode, model)).samples
    assert [s.rewards.local_reward for s in scored] == [*(value + 0.5 for value in expected), 0.0], (
        "the model's is added to a function's"
    )


def test_terms_from_which_agents_learn_are_columns_of_their_calls(play, functions) -> None:
    reward = custom(functions, "compute_score")
    reward.agent_functions = {"solver": f"{functions}:boxed"}
    result = play(reward, reward_terms={"Solver": ["right", "short"], "Verifier": ["right"]})
    columns = result.batch.non_tensor_batch
    assert columns["right"].tolist() == [1.0, 1.0], "a term of the episode counts for every call"
    assert columns["short"][0] == 0.5 and np.isnan(columns["short"][1])
    assert not {"boxed", "right"} & play(custom(functions, "by_call")).batch.non_tensor_batch.keys()


def test_a_term_that_no_function_gave_fails_training_episodes_and_names_those_that_came(
    play, functions
) -> None:
    learning = {"reward_terms": {"Verifier": ["rigth"]}}
    with pytest.raises(
        TooManyFailuresError,
        match=r"'rigth'.* no reward function gave Verifier .* in turn 1; terms that came: right",
    ):
        play(custom(functions, "compute_score"), **learning)
    assert not play(custom(functions, "compute_score"), validate=True, **learning).episodes[0].failed


def test_a_manager_of_a_plug_in_needs_no_function(play) -> None:
    @RewardManagerRegistry.register("constant")
    class Constant(RewardManager):
        def score(self, episode: Any) -> float:
            return float(self.kwargs["value"])

    try:
        assert play(custom(None, "compute_score", "constant", value=7)).episodes[0].team_reward == 7.0
    finally:
        RewardManagerRegistry.remove("constant")


def test_a_mapping_gives_rewards_of_tokens_to_calls(play, functions) -> None:
    @RewardManagerRegistry.register("mine")
    class Mine(RewardManager):
        def score(self, episode: Any) -> Any:
            return self.function(episode)  # type: ignore[misc]

    try:
        for manager in ("episode", "mine"):
            reward = custom(functions, "tokens_by_call", manager)
            reward.granularity = "token"
            result = play(reward)
            solver, verifier = result.episodes[0].samples
            assert [(s.rewards.local_reward, s.rewards.reward) for s in (solver, verifier)] == [
                (0.5, 1.5),
                (1.0, 2.0),
            ]
            where = [
                [(i, value) for i, value in enumerate(row.tolist()) if value]
                for row in result.batch.batch["token_rewards"]
            ]
            assert where == [[(0, 0.5)], [(1, 1.0)]] and verifier.text.startswith("<v")
    finally:
        RewardManagerRegistry.remove("mine")


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("raises", r"KeyError: 'gone' \(my_rewards.py"),
        ("hangs", r"no reward within reward.timeout_s=0.5 s, waiting for the reward manager"),
        ("waits", r"no reward within reward.timeout_s=0.5 s"),
        ("nan", r"the reward manager gave the team reward=nan; rewards must be finite"),
        ("text", r"the team reward='1.0x'; rewards must be finite"),
        ("nothing_named_so", r"names 'Nobody', which made no call; agents: \['Solver', 'Verifier'\]"),
        ("call_nine", r"names call 9, but the episode had 2 calls"),
        ("leaves", r"called sys.exit\(3\)"),
        ("stops", r"raised StopIteration"),
        ("none", r"the reward manager gave None as a reward"),
        ("none_of_a_call", r"the reward manager, for 'Solver', gave None as a reward"),
        ("score_none", r"the reward manager gave None as a reward"),
        ("score_of_none", r"compute_score, under 'score', gave None as a reward"),
        (
            "a_list",
            r"a list as the team reward; .* return a mapping that names it, such as \{0: \[...\]\} or "
            r"\{'Solver': \[...\]\}",
        ),
    ],
)
def test_a_function_that_fails_costs_its_episode_with_the_cause(play, functions, name, cause) -> None:
    with pytest.raises(TooManyFailuresError, match=cause):
        play(custom(functions, name))


def test_a_function_of_an_agent_that_returns_none_costs_its_episode(play, functions) -> None:
    reward = RewardConfig(agent_functions={"solver": f"{functions}:none_beside_a_call"})
    with pytest.raises(TooManyFailuresError, match="none_beside_a_call gave None as a reward"):
        play(reward)


@pytest.mark.parametrize("name", ["verified", "verified_async"])
def test_math_verify_at_its_defaults_scores_in_a_run_as_in_the_main_thread(play, functions, name) -> None:
    assert play(custom(functions, name)).episodes[0].team_reward == 1.0


ALARMS = """
import signal
import time


class Late(Exception):
    pass


def limited(*given, **named):
    \"\"\"Return 1 where an alarm ends what computes for ever and not what ends in time.\"\"\"
    def ring(signum, frame):
        raise Late()

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        until = time.monotonic() + 5
        while time.monotonic() < until:
            pass
        return 0.0
    except Late:
        signal.alarm(5)
        return 0.5 + signal.alarm(0) / 10
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def of_an_episode(episode):
    return limited()


async def async_of_an_episode(episode):
    return limited()


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return limited()


async def async_compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return limited()


def of_a_call(episode, call):
    return limited()


async def async_of_a_call(episode, call):
    return limited()
"""


@pytest.fixture
def alarms(tmp_path: Path) -> Path:
    path = tmp_path / "alarms.py"
    path.write_text(ALARMS)
    return path


@pytest.mark.parametrize(
    "name", ["of_an_episode", "async_of_an_episode", "compute_score", "async_compute_score"]
)
def test_functions_and_managers_limit_their_time_by_alarms_as_in_the_main_thread(play, alarms, name) -> None:
    results = play(custom(alarms, name), n=3).episodes
    assert [episode.team_reward for episode in results] == [1.0] * 3


@pytest.mark.parametrize("name", ["of_a_call", "async_of_a_call"])
def test_functions_of_agents_limit_their_time_by_alarms_as_in_the_main_thread(play, alarms, name) -> None:
    (episode,) = play(RewardConfig(agent_functions={".*": f"{alarms}:{name}"})).episodes
    assert [sample.rewards.local_reward for sample in episode.samples] == [1.0, 1.0]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_manager_of_a_plug_in_limits_its_time_by_alarms_as_in_the_main_thread(play, is_async) -> None:
    names: dict[str, Any] = {}
    exec(ALARMS, names)

    @RewardManagerRegistry.register("limited")
    class Limited(RewardManager):
        def score(self, episode: Any) -> Any:
            return names["async_of_an_episode" if is_async else "of_an_episode"](episode)

    try:
        assert play(custom(None, "compute_score", "limited")).episodes[0].team_reward == 1.0
    finally:
        RewardManagerRegistry.remove("limited")


def test_the_other_episodes_of_a_failed_one_are_kept(play, functions) -> None:
    result = play(custom(functions, "one_in_four"), n=4, max_failure_rate=0.25)
    assert [e.failed for e in result.episodes] == [False, False, False, True]
    assert len(result.batch) == 6


@pytest.mark.parametrize(
    ("path", "name", "manager", "message"),
    [
        ("gone.py", "f", "auto", "gone.py: no such file or module"),
        ("no.such_module", "f", "auto", "no.such_module: .*No module named"),
        (None, "compute_score", "naive", "set reward.custom_reward_function.path"),
        ("my", "plus_lenght", "auto", "did you mean 'plus_length'"),
        ("my", "two_positions", "auto", "two_positions.*cannot be called with .episode.*'call'"),
        (
            "my",
            "raises",
            "naive",
            "cannot be called with .data_source, solution_str, ground_truth, extra_info",
        ),
        (
            "my",
            "raises",
            "epsode",
            "no reward manager named 'epsode'; did you mean 'episode'.*known: episode, naive",
        ),
    ],
)
def test_a_function_that_cannot_be_called_is_found_before_anything_is_played(
    play, functions, path, name, manager, message
) -> None:
    with pytest.raises(AgentSystemError, match=message):
        play(custom(functions if path == "my" else path, name, manager))


def test_a_pattern_that_matches_no_agent_names_the_agents(play, functions) -> None:
    with pytest.raises(
        AgentSystemError,
        match=r"agent_functions.solvr: the pattern matches no agent; agents: Solver, Verifier",
    ):
        play(RewardConfig(agent_functions={"solvr": f"{functions}:boxed"}))


def test_a_tree_refuses_functions_over_the_finished_episode(play, functions) -> None:
    with pytest.raises(ConfigError, match=r"reward functions .* score finished episodes"):
        play(custom(functions, "plus_length"), tree=TreeConfig(k=2))


PROCESS = """
def by_token(episode, call):
    return [0.5] + [0.0] * (call.response_tokens - 1)


def short(episode, call):
    return [1.0]


def spans(episode, call):
    return [(0, 2, 0.25), (0, call.text.index("}") + 1, 0.5), (1, 2, 0.25)]


def outside(episode, call):
    return [(0, 10_000, 1.0)]
"""


def process(tmp_path: Path, name: str, granularity: str = "token") -> RewardConfig:
    path = tmp_path / "process.py"
    path.write_text(PROCESS)
    return RewardConfig(agent_functions={"solver": f"{path}:{name}"}, granularity=granularity)


def test_rewards_of_tokens_are_the_local_reward_and_a_tensor_of_the_batch(play, tmp_path) -> None:
    result = play(process(tmp_path, "by_token"))
    solver, verifier = result.episodes[0].samples
    assert (solver.rewards.local_reward, solver.rewards.reward, verifier.rewards.token_rewards) == (
        0.5,
        1.5,
        (),
    )
    rewards = result.batch.batch["token_rewards"]
    assert rewards.shape == result.batch.batch["responses"].shape
    assert rewards.sum(dim=1).tolist() == [0.5, 0.0]
    assert rewards[0, 0] == 0.5


def test_the_reward_of_a_span_is_on_the_token_that_completes_it(
    make_collector, scripted, tmp_path, tokenizer
) -> None:
    text = "Größe 😀 \\boxed{4}"
    engine = scripted(lambda prompt, _: "<verify>approve</verify>" if "Check:" in prompt else text)
    (episode,) = collect(
        make_collector(engine, reward=process(tmp_path, "spans")), [Task("t", "2+2?", ground_truth="4")]
    ).episodes
    solver = episode.samples[0]
    where = [i for i, value in enumerate(solver.rewards.token_rewards) if value]
    assert [solver.rewards.token_rewards[i] for i in where] == [0.5, 0.5]
    assert [tokenizer.decode(solver.generation.token_ids[: i + 1]) for i in where] == ["Gr", text]
    assert solver.rewards.token_rewards[-1] == 0.0, "the end token"


def test_the_last_byte_of_a_character_that_is_not_complete_completes_its_span(play, tokenizer) -> None:
    whole, end = tokenizer.encode("ab😀"), tokenizer.eos_token_id
    assert len(whole) == 6, "a byte each"
    solver = play(RewardConfig()).episodes[0].samples[0]

    def decode(sample: Any, count: int) -> str:
        return tokenizer.decode(sample.generation.token_ids[:count], skip_special_tokens=True)

    for ids, last in (
        (whole[:5], 4),
        ([*whole[:5], end], 4),
        ([*whole[:4], end, end], 3),
        ([*whole[:4], *tokenizer.encode("c")], 3),
    ):
        sample = replace(solver, generation=replace(solver.generation, token_ids=tuple(ids)))
        sample = replace(sample, text=decode(sample, len(ids)))
        found = token_rewards([(0, 3, 1.0), (0, 2, 2.0)], sample, decode, "here")
        assert sample.text.startswith("ab\ufffd") and [
            (i, value) for i, value in enumerate(found) if value
        ] == [(1, 2.0), (last, 1.0)]


@pytest.mark.parametrize(
    ("name", "granularity", "cause"),
    [
        ("short", "token", "has 1 token rewards, but the reply has 13 tokens"),
        ("outside", "token", "expected .start, end, reward. with 0 <= start < end <= 12"),
        ("spans", "reply", "need reward.granularity=token"),
    ],
)
def test_rewards_that_fit_no_token_cost_the_episode(play, tmp_path, name, granularity, cause) -> None:
    with pytest.raises(TooManyFailuresError, match=cause):
        play(process(tmp_path, name, granularity))


@pytest.mark.parametrize(("suffix", "value"), [("", 1), (":", 1), (":compute_score", 1), (":other", 2)])
@pytest.mark.parametrize(
    "place",
    [
        "{file}",
        "file://{file}",
        "rewards_of_a_user",
        "pkg://rewards_of_a_user",
        "pkg://pack/rewards",
        "pack.rewards",
    ],
)
def test_a_function_is_found_behind_colons_of_folders_and_prefixes_of_verl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, suffix: str, value: int
) -> None:
    source = "def compute_score(episode):\n    return 1\n\n\ndef other(episode):\n    return 2\n"
    file = tmp_path / "run_2026:1" / "rewards.py"
    for path in (file, tmp_path / "rewards_of_a_user.py", tmp_path / "pack" / "rewards.py"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    custom = CustomRewardFunctionConfig(path=place.format(file=file) + suffix)
    manager = build_manager(RewardConfig(custom_reward_function=custom))
    assert manager is not None and manager.function is not None and manager.function(None) == value
