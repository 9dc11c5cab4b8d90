"""Who speaks when, what they read, and a whole team on a real server."""

import pytest

from agent_system import AgentSystemError
from agent_system.workflows.search import (
    ANSWER,
    SEARCH,
    VERIFIER,
    AnswerAgent,
    SearchAgent,
    SearchOptions,
    SearchVerifierAgent,
)
from tests.agent_system.workflows.search.conftest import TASK
from verl.trainer.config.reward import RewardConfig
from verl.trainer.config.run import TreeConfig


def careful(prompt: str, request) -> str:
    """Plays all three roles: searches author and birthplace, then answers."""
    del request
    known = [name for name in ("Kilu", "Dena") if name in prompt]
    if "You are the Verifier" in prompt:
        return f"Let me see. <verify>{'yes' if 'Dena' in known else 'no'}</verify>"
    if "You are the Search" in prompt:
        return f"<search>{'birthplace of Kilu' if 'Kilu' in known else 'author of Tamo'}</search>"
    return "<answer>Dena</answer>"


TEAM = {name: careful for name in (VERIFIER, SEARCH, ANSWER)}


async def test_the_team_searches_until_enough_is_known_and_then_answers(make_collector, server):
    collector = make_collector(TEAM, {"url": server.url, "topk": 1})
    result = await collector.collect([TASK], 1, step=0)
    (episode,) = result.episodes
    assert [s.agent_id for s in episode.samples] == [VERIFIER, SEARCH, VERIFIER, SEARCH, VERIFIER, ANSWER]
    assert (episode.team_reward, episode.turns, episode.info["searches"]) == (1, 3, 2)
    assert episode.answer == "", "act ended the last turn; the query of the turn before is no answer"
    assert result.metrics["episode/success_rate"] == 1
    last = episode.samples[-1].request.prompt_text
    assert (
        "Step 1: <search>author of Tamo</search> <information>Doc 1 (Title: Tamo) The author of Tamo is "
        "Kilu.</information>" in last
    )
    assert (
        "Step 2: <search>birthplace of Kilu</search> <information>Doc 1 (Title: Kilu) The birthplace of Kilu "
        "is Dena." in last
    )
    assert last.count("What is the birthplace of the author of Tamo?") == 1
    assert "[Verifier]\nLet me see." in last


async def test_memory_shows_the_last_searches_only(make_collector, server):
    script = {VERIFIER: lambda *_: "<verify>no</verify>", SEARCH: _numbered(), ANSWER: careful}
    collector = make_collector(script, {"url": server.url, "topk": 1}, history_length=2)
    (episode,) = (await collector.collect([TASK], 1, step=0)).episodes
    prompt = episode.samples[-1].request.prompt_text
    assert ["Tamo 0" in prompt, "Tamo 1" in prompt, "Tamo 2" in prompt] == [False, True, True]
    assert (episode.turns, episode.team_reward) == (4, 0), "env.max_steps turns, then it is over"


def _numbered():
    count = iter(range(9))
    return lambda *_: f"<search>Tamo {next(count)}</search>"


@pytest.mark.parametrize(("fallback", "second"), [("no", SEARCH), ("yes", ANSWER)])
async def test_a_verdict_that_cannot_be_read_counts_as_the_fallback(make_collector, server, fallback, second):
    script = TEAM | {VERIFIER: lambda *_: "I am not sure <verify>maybe</verify>"}
    collector = make_collector(
        script, {"url": server.url}, options={"verdict_fallback": fallback}, max_steps=1
    )
    result = await collector.collect([TASK], 1, step=0)
    first, other = result.episodes[0].samples
    assert (first.action, first.valid, other.agent_id) == ("", False, second)
    assert result.metrics["env/verifier/unparsed"] == 1
    assert result.metrics["agent/verifier_agent/unparsable"] == 1


async def test_junk_of_every_role_is_counted_and_survived(make_collector, server):
    junk = iter(["<search></search>", "[" * 300, "<search>" + "long " * 70 + "</search>", "\x00 <answer>"])
    script = {VERIFIER: lambda *_: "<verify>no</verify>", SEARCH: lambda *_: next(junk), ANSWER: careful}
    collector = make_collector(script, {"url": server.url})
    result = await collector.collect([TASK], 1, step=0)
    assert (result.metrics["env/search/unparsed"], result.metrics["env/search/too_long"]) == (3, 1)
    assert not result.episodes[0].failed
    valid = [s.valid for s in result.episodes[0].samples if s.agent_id == SEARCH]
    assert valid == [False, False, True, False]


async def test_trees_try_every_query_on_a_fork_and_go_on_with_the_one_that_found_the_answer(
    make_collector, server
):
    queries = iter(["Tamo translator", "birthplace of Kilu"])
    script = {
        VERIFIER: lambda p, _: careful(p, _),
        SEARCH: lambda *_: f"<search>{next(queries)}</search>",
        ANSWER: careful,
    }
    collector = make_collector(
        script,
        {"url": server.url, "topk": 1, "search_reward": 1.0},
        reward=RewardConfig(team_scope="call"),
        tree=TreeConfig(2),
    )
    (episode,) = (await collector.collect([TASK], 1, step=0)).episodes
    searches = [s for s in episode.samples if s.agent_id == SEARCH]
    assert [(s.rewards.reward, s.identity.committed) for s in searches] == [(0, False), (1, True)]
    assert "translator" not in episode.samples[-1].request.prompt_text
    assert (episode.team_reward, episode.turns, episode.info["searches"]) == (1, 2, 1)


def test_a_source_that_cannot_be_used_is_refused_before_anything_is_collected(
    make_collector, tmp_path, misbehaving
):
    with pytest.raises(AgentSystemError, match=r"needs one of env\.params\.corpus"):
        make_collector(TEAM, {})
    with pytest.raises(
        AgentSystemError,
        match=r"retrieval server of .*missing.jsonl ended with status 2; it wrote: error: no corpus",
    ):
        make_collector(TEAM, {"corpus": str(tmp_path / "missing.jsonl")})
    with pytest.raises(AgentSystemError, match="is the retrieval server running"):
        make_collector(TEAM, {"url": "http://127.0.0.1:9"})
    make_collector(TEAM, {"url": misbehaving.url})
    assert misbehaving.asked[0]["topk"] == 3


def test_the_short_style_is_question_and_memory_alone():
    options = SearchOptions(prompt_style="short")
    variables = {"env_prompt": "Who?", "memory": "Step 1: x", "team_context": "c", "step": 2}
    for cls, word in ((SearchVerifierAgent, "Verify"), (SearchAgent, "Search"), (AnswerAgent, "Answer")):
        assert cls(config=options).messages(variables) == [
            {"role": "user", "content": f"{word}: Who?\nStep 1: x"}
        ]


def test_the_full_style_shows_each_the_form_of_its_reply():
    variables = {"env_prompt": "Who?", "memory": "", "team_context": "", "step": 1}
    for cls, tag in ((SearchVerifierAgent, "verify"), (SearchAgent, "search"), (AnswerAgent, "answer")):
        assert f"</{tag}>" in cls().messages(variables)[0]["content"]


def test_thinking_is_not_an_action():
    assert SearchVerifierAgent().project("<think><verify>yes</verify></think> hm").fields == {
        "enough": False,
        "parsed": False,
    }
    assert SearchAgent().project("<think><search>a</search></think><search>b</search>").action == "b"
    assert AnswerAgent().project("<answer>a</answer> no: <ANSWER> b </ANSWER>").action == "b"
