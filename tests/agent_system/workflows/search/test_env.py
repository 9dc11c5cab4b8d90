import pytest

from agent_system import AgentSystemError, Task
from agent_system.options import build_options
from agent_system.rollout.collector import EnvFactory
from agent_system.testing import check_env
from agent_system.workflows.search import (
    ANSWER,
    SEARCH,
    VERIFIER,
    Query,
    SearchEnv,
    SearchEnvOptions,
    SearchOptions,
)
from agent_system.workflows.search.env import NO_QUERY, NOTHING
from tests.agent_system.workflows.search.conftest import TASK


@pytest.fixture
def make_env(server):
    def make(seed: int = 0, **params) -> SearchEnv:
        return SearchEnv(SearchEnvOptions(url=server.url, **params), seed=seed)

    return make


@pytest.fixture
def env(make_env) -> SearchEnv:
    env = make_env(topk=1, search_reward=0.5, verdict_reward=0.25)
    env.reset(TASK)
    return env


async def test_a_search_shows_passages_and_the_answer_ends_the_episode(env):
    assert (await env.act(VERIFIER, "no")).local == 0.25
    found = await env.act(SEARCH, Query("author of Tamo"))
    assert (found.local, found.done) == (0, False)
    turn = await env.step(Query("author of Tamo"))
    assert turn.observation.text == "Doc 1 (Title: Tamo) The author of Tamo is Kilu."
    assert turn.info["searches"] == 1, "a query that was searched in act is not searched again in step"
    assert (await env.act(VERIFIER, "yes")).local == -0.125, (
        "yes before an answer is known is not fair: half of the verdicts are"
    )
    assert (await env.act(SEARCH, Query("birthplace of Kilu"))).local == 0.5
    assert (await env.act(SEARCH, Query("Dena"))).local == 0, "it was known already"
    assert (await env.act(VERIFIER, "yes")).local == pytest.approx(0.25 * (2 / 3 - 1 / 2))
    last = await env.act(ANSWER, "dena.")
    assert (last.team, last.done) == (1, True)
    info = last.info
    assert (info["success"], info["f1"], info["known"], info["searches"], info["verifier/early"]) == (
        1,
        1,
        1,
        3,
        1,
    )
    assert info["verifier/accuracy"] == pytest.approx(2 / 3)


async def test_f1_pays_a_part(make_env):
    env = make_env(reward="f1")
    env.reset(TASK)
    outcome = await env.act(ANSWER, "Dena Village")
    assert (outcome.team, outcome.info["success"]) == (pytest.approx(2 / 3), 0)
    assert make_env().config.reward == "em"


async def test_replies_without_verdict_or_query_are_counted_and_cost_the_turn_alone(env):
    for _ in range(2):
        assert (await env.act(VERIFIER, "")).local == 0
        assert (await env.act(SEARCH, Query(""))).done is False
        turn = await env.step(Query(""))
        assert (turn.done, turn.observation.text) == (False, NO_QUERY)
    assert [turn.info[f"{who}/unparsed"] for who in ("verifier", "search", "answer")] == [2, 2, 0]
    assert (await env.act(ANSWER, "Dena")).team == 1


@pytest.mark.parametrize("reward", ["em", "f1"])
async def test_an_answer_that_cannot_be_read_is_counted_and_ends_the_episode_as_a_wrong_one_does(
    make_env, reward
):
    env = make_env(reward=reward)
    for answer in ("", "wrong"):
        env.reset(TASK)
        outcome = await env.act(ANSWER, answer)
        assert (outcome.team, outcome.local, outcome.done, outcome.info["success"]) == (0, None, True, 0)
        assert outcome.info["answer/unparsed"] == (answer == "")
    env.reset(TASK)
    alone = await env.step("")
    assert (alone.team, alone.done, alone.info["answer/unparsed"]) == (0, True, 1), "a team of one"


@pytest.mark.parametrize(
    ("verdicts", "earned"),
    [(["no"], 0.5), (["no"] * 4, 0.5), (["no", "yes"], 0.25), (["", "no"], 0.25), ([""], 0)],
)
async def test_verdicts_earn_their_share_that_is_fair_however_many_they_are(make_env, verdicts, earned):
    env = make_env(verdict_reward=0.5)
    env.reset(TASK)
    outcomes = [await env.act(VERIFIER, verdict) for verdict in verdicts]
    assert sum(outcome.local for outcome in outcomes) == pytest.approx(earned)
    assert outcomes[-1].info["verifier/accuracy"] == earned / 0.5


@pytest.mark.parametrize(
    ("truth", "known"), [("evidence", True), (["yes", "no"], None), (["no", "evidence"], True), ("No.", None)]
)
async def test_yes_and_no_are_not_looked_for_in_passages(misbehaving, truth, known):
    env = SearchEnv(SearchEnvOptions(url=misbehaving.url, search_reward=1.0, verdict_reward=1.0))
    env.reset(Task("t", "Is it?", "demo", truth))
    verdict = await env.act(VERIFIER, "no")
    found = await env.act(SEARCH, Query("no evidence"))
    assert "What no evidence brings." in (await env.step("")).observation.text
    assert found.info.get("known") == known
    assert ("verifier/accuracy" in found.info, "verifier/early" in found.info) == (known is not None,) * 2
    assert (verdict.local, found.local) == ((1, 1) if known else (None, 0))
    answer = await env.act(ANSWER, "no")
    assert answer.info["success"] == ("no" in str(truth).lower())


async def test_a_query_over_the_limit_is_not_sent_and_the_team_reads_why(make_env):
    env = make_env(max_query_chars=20)
    env.reset(TASK)
    await env.act(SEARCH, Query("author of Tamo " * 2))
    turn = await env.step(Query("author of Tamo " * 2))
    assert (
        turn.observation.text == "the query has 30 characters, at most 20 are allowed; nothing was searched"
    )
    assert (turn.info["search/too_long"], turn.info["searches"], turn.done) == (1, 0, False)


async def test_searches_without_result_and_repeated_queries_are_counted(env):
    for query in ("zzz", "zzz"):
        await env.act(SEARCH, Query(query))
        turn = await env.step(Query(query))
    assert turn.observation.text == NOTHING
    assert (turn.info["search/empty"], turn.info["search/repeated"]) == (2, 1)


async def test_passages_are_cut_and_shown_bare_where_that_is_asked_for(make_env):
    env = make_env(topk=2, view="text", max_passage_chars=10)
    env.reset(TASK)
    await env.act(SEARCH, Query("Tamo translator"))
    assert (await env.step("")).observation.text == "The transl\nThe author"


async def test_a_team_of_one_searches_and_answers_in_step(env):
    turn = await env.step(Query("birthplace of Kilu"))
    assert (turn.done, "Dena" in turn.observation.text) == (False, True)
    turn = await env.step("Dena")
    assert (turn.done, turn.team) == (True, 1)


def test_an_episode_is_the_same_again_in_a_fork_and_in_a_pickled_copy(server):
    factory = EnvFactory(SearchEnv, SearchEnvOptions(url=server.url, search_reward=0.5, verdict_reward=0.5))
    searched, empty = (SEARCH, Query("author")), (SEARCH, Query(""))
    actions = [
        (VERIFIER, "no"),
        searched,
        "author",
        (VERIFIER, ""),
        empty,
        "",
        (VERIFIER, "yes"),
        (ANSWER, "Dena"),
    ]
    check_env(factory.make, TASK, actions, team_range=(0, 1), local_range=(-0.5, 0.5))
    check_env(factory.make, TASK, [*actions[:-1], (ANSWER, "")], team_range=(0, 1), local_range=(-0.5, 0.5))


@pytest.mark.parametrize("truth", [None, "", [], {"target": []}, {"answer": "x"}])
def test_a_task_without_an_accepted_answer_is_named(env, truth):
    with pytest.raises(AgentSystemError, match="task 't7' has no answer"):
        env.reset(Task("t7", "Who?", "demo", truth))


@pytest.mark.parametrize(
    ("truth", "words"),
    [
        ("A", "has no answer in .* that could be given; .*found 'A'"),
        ([{"text": "x"}], r"ground_truth: an accepted answer is \{'text': 'x'\} \(dict\)"),
    ],
)
def test_an_unwinnable_task_is_named(env, truth, words):
    with pytest.raises(AgentSystemError, match=f"task 't7'.*{words}"):
        env.reset(Task("t7", "Who?", "demo", truth))


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ({}, "found neither"),
        ({"url": "http://a", "corpus": "b.jsonl"}, "found both"),
        (
            {"url": "http://a", "start_timeout_s": 5.0},
            "start_timeout_s=5 has no effect; it needs env.params.corpus",
        ),
    ],
)
def test_exactly_one_place_to_search_in_is_needed_with_its_own_keys(params, found):
    with pytest.raises(AgentSystemError, match=found):
        SearchEnv(SearchEnvOptions(**params)).reset(TASK)


@pytest.mark.parametrize(
    ("cls", "options", "words"),
    [
        (SearchEnvOptions, {"view": "ful"}, "did you mean 'full'"),
        (SearchEnvOptions, {"reward": "rouge"}, "must be one of em, f1"),
        (SearchEnvOptions, {"topk": 0}, "topk must be positive"),
        (SearchEnvOptions, {"timeout_s": -1}, "timeout_s must be positive"),
        (
            SearchEnvOptions,
            {"verdict_reward": float("nan")},
            "verdict_reward must be a finite number, 0 or more",
        ),
        (SearchOptions, {"verdict_fallback": "maybe"}, "must be one of no, yes"),
        (SearchOptions, {"prompt_style": "tiny"}, "must be one of full, short"),
    ],
)
def test_options_that_cannot_be_are_named(cls, options, words):
    with pytest.raises(AgentSystemError, match=words):
        build_options(cls, options, "here")
