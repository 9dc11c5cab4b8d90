"""Open Agent Spec files: a written team is read as the same one, also behind the real library; flows of
others become steps, or are refused in one line.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_system import Task
from agent_system.errors import AgentSystemError
from agent_system.workflows.graph import GraphOptions, GraphOrchestra, Team
from tests.agent_system.workflows.graph.agent_spec_flows import (
    END,
    START,
    Node,
    branching,
    flow,
    inputs,
    llm,
    parsed,
    refused,
)
from tests.agent_system.workflows.graph.conftest import AGENTS, PAIR, Play
from tests.cpu_time import cpu_seconds
from tests.environments import python_with
from tests.house.source import ROOT

PACKAGE = "pyagentspec==26.3.1"
LIBRARY = Path(__file__).with_name("agent_spec_library.py")
FILES = sorted(ROOT.glob("agent_system/workflows/*/team*.yaml"))
HEAD = f"team: 1\nagents:\n{AGENTS}"
# Steps of the agents A, B and C.
STEPS = {
    "parallel": "- {parallel: [{call: A, id: a}, [{call: B}, {call: C, id: c, sees: [b]}]]}\n"
    "- {call: C, id: b, sees: []}\nreturn: [b, a]",
    "if": "- {call: A, id: a}\n- {if: {of: a, in: [x, y]}, do: [{call: B}], else: [{call: C}, {call: A}]}\n"
    "- {if: {of: a, field: valid}, do: [{call: B}]}\nreturn: a",
    "both arms": "- {if: {observation: k, below: 3}, do: [{call: A, id: a}], else: [{call: B, id: a}]}\n"
    "- {call: C, unless: {of: a, is: 3}}\nreturn: {of: a, default: none}",
    "votes": "- {vote: A, n: 200, id: a}\n- {vote: B, n: 2, id: b, sees: [a], best: C}\n"
    "- {vote: [a, b], id: c}\n- {vote: [a, c], id: d, best: C}\nreturn: d",
    "vote in a loop": "- {loop: 3, do: [{vote: A, n: 3, id: a}, {vote: B, n: 2}, {call: "
    "C, id: c}]}\nreturn: c",
    "nested loops": "- loop: 2\n  do:\n  - loop: 3\n    do: [{loop: 4, do: [{call: A}, "
    "{stop: {of: b, is: x}}]}, "
    "{call: B, id: b}]\n  - {stop: {of: b, is: y}}\n  - {call: C, unless: {loop: last}}\nreturn: b",
    "stops": "- {call: A, id: a}\n- {if: {of: a, is: x}, do: [{call: B}, {stop: "
    "always}], else: [{call: C}]}\n"
    "- {stop: {observation: over}}\n- {call: B}\n- {call: C, unless: {of: a, is: y}}\nreturn: a",
    "stops in a loop": "- loop: 5\n  do:\n  - {stop: {loop: last}}\n  - {call: A, id: "
    "a}\n  - if: {of: a, is: x}\n"
    "    do: [{stop: always}]\n    else: [{call: B}, {stop: {of: a, is: y}}, {call: "
    "C}]\nreturn: {of: a, default: ''}",
    "loop in a branch": "- parallel:\n  - - loop: 2\n      do: [{call: A, id: a}, {stop: {of: a, is: x}}]\n"
    "  - - {parallel: [{call: B}, {call: C}]}\n    - {call: B, id: b}\nreturn: b",
    "an empty else": "- {call: A, id: a}\n- {if: {of: a, is: x}, do: [{call: B}], else: "
    "[]}\n- {call: C, unless: null}"
    "\nreturn: a",
}
RICH = """\
team: 1
agents:
  Solver:
    prompt: "Solve {env_prompt} as {{a: {{b}}}} with {hint}{team_context} {memory} {step}"
    system: "You are {{kind}}. {hint}"
    variables: [hint]
    answer: {choice: [left, right]}
    quote: {entry: "{role} {action}", separator: "; ", empty: nothing, last: 2}
    as: Solver Agent
    memory: summary
    tools: [calculator]
    max_rounds: 2
  Other: {like: Solver, prompt: "Other {env_prompt}"}
  Judge: {class: search/Verifier Agent, prompt: "Judge {x} {{y}}", options: {}}
memory: search
do:
  - {call: Solver, id: s}
  - {call: Other}
  - {vote: Solver, n: 3, best: Judge, id: v}
return: {of: [v], default: null}
"""


def teams() -> dict[str, Team]:
    """The built-in teams, and some with all kinds of steps."""
    built_in = {f"{path.parent.name}-{path.stem}": Team.load(path) for path in FILES}
    made = {
        name.replace(" ", "_"): Team.parse(f"{HEAD}do:\n{text}\n", max_calls=5000)
        for name, text in STEPS.items()
    }
    return {**built_in, **made, "pair": Team.parse(PAIR), "rich": Team.parse(RICH)}


def test_there_are_files_of_all_built_in_teams() -> None:
    assert len(FILES) >= 9


@pytest.mark.parametrize("is_json", [True, False])
def test_a_written_team_is_read_as_the_same_one(tmp_path: Path, is_json: bool) -> None:
    for name, team in teams().items():
        path = tmp_path / f"{name}.{'json' if is_json else 'yaml'}"
        team.save(path, agent_spec=True)
        assert "agentspec_version" in path.read_text()
        assert Team.load(path, max_calls=5000).key() == team.key(), name


@pytest.fixture(scope="module")
def library() -> Callable[..., str]:
    """Run a program with the real library."""
    python = python_with(PACKAGE)

    def run(*arguments: str | Path) -> str:
        command = [python, str(LIBRARY), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout

    return run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_real_library_reads_and_writes_a_written_team(
    tmp_path: Path, library: Callable[..., str]
) -> None:
    """It is valid by the published schema, and the same team behind the library's own writer."""
    for name, team in teams().items():
        team.save(tmp_path / f"{name}.json", agent_spec=True)
    assert set(json.loads(library("check", tmp_path)).values()) == {"valid"}
    for name, team in teams().items():
        assert Team.load(tmp_path / f"{name}.again.json", max_calls=5000).key() == team.key(), name


# The example flows in the documentation of the library: the steps, or why there are none.
EXAMPLES: dict[str, list[str] | str] = {
    "Flow.flow": ["simple llm node"],
    "LlmNode.flow": ["simple llm node"],
    "StartNode.flow": ["llm node"],
    "FlowNode.inner_map_flow": ["reasoning llm node"],
    "AgentNode.flow": "'Search agent node' (AgentNode): it has structured outputs; a "
    "call of a team has one text",
    "BranchingNode.assistant": "'User input agent' (Agent): a team has no user to ask; "
    "set human_in_the_loop to "
    "false",
    "EndNode.assistant": "'Language detector agent' (Agent): a team has no user to ask; "
    "set human_in_the_loop",
    "FlowNode.flow": "'flow node' (AgentNode): it has structured outputs",
    "FlowNode.mapreduce_flow": "'map node' (MapNode): no step of a team is like it; a "
    "team calls a fixed number",
    "InputMessageNode.flow": "'ask_input' (OutputMessageNode): no step of a team is "
    "like it; a team has no user",
    "MapNode.flow": "'square number map node' (MapNode): no step of a team is like it",
    "MapNode.normalize_flow": "'divide node' (ToolNode): no step of a team is like it; "
    "a team has no step without",
    "MapNode.square_number_flow": "'square tool node' (ToolNode): no step of a team is like it",
    "OutputMessageNode.flow": "(OutputMessageNode): no step of a team is like it; a team has no user",
    "ParallelMapNode.check_if_article_is_about_llm_flow": "'branching_to_end_without' "
    "(ControlFlowEdge): a second "
    "edge from the branch 'next' of a node",
    "ParallelMapNode.generate_summary_of_llm_articles_flow": "(ParallelMapNode): no "
    "step of a team is like it",
    "ToolNode.flow": "'' (ToolNode): no step of a team is like it",
    "add_conditional.flow": "'Flow' (Flow): its EndNodes must have one output, the "
    "action of the team; found 0",
}


@pytest.mark.timeout(600)
def test_published_examples_are_read_or_refused_in_one_line(
    tmp_path: Path, library: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library("examples", tmp_path)
    monkeypatch.chdir(tmp_path)
    results: dict[str, list[str] | str] = {}
    for path in sorted(Path().glob("*.json")):
        try:
            results[path.stem] = [step.call for step in Team.load(path).spec.do]  # type: ignore[union-attr]
        except AgentSystemError as error:
            results[path.stem] = str(error)
            assert "\n" not in str(error) and str(error).startswith(f"{path}:1:")
    assert results.keys() == EXAMPLES.keys()
    for name, expected in EXAMPLES.items():
        assert results[name] == expected or (isinstance(expected, str) and expected in results[name]), name


REVIEW = {
    "start": START,
    "write": llm("Write {{ task }}. Review: {{review}}", inputs=[{"title": "review", "default": "-"}]),
    "check": llm("Is it good? {{text}}"),
    "good?": {"type": "BranchingNode", "mapping": {"yes": "y", "Yes": "y"}, "inputs": inputs("word")},
    "end": END,
}
REVIEW_EDGES = ["start write", "write check", "check good?", "good?:y end", "good?:default write 3"]
REVIEW_DATA = [
    "start.task write.task",
    "check.generated_text write.review",
    "write.generated_text check.text",
    "check.generated_text good?.word",
    "write.generated_text end.answer",
]


def test_a_flow_of_others_becomes_steps() -> None:
    team = parsed(flow(REVIEW, REVIEW_EDGES, REVIEW_DATA))
    assert team.source.value == {
        "team": 1,
        "agents": {
            "write": {
                "prompt": "Write {env_prompt}. Review: {team_context}",
                "quote": {"entry": "{text}", "last": 1, "empty": "-"},
            },
            "check": {
                "prompt": "Is it good? {team_context}",
                "quote": {"entry": "{text}", "last": 1, "empty": ""},
            },
        },
        "do": [
            {
                "loop": 3,
                "do": [
                    {"call": "write", "id": "write", "sees": ["check"]},
                    {"call": "check", "id": "check", "sees": ["write"]},
                    {"stop": {"of": "check", "in": ["yes", "Yes"]}},
                ],
            }
        ],
        "return": {"of": ["write"]},
        "memory": "none",
    }
    assert team.key() == parsed(team.source.value).key()


async def test_a_flow_of_others_is_played(make_team: Play) -> None:
    """A prompt has the newest reply of the node that its data edge comes from, or the default."""
    text = json.dumps(flow(REVIEW, REVIEW_EDGES, REVIEW_DATA))
    replies = {"write": ["draft 1", "draft 2", "draft 3"], "check": ["no", "Yes", "yes"]}
    result = await make_team(text, replies).collect([Task("t", "6 x 7?", "demo", "42")], 1, step=0)
    assert [sample.request.messages[0]["content"] for sample in result.episodes[0].samples] == [
        "Write 6 x 7?. Review: -",
        "Is it good? draft 1",
        "Write 6 x 7?. Review: no",
        "Is it good? draft 2",
    ]


CHOICE = {"start": START, "a": llm("A {{task}}"), "b": llm("B"), "c": llm("C"), "d": llm("D"), "end": END}
CHOICE_DATA = ["start.task a.task", "a.generated_text which.key", "a.generated_text end.answer"]


@pytest.mark.parametrize(
    ("mapping", "edges", "steps"),
    [
        (
            {"x": "x"},
            ["which:x b", "which:default c", "b d", "c d", "d end"],
            [{"if": {"of": "a", "is": "x"}, "do": ["b"], "else": ["c"]}, "d"],
        ),
        ({"x": "x"}, ["which:x d", "which:default c", "c b", "b d", "d end"], None),
        ({"x": "x"}, ["which:x d", "which:default b", "b d", "d end", "c d"], "no control edge leads to it"),
        (
            {"x": "x", "y": "y", "z": "x"},
            ["which:x b", "which:y c", "which:default d", "b d", "c end", "d end"],
            [
                {
                    "if": {"of": "a", "in": ["x", "z"]},
                    "do": ["b", "d"],
                    "else": [{"if": {"of": "a", "is": "y"}, "do": ["c"], "else": ["d"]}],
                }
            ],
        ),
        (
            {"x": "x"},
            ["which:x end", "which:default b", "b c", "c d", "d end"],
            [{"stop": {"of": "a", "is": "x"}}, "b", "c", "d"],
        ),
        (
            {"x": "x", "y": "default"},
            ["which:x b", "which:default c", "b c", "c d", "d end"],
            [{"if": {"of": "a", "is": "x"}, "do": ["b"]}, "c", "d"],
        ),
    ],
)
def test_branches_of_others_become_conditions(mapping: Any, edges: list[str], steps: Any) -> None:
    nodes = {**CHOICE, "which": branching(mapping)}
    value = flow(nodes, ["start a", "a which", *edges], CHOICE_DATA)
    if steps is None or isinstance(steps, str):
        assert (steps or "a branch of it calls no agent and the other one has several steps") in refused(
            value
        )
        return

    def short(step: Any) -> Any:
        if "call" in step:
            return step["call"]
        return {
            key: [short(s) for s in item] if key in ("do", "else") else item for key, item in step.items()
        }

    assert [short(step) for step in parsed(value).source.value["do"]] == ["a", *steps]


def test_loops_of_others_need_a_limit_and_one_way_in_and_out() -> None:
    unlimited = [edge.removesuffix(" 3") for edge in REVIEW_EDGES]
    message = refused(flow(REVIEW, unlimited, REVIEW_DATA))
    assert (
        "'c4' (ControlFlowEdge): it makes a loop without a limit, from 'good?' to 'write'; write " in message
    )
    assert "metadata.verl_mas.max into it, or set max_loops" in message
    assert parsed(flow(REVIEW, unlimited, REVIEW_DATA), max_loops=4).calls == 8
    nodes = {**REVIEW, "other": branching({"x": "x"}), "late": llm("late"), "end2": END}
    two_ways = ["start other", "other:x write", "other:default check", *REVIEW_EDGES[1:]]
    message = refused(flow({k: nodes[k] for k in nodes if k not in ("late", "end2")}, two_ways, REVIEW_DATA))
    assert "(ControlFlowEdge): it leads into the middle of a loop, from '" in message
    left = [
        *REVIEW_EDGES[:2],
        "check other",
        "other:x late",
        "late end2",
        "other:default good?",
        *REVIEW_EDGES[3:],
    ]
    message = refused(flow(nodes, left, [*REVIEW_DATA, "check.generated_text other.key"]))
    assert "it leaves the loop that begins at 'write' for a second place" in message
    endless = [*REVIEW_EDGES[:2], "check write 3"]
    message = refused(flow({k: REVIEW[k] for k in ("start", "write", "check")}, endless, REVIEW_DATA[:3]))
    assert "'write' (LlmNode): the loop that begins at it has no end" in message


def test_a_loop_that_goes_on_under_a_condition_is_read() -> None:
    nodes = {**REVIEW, "good?": branching({"no": "n"})}
    data = [edge.replace("good?.word", "good?.key") for edge in REVIEW_DATA]
    edges = [*REVIEW_EDGES[:3], "good?:n write 3", "good?:default end"]
    steps = parsed(flow(nodes, edges, data)).source.value["do"]
    assert steps[0]["do"][2] == {
        "if": {"of": "check", "is": "no"},
        "do": [{"stop": {"loop": "last"}}],
        "else": [{"stop": "always"}],
    }


def test_flows_inside_nodes_are_read() -> None:
    def one(name: str) -> dict[str, Any]:
        nodes = {"s": START, name: llm(name + " {{task}}"), "e": {"type": "EndNode", "outputs": inputs(name)}}
        inner = flow(
            nodes, [f"s {name}", f"{name} e"], [f"s.task {name}.task", f"{name}.generated_text e.{name}"]
        )
        for part in inner["$referenced_components"].values():
            part["id"] = f"{name}-{part['id']}"
        parts = {f"{name}-{key}": part for key, part in inner.pop("$referenced_components").items()}
        text = json.dumps(inner)
        for key in ("s", name, "e"):
            text = text.replace(f'"$component_ref": "{key}"', f'"$component_ref": "{name}-{key}"')
        inner = json.loads(text) | {"start_node": {"$component_ref": f"{name}-s"}}
        del inner["agentspec_version"]
        return {**inner, "$referenced_components": parts}

    nodes: dict[str, Node] = {
        "start": START,
        "both": {"type": "ParallelFlowNode", "subflows": [one("p"), one("q")]},
        "then": {"type": "FlowNode", "subflow": one("r")},
        "last": llm("last {{both}}"),
        "end": END,
    }
    data = [
        "start.task both.task",
        "start.task then.task",
        "both.p last.both",
        "then.r last.both",
        "last.generated_text end.answer",
    ]
    team = parsed(flow(nodes, ["start both", "both then", "then last", "last end"], data))
    *steps, last = team.source.value["do"]
    assert steps == [
        {"parallel": [[{"call": "p", "id": "p"}], [{"call": "q", "id": "q"}]]},
        {"call": "r", "id": "r"},
    ]
    assert {**last, "sees": sorted(last["sees"])} == {"call": "last", "id": "last", "sees": ["p", "r"]}
    assert team.agents["q"].prompt == "q {env_prompt}"


def test_an_agent_with_tools_and_inputs_of_the_observation_are_read() -> None:
    agent: dict[str, Any] = {
        "component_type": "Agent",
        "name": "Helper",
        "llm_config": {"$component_ref": "x"},
        "system_prompt": "Help with {{task}} of {{level}} {and braces}",
        "human_in_the_loop": False,
        "tools": [{"component_type": "ServerTool", "name": "calculator"}],
    }
    nodes: dict[str, Node] = {
        "start": {"type": "StartNode", "inputs": inputs("env_prompt", "level")},
        "which": branching({"3": "hard"}),
        "h": {"type": "AgentNode", "agent": agent},
        "easy": llm("easy"),
        "end": END,
    }
    edges = ["start which", "which:hard h", "which:default easy", "h end", "easy end"]
    data = [
        "start.env_prompt h.task",
        "start.level h.level",
        "start.level which.key",
        "h.generated_text end.answer",
        "easy.generated_text end.answer",
    ]
    team = parsed(flow(nodes, edges, data))
    helper = team.agents["Helper"]
    assert (helper.prompt, helper.variables, helper.tools) == (
        "Help with {env_prompt} of {level} {{and braces}}",
        ["level"],
        ["calculator"],
    )
    assert team.source.value["do"][0]["if"] == {"observation": "level", "is": "3"}
    assert set(team.source.value["return"]["of"]) == {"h", "easy"}
    agent["human_in_the_loop"] = True
    assert "'Helper' (Agent): a team has no user to ask; set human_in_the_loop to false" in refused(
        flow(nodes, edges, data)
    )


def changed(**parts: Any) -> Callable[[dict[str, Any]], Any]:
    """A change of fields of components, or of the flow itself with the name `flow`."""

    def change(value: dict[str, Any]) -> Any:
        for name, fields in parts.items():
            part = value if name == "flow" else value["$referenced_components"][name]
            part.update(fields)
        return value

    return change


def written(value: dict[str, Any]) -> Any:
    del value
    return json.loads(Team.parse(PAIR).text(is_json=True, agent_spec=True))


def without_agents(value: dict[str, Any]) -> Any:
    value = written(value)
    del value["metadata"]["verl_mas"]["agents"]["Solver Agent"]
    return value


def with_facts(value: dict[str, Any], **facts: Any) -> Any:
    value = written(value)
    for part in value["$referenced_components"].values():
        if part["component_type"] == "LlmNode":
            part["metadata"]["verl_mas"].update(facts)
    return value


def chain(count: int) -> Any:
    nodes = {"start": START, **{f"n{i}": llm("x", name="n") for i in range(count)}, "end": END}
    edges = ["start n0", *(f"n{i} n{i + 1}" for i in range(count - 1)), f"n{count - 1} end"]
    return flow(nodes, edges, [f"n{count - 1}.generated_text end.answer"])


def doubled(levels: int) -> Any:
    """Flows that have the next one twice: 2 to the power of `levels` calls."""
    parts: dict[str, Any] = {}
    for level in range(levels):
        inner = {"type": "FlowNode", "subflow": {"$component_ref": f"f{level + 1}"}}
        nodes = {"start": START, "l": inner if level + 1 < levels else llm("x"), "r": inner, "end": END}
        if level + 1 == levels:
            del nodes["r"]
        order = [name for name in nodes]
        one = flow(nodes, [f"{a} {b}" for a, b in itertools.pairwise(order)])
        text = json.dumps(one)
        for name in order:
            text = text.replace(f'"$component_ref": "{name}"', f'"$component_ref": "{level}{name}"')
        one = json.loads(text.replace('"id": "', f'"id": "{level}'))
        parts |= {f"{level}{name}": part for name, part in one.pop("$referenced_components").items()}
        del one["agentspec_version"]
        parts[f"f{level}"] = one
    return {"$component_ref": "f0", "$referenced_components": parts, "agentspec_version": "26.1.0"}


def inside_itself() -> Any:
    node = {"type": "FlowNode", "subflow": {"$component_ref": "f"}}
    value = flow({"start": START, "n": node, "end": END}, ["start n", "n end"])
    del value["agentspec_version"]
    return {"$component_ref": "f", "$referenced_components": {"f": value}}


def ladder(count: int) -> Any:
    """Branches nested in each other."""
    nodes: dict[str, Node] = {"start": START, "a": llm("x {{task}}"), "end": END}
    nodes |= {f"b{i}": branching({"x": "x"}) for i in range(count)}
    nodes |= {f"n{i}": llm("y") for i in range(count)}
    edges = ["start a", "a b0"]
    data = ["start.task a.task", "a.generated_text end.answer"]
    for i in range(count):
        edges += [f"b{i}:x n{i}", f"n{i} end", f"b{i}:default {'b' + str(i + 1) if i + 1 < count else 'end'}"]
        data += [f"a.generated_text b{i}.key"]
    return flow(nodes, edges, data)


REF = {"$component_ref": "a"}
HOSTILE: dict[str, tuple[Any, str]] = {
    "10 MB": (changed(flow={"description": "x" * 10_000_000}), "larger than 256 KiB"),
    "brackets": ('{"component_type": ' + "[" * 100_000, "nested more than 100 deep"),
    "deep components": (
        '{"component_type": "Flow", "start_node": ' + '{"a": ' * 30_000,
        "nested more than 100 deep",
    ),
    "self": (
        {"$component_ref": "a", "$referenced_components": {"a": REF}},
        "the reference 'a' refers to itself",
    ),
    "circle": (
        {"$component_ref": "a", "$referenced_components": {"a": {"$component_ref": "b"}, "b": REF}},
        "the reference 'a' refers to itself",
    ),
    "flow in itself": (
        inside_itself(),
        "'flow' (Flow): flows that contain each other; a team is a finite list",
    ),
    "no such reference": (
        changed(flow={"start_node": {"$component_ref": "strat"}}),
        "no component 'strat'; did you mean 'start'? in $referenced_components",
    ),
    "list as reference": (
        changed(flow={"start_node": {"$component_ref": ["a"]}}),
        "no component ['a'] in $ref",
    ),
    "equal ids": (changed(check={"id": "write"}), "id: the id 'write' is there twice"),
    "same node twice": (
        changed(flow={"nodes": [{"$component_ref": n} for n in (*REVIEW, "check")]}),
        "'check' (LlmNode): the node is there twice",
    ),
    "unknown type": (
        changed(check={"component_type": "LlmNodes"}),
        "'check' (LlmNodes): not read; did you mean 'LlmNode'?; a team is read from LlmNode, Agent",
    ),
    "type of another kind": (
        changed(check={"component_type": "ServerTool"}),
        "'check' (ServerTool): a node must be StartNode or EndNode",
    ),
    "user": (
        changed(check={"component_type": "InputMessageNode"}),
        "'check' (InputMessageNode): no step of a team is like it; a team has no user to ask",
    ),
    "type is a long text": (changed(check={"component_type": "a\nb" * 99}), "'check' ('a\\nba\\nb"),
    "title of two lines": (
        changed(end={"outputs": inputs("a\nb", "c")}),
        "have one output, the action of the team; found 2 ('a\\nb', 'c')",
    ),
    "type is a number": (
        changed(check={"component_type": 3}),
        "a node must be a component with component_type",
    ),
    "no name": (changed(check={"name": None}), "it: LlmNode needs a name"),
    "unknown field": (changed(check={"prompt_templat": "x"}), "no field 'prompt_templat'; did you mean"),
    "prompt is a list": (
        changed(check={"prompt_template": ["x"]}),
        "prompt_template must be a text, found ['x']",
    ),
    "nodes is a text": (changed(flow={"nodes": "x"}), "'flow' (Flow): nodes must be a list, found 'x'"),
    "node is a text": (changed(flow={"nodes": ["x"]}), "a node must be a component with component_type"),
    "mapping is a list": (changed(**{"good?": {"mapping": []}}), "mapping must be a mapping, found []"),
    "branch is a number": (
        changed(**{"good?": {"mapping": {"a": 3}}}),
        "mapping must lead to names of branches",
    ),
    "branch without edge": (
        changed(**{"good?": {"mapping": {"a": "z"}}}),
        "the branch 'y' is none of its mapping",
    ),
    "metadata is a text": (changed(check={"metadata": "x"}), "metadata must be a mapping, found 'x'"),
    "facts are a text": (changed(check={"metadata": {"verl_mas": 3}}), "metadata.verl_mas must be a mapping"),
    "inputs are texts": (changed(write={"inputs": ["x"]}), "inputs must be JSON schemas with a title"),
    "structured": (
        changed(check={"outputs": inputs("a", "b")}),
        "'check' (LlmNode): it has structured outputs",
    ),
    "number": (changed(check={"outputs": [{"title": "a", "type": "integer"}]}), "it has structured outputs"),
    "version": (
        changed(flow={"agentspec_version": "99.1.0"}),
        "no version '99.1.0' that is read; versions: 25.4.1",
    ),
    "version is a list": (changed(flow={"agentspec_version": []}), "no version [] that is read"),
    "agent alone": (
        changed(flow={"component_type": "Agent"}),
        "'flow' (Agent): no step of a team is like it; a team is a Flow",
    ),
    "swarm": (
        changed(flow={"component_type": "Swarm"}),
        "'flow' (Swarm): no step of a team is like it; a team has",
    ),
    "no data edge": (changed(flow={"data_flow_connections": None}), "the input 'task' has no data edge"),
    "limit of a loop": (
        flow(REVIEW, [*REVIEW_EDGES[:4], "good?:default write 0"], REVIEW_DATA),
        "flow.json, read as a team do[0].loop: it should be greater than or equal to 1, found 0",
    ),
    "calls": (
        flow(REVIEW, [*REVIEW_EDGES[:4], "good?:default write 999999"], REVIEW_DATA),
        "more than max_calls",
    ),
    "many nodes": (chain(300), "more than 256 steps"),
    "doubled": (doubled(12), "more than 256 "),
    "ladder": (ladder(60), "nested more than 32 deep"),
    "agent is missing": (
        without_agents,
        "metadata.verl_mas of the flow has no agent 'Solver Agent', which the node",
    ),
    "agent is a list": (lambda v: with_facts(v, call=["x"]), "has no agent ['x'], which the node calls"),
    "fact is unknown": (lambda v: with_facts(v, fast=1), "read as a team do[0].do[0].fast: no such field"),
    "fact of wrong type": (
        lambda v: with_facts(v, sees=3),
        "read as a team do[0].do[0].sees: expected a list",
    ),
    "vote is no mapping": (lambda v: with_facts(v, vote=3), "vote must be a mapping, found 3"),
    "vote without end": (lambda v: with_facts(v, vote={}), "a vote ends with a ToolNode of verl_mas_vote"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_bad_file_is_refused_in_one_line_and_soon(name: str, tmp_path: Path) -> None:
    what, message = HOSTILE[name]
    value = what(flow(REVIEW, REVIEW_EDGES, REVIEW_DATA)) if callable(what) else what
    path = tmp_path / "flow.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    Team.load(FILES[0]).text(agent_spec=True)  # what is imported once
    tracemalloc.start()
    begin = cpu_seconds()
    with pytest.raises(AgentSystemError) as error:
        Team.load(path)
    seconds = cpu_seconds() - begin
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert message in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 600
    assert seconds < 1 and peak < 100e6, (seconds, peak)


def test_large_graphs_are_read_or_refused_soon() -> None:
    begin = cpu_seconds()
    assert parsed(chain(250)).calls == 250
    assert parsed(ladder(25)).calls == 2
    assert cpu_seconds() - begin < 2


def test_what_cannot_be_written_is_refused() -> None:
    text = PAIR.replace("Solve: ", "Solve {{{{name}}}}: ")
    with pytest.raises(AgentSystemError, match="no file of Open Agent Spec has this prompt"):
        Team.parse(text).text(agent_spec=True)
    once = (
        HEAD.replace(AGENTS, AGENTS[: AGENTS.index("  B")])
        + "do: [{loop: 2, do: [{call: A, id: a}, {stop: always}]}]"
    )
    with pytest.raises(AgentSystemError, match="a loop that always stops in its first round"):
        Team.parse(f"{once}\nreturn: a").text(agent_spec=True)
    spawn = f"{HEAD}do: [{{call: A, id: a}}, {{spawn: {{of: a, agent: B}}, id: b}}, {{call: C}}]\nreturn: b"
    with pytest.raises(AgentSystemError, match="Open Agent Spec has no form for spawn"):
        Team.parse(spawn).text(agent_spec=True)
    delegate = (
        HEAD.replace("  A: {", "  A: {tools: [{delegate: B}], ")
        + "do: [{call: A, id: a}, {call: C}]\nreturn: a"
    )
    with pytest.raises(AgentSystemError, match="no form for the tool delegate, which agent 'A' has"):
        Team.parse(delegate).text(agent_spec=True)


def test_a_flow_is_a_file_of_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "flow.json"
    unlimited = [edge.removesuffix(" 3") for edge in REVIEW_EDGES]
    path.write_text(json.dumps(flow(REVIEW, unlimited, REVIEW_DATA)))
    orchestra = GraphOrchestra(GraphOptions(str(path), max_loops=2))
    assert orchestra.team.calls == 4
    assert orchestra.make_agent("write", "math").prompt == "Write {env_prompt}. Review: {team_context}"
    with pytest.raises(AgentSystemError, match=r"max_loops must be 0 or more, found -1"):
        GraphOrchestra.from_options({"file": str(path), "max_loops": -1}, "graph")
