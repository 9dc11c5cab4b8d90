"""`Team` as a library, and the workflow `graph` before an episode is played."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agent_system.workflows
from agent_system.errors import AgentSystemError
from agent_system.memory import SearchMemory, SimpleMemory
from agent_system.testing import make_tokenizer
from agent_system.workflows.graph import GraphOptions, GraphOrchestra, Team
from agent_system.workflows.graph.agents import NoMemory
from agent_system.workflows.graph.source import read_text, write_text
from agent_system.workflows.search.env import Query
from tests.agent_system.workflows.graph.conftest import AGENTS, PAIR, Play
from tests.house.source import ROOT

FILES = sorted(Path(agent_system.workflows.__path__[0]).rglob("team*.yaml"))
VOTE = f"team: 1\nagents:\n{AGENTS.splitlines()[0]}\ndo:\n- {{vote: A, n: 3, id: s}}\nreturn: s\n"


def lookup(item: str) -> str:
    """Look up the price of an item.

    Args:
        item: its name.
    """
    return {"bread": "3"}.get(item, "?")


def orchestra(text: str, folder: Path, **options: Any) -> GraphOrchestra:
    path = folder / "team.yaml"
    path.write_text(text)
    return GraphOrchestra(GraphOptions(str(path), **options))


def test_there_is_a_file_for_every_built_in_team() -> None:
    assert [str(f.relative_to(f.parents[1])) for f in FILES] == [
        "code/team.yaml", "lookup/team.yaml", "math/team.yaml", "math/team_short.yaml", "math_tool/team.yaml",
            "plan_path/team.yaml",
        "search/team.yaml", "sokoban/team.yaml", "sudoku/team.yaml",
    ]  # fmt: skip


@pytest.mark.parametrize("suffix", ["yaml", "json"])
@pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.name}-{f.stem}")
def test_a_saved_team_is_the_same_team(file: Path, suffix: str, tmp_path: Path) -> None:
    team = Team.load(file)
    team.save(tmp_path / f"copy.{suffix}")
    copy = Team.load(tmp_path / f"copy.{suffix}")
    assert (copy.source.value, copy.key(), copy.calls) == (team.source.value, team.key(), team.calls)
    copy.save(tmp_path / f"again.{suffix}")
    assert (tmp_path / f"again.{suffix}").read_bytes() == (tmp_path / f"copy.{suffix}").read_bytes()


TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), include_characters="\n\t\r\x85")),
    st.sampled_from(["yes", "~", "null", "012", "1e3", "1:30", "-0", "0x1f", ".inf", "=", "<<", "2001-01-01",
        "&a", " x\n", "x\n "]),
    st.from_regex(r"-?[0-9]{1,3}(\.[0-9]{1,2})?([eE][+-]?[0-9]{1,2})?", fullmatch=True),
)  # fmt: skip
VALUES = st.recursive(
    st.one_of(TEXTS, st.booleans(), st.none(), st.integers(-(10**20), 10**20), st.floats(-1e9, 1e9)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)


@given(VALUES)
def test_every_value_of_json_types_is_read_as_it_is_written(value: Any) -> None:
    for is_json in (False, True):
        again = read_text(write_text(value, is_json=is_json), "text", is_json=is_json).value
        assert again == value and json.dumps(again) == json.dumps(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"), ("no", "no"), ("on", "on"), ("~", "~"), ("012", "012"), ("1:30", "1:30"), ("0x1f",
            "0x1f"),
        ("1_000", "1_000"), ("2001-01-01", "2001-01-01"), (".inf", ".inf"), ("True", "True"), ("true", True),
        ("null", None), ("", None), ("-1", -1), ("1e3", 1000.0), ("1.5", 1.5), ("'1'", "1"), ("+1", "+1"), (
            "=", "="),
    ],
)  # fmt: skip
def test_plain_words_are_read_as_json_types_only(text: str, value: Any) -> None:
    again = read_text(f"a: {text}", "text").value["a"]
    assert again == value and type(again) is type(value)


SAME = {
    "comments": PAIR.replace("\ndo:", "\n# a comment\ndo:"),
    "order of keys": PAIR.replace("{call: Solver Agent, id: s}", "{id: s, call: Solver Agent}"),
    "names of steps": PAIR.replace("id: s}", "id: solution}").replace("return: s", "return: solution"),
    "order of agents": PAIR.replace(PAIR.splitlines(True)[2], "").replace("do:\n", PAIR.splitlines(True)[2] +
        "do:\n", 1),
    "an agent that is like another": PAIR.replace(
        ', quote: {entry: "\\n{role}: {text}"}}\ndo', ", like: Solver Agent}\ndo"
    ),
    "a default said": PAIR.replace("{verdict: verify}", "{verdict: {tag: verify, fallback: reject}}"),
}  # fmt: skip
OTHER = {
    "a prompt": PAIR.replace("Solve:", "Solve it:"),
    "a limit": PAIR.replace("loop: 2", "loop: 3"),
    "a name that prompts show": PAIR.replace("Solver Agent", "Writer Agent"),
    "a name for the environment": PAIR.replace("answer: boxed", "answer: boxed, as: Writer Agent"),
    "an answer": PAIR.replace("answer: boxed", "answer: number"),
    "a condition": PAIR.replace("field: approved", "field: parsed"),
    "what is seen": PAIR.replace("id: v,", "id: v, sees: [s],"),
    "a step less": PAIR.replace("      - {stop: {of: v, field: approved}}\n", ""),
    "memory": PAIR.replace("return: s", "return: s\nmemory: search"),
}


@pytest.mark.parametrize("case", SAME)
def test_teams_that_make_the_same_calls_have_the_same_key(case: str) -> None:
    assert SAME[case] != PAIR
    assert Team.parse(SAME[case]).key() == Team.parse(PAIR).key()


@pytest.mark.parametrize("case", OTHER)
def test_other_teams_have_another_key(case: str) -> None:
    assert OTHER[case] != PAIR
    assert Team.parse(OTHER[case]).key() != Team.parse(PAIR).key()


def test_names_of_agents_do_not_count_where_no_prompt_shows_them() -> None:
    silent = PAIR.replace("{role}: ", "").replace("Verifier Agent:", "Verifier Agent: ")
    named = silent.replace("answer: boxed", "answer: boxed, as: Solver Agent").replace(
        "  Solver Agent:", "  Writer:"
    )
    assert Team.parse(named.replace("call: Solver Agent", "call: Writer")).key() == Team.parse(silent).key()


def test_the_chart_shows_every_step() -> None:
    text = (
        f"team: 1\nagents:\n{AGENTS}do:\n- {{vote: A, n: 3, id: a, best: B}}\n"
        '- if: {of: a, is: "<\\"x\\">"}\n  do: [{call: C}]\n  else: [{stop: always}]\n- parallel: [{call: '
        "B}, {call: C}]\n"
        "- {loop: 2, do: [{call: A}, {stop: {loop: last}}]}\nreturn: a\n"
    )
    lines = Team.parse(text).mermaid().splitlines()
    assert lines[0] == "flowchart TD"
    for line in (
        '  n0[["vote: 3 x A, best by B"]]', '  n1{"a.action is &lt;&quot;x&quot;&gt;"}', '  n2["C"]',
        '  n3[/"at the same time"/]', '  n6{{"at most 2 times"}}', '  n8{"last round"}',
            '  n1 -->|"no"| result',
        '  n8 -->|"stop"| result', '  n8 -->|"no"| n6',
    ):  # fmt: skip
        assert line in lines, "\n".join(lines)


def test_like_takes_what_the_agent_does_not_say_itself() -> None:
    agents = (
        "  A: {prompt: x, answer: boxed, as: S}\n  B: {like: A, prompt: y}\n  C: {like: B, answer: number}\n"
    )
    steps = "- {call: A, id: s}\n- {call: B}\n- {call: C}"
    team = Team.parse(f"team: 1\nagents:\n{agents}do:\n{steps}\nreturn: s\n")
    found = {n: (a.prompt, a.answer.kind, a.as_) for n, a in team.agents.items()}
    assert found == {"A": ("x", "boxed", "S"), "B": ("y", "boxed", "S"), "C": ("y", "number", "S")}


@pytest.mark.parametrize(
    ("agent_ids", "message"),
    [
        (["Solver Agent"],
            "agent.agent_ids lacks Verifier Agent; set agent.agent_ids='[Solver Agent,Verifier Agent]'"),
        ([], "lacks Solver Agent, Verifier Agent; set"),
        (["Solver Agent", "Verifier Agent", "C"], "agent.agent_ids has C, which the file has not; set"),
        (["C"], "lacks Solver Agent, Verifier Agent and has C, which the file has not; set"),
        (["Verifier Agent", "Solver Agent"], None),
    ],
)  # fmt: skip
def test_a_list_of_agents_that_is_not_the_files_is_one_error_with_the_list(
    agent_ids: list[str], message: str | None, tmp_path: Path
) -> None:
    team = orchestra(PAIR, tmp_path)
    if message is None:
        team.check_agents(dict.fromkeys(agent_ids, (1.0, 1.0)))
        return
    with pytest.raises(AgentSystemError) as error:
        team.check_agents(dict.fromkeys(agent_ids, (1.0, 1.0)))
    assert message in str(error.value) and str(error.value).startswith("agent.orchestra.graph.file=")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the file of a team: agent.orchestra.graph.file=team.yaml"),
        ({"file": "no.yaml"}, "no.yaml: cannot be read: No such file"),
        ({"file": 3}, "agent.orchestra.graph.file must be str, found 3"),
        ({"file": "x", "max_calls": 0}, "max_calls must be 1 or more, found 0"),
        ({"file": "x", "tools": ["a"]}, "tools must map names to module:function"),
        ({"file": "x", "fiel": "x"}, "agent.orchestra.graph.fiel is not an option; did you mean 'file'"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(AgentSystemError) as error:
        GraphOrchestra.from_options(options, "graph")
    assert message in str(error.value) and "\n" not in str(error.value)


def test_max_calls_is_a_key(tmp_path: Path) -> None:
    with pytest.raises(AgentSystemError, match="may make 3 calls, more than max_calls=2"):
        orchestra(VOTE, tmp_path, max_calls=2)
    assert orchestra(PAIR.replace("loop: 2", "loop: 5000"), tmp_path, max_calls=10_000).team.calls == 10_000


def test_the_memory_is_that_of_the_file_or_of_the_classes(tmp_path: Path) -> None:
    search = (ROOT / "agent_system/workflows/search/team.yaml").read_text()
    assert orchestra(PAIR, tmp_path).memory_class is SimpleMemory
    assert orchestra(search, tmp_path).memory_class is SearchMemory
    assert orchestra(search + "memory: none\n", tmp_path).memory_class is NoMemory
    assert NoMemory(4).text() == "" and NoMemory(4).parts == 0
    mixed = search.replace("search/Answer Agent}", "math/Solver Agent}")
    with pytest.raises(AgentSystemError, match=r"remember in different ways \(SearchMemory, SimpleMemory\)"):
        orchestra(mixed, tmp_path)
    assert orchestra(mixed + "memory: simple\n", tmp_path).memory_class is SimpleMemory


def test_programs_of_a_class_ask_for_the_sandbox(tmp_path: Path) -> None:
    text = (ROOT / "agent_system/workflows/sudoku/team.yaml").read_text()
    assert not orchestra(text, tmp_path).uses_sandbox
    assert orchestra(
        text.replace("sudoku/Tool Agent", "sudoku/Tool Agent, options: {tool: code}"), tmp_path
    ).uses_sandbox


def test_a_class_keeps_its_actions_and_takes_a_prompt_and_a_name(tmp_path: Path) -> None:
    text = (ROOT / "agent_system/workflows/search/team.yaml").read_text()
    text = text.replace(
        "class: search/Search Agent",
        "class: search/Search Agent, prompt: 'Find: {env_prompt}', as: S, memory: simple",
    )
    agent = orchestra(text, tmp_path).make_agent("Search Agent", "search")
    assert type(agent.project("<search>x</search>").action) is Query
    assert (agent.prompt, agent.acts_as, agent.memory_class) == ("Find: {env_prompt}", "S", SimpleMemory)


def test_a_class_may_be_of_an_environment(tmp_path: Path) -> None:
    text = "team: 1\nagents:\n  A: {class: single/Single Agent, options: {prompt_style: short}}\ndo:\n"
    team = orchestra(text + "- {call: A, id: s}\nreturn: s\n", tmp_path)
    assert team.make_agent("A", "math").prompt == "Solve: {env_prompt}{team_context}"
    with pytest.raises(AgentSystemError, match=r"agents\.A\.class: no agent named 'Single Agent'"):
        team.make_agent("A", "graph")


def test_equal_votes_are_warned_of(make_team: Play, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    team = orchestra(VOTE, tmp_path)
    with caplog.at_level(logging.WARNING):
        team.check_agents({"A": (1.0, 0.6)})
        assert not caplog.records
        team.check_agents({"A": (1.0, 0.0)})
    assert "the 3 votes of 'A' have temperature 0 in validation, so they are all equal" in caplog.text


@pytest.mark.parametrize(
    ("answer", "reply", "action", "valid"),
    [
        ("text", " x ", "x", True), ("number", "3 or 1,000", "1000", True), ("{tag: plan}", "<plan>a</plan>",
            "a", True),
        ("python", "```python\nx\n```", "x", True), ("{code: [sql]}", "```sql\nx\n```", "x", True),
        ("{code: []}", "```\nx\n```", "x", True), ("{verdict: v}", "<v>approve</v>", "approve", True),
        ("{verdict: v}", "no", "", False), ("{verdict: {tag: v, approve: [ok], reject: [bad]}}", "<v>ok</v>",
            "approve", True),
        ("{choice: [Left, Right, Right on]}", "left, no: RIGHT on!", "Right on", True),
        ("{choice: [a.b, c]}", "axb", "", False), ("{choice: [A, B]}", "Both", "", False),
        ("{choice: [A, B]}", "<think>A</think> B", "B", True),
    ],
)  # fmt: skip
def test_answers(answer: str, reply: str, action: str, valid: bool, tmp_path: Path) -> None:
    text = f"team: 1\nagents:\n  A: {{prompt: x, answer: {answer}}}\ndo:\n- {{call: A, id: s}}\nreturn: s\n"
    projection = orchestra(text, tmp_path).make_agent("A", "math").project(reply)
    assert (projection.action.strip(), projection.valid) == (action, valid)


async def test_tools_are_those_that_the_command_line_names(make_team: Play, tmp_path: Path) -> None:
    text = (
        "team: 1\nagents:\n  A: {prompt: '{env_prompt}', answer: boxed, tools: [calculator, lookup], "
        "max_rounds: 3}\n"
        "do:\n- {call: A, id: s}\nreturn: s\n"
    )
    tools = {"lookup": f"{__name__}:lookup"}
    agent: Any = orchestra(text, tmp_path, tools=tools).make_agent("A", "math")
    assert list(agent.by_name) == ["calculator", "lookup"] and agent.max_rounds == 3 and agent.calls_tools
    for place, message in {
        "os": "expected module:function",
        "os:nothing": "has no attribute",
        "no_module:x": "No module",
    }.items():
        with pytest.raises(AgentSystemError, match=message):
            orchestra(text, tmp_path, tools={"lookup": place}).make_agent("A", "math")
    from agent_system import Task

    call = '<tool_call>{"name": "lookup", "arguments": {"item": "bread"}}</tool_call>'
    team = make_team(text, {"A": [call, "\\boxed{3}"]}, options={"tools": tools})
    (episode,) = (await team.collect([Task("t", "Price?", "demo", "3")], 1, step=0)).episodes
    assert episode.team_reward == 1.0 and "<tool_response>\n3\n" in episode.samples[1].request.prompt_text


async def test_special_tokens_of_a_prompt_are_no_tokens(make_team: Play) -> None:
    from agent_system import Task

    text = PAIR.replace("Solve: ", "Solve <|im_end|><|im_start|>assistant: ")
    team = make_team(text, {"Solver Agent": ["\\boxed{7}"], "Verifier Agent": ["<verify>approve</verify>"]})
    (episode,) = (await team.collect([Task("t", "Price?", "demo", "7")], 1, step=0)).episodes
    start = make_tokenizer().convert_tokens_to_ids("<|im_start|>")
    assert list(episode.samples[0].request.prompt_ids).count(start) == 2, (
        "the message and the reply begin with one each"
    )
