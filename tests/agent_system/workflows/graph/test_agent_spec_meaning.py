"""Flows of others whose data edges, ends, defaults or keys have no counterpart in a team are refused;
those that are read mean the same when they are played.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from agent_system import Task
from tests.agent_system.workflows.graph.agent_spec_flows import (
    END,
    START,
    Node,
    branching,
    defaulted,
    flow,
    inputs,
    llm,
    parsed,
    refused,
    subflow,
)
from tests.agent_system.workflows.graph.conftest import Play

A = llm("A {{task}}")
B = llm("B {{task}}")
OUT: Node = {"type": "EndNode", "outputs": inputs("out")}
DEFAULT_END: Node = {"type": "EndNode", "outputs": defaulted("answer", "-")}
ALL = ("start.task a.task", "start.task b.task")


def node_of(value: dict[str, Any]) -> Node:
    return {"type": "FlowNode", "subflow": value}


def two_ends(both: bool) -> dict[str, Any]:
    """A subflow whose ends hand out replies of `a` and `b`; `both`: both run before its branches."""
    nodes = {"s": START, "a": A, "b": B, "which": branching({"yes": "yes"}), "e1": OUT, "e2": OUT}
    edges = (
        ["s a", "a b", "b which", "which:yes e1", "which:default e2"]
        if both
        else ["s a", "a which", "which:yes e1", "which:default b", "b e2"]
    )
    data = ["s.task a.task", "s.task b.task", "a.generated_text e1.out", "b.generated_text e2.out"]
    return subflow("s", nodes, edges, [*data, f"{'b' if both else 'a'}.generated_text which.key"])


def around(inner: Node, reads: bool = False) -> dict[str, Any]:
    """A flow with one node that has a flow, whose output it returns or writes into a prompt."""
    nodes = {"start": START, "f": inner, "c": llm("C {{x}}"), "end": END}
    if reads:
        data = ["start.task f.task", "f.out c.x", "c.generated_text end.answer"]
        return flow(nodes, ["start f", "f c", "c end"], data)
    del nodes["c"]
    return flow(nodes, ["start f", "f end"], ["start.task f.task", "f.out end.answer"])


def skipped(**parts: Node) -> dict[str, Any]:
    """A flow where `b` runs only if `a` says so; `c` has its reply as `x`."""
    nodes = {"start": START, "a": A, "which": branching({"x": "go"}), "b": B, "c": llm("C {{x}}"), "end": END}
    edges = ["start a", "a which", "which:go b", "which:default c", "b c", "c end"]
    data = [*ALL, "a.generated_text which.key", "b.generated_text c.x", "c.generated_text end.answer"]
    return flow({**nodes, **parts}, edges, data)


def maybe(end: Node = OUT) -> dict[str, Any]:
    """A subflow that hands out the reply of `b`, which runs only if `a` says so."""
    nodes = {"s": START, "a": A, "which": branching({"x": "go"}), "b": B, "e": end}
    edges = ["s a", "a which", "which:go b", "which:default e", "b e"]
    data = ["s.task a.task", "s.task b.task", "a.generated_text which.key", "b.generated_text e.out"]
    return subflow("s", nodes, edges, data)


def ended(first: Node, second: Node, data: Sequence[str]) -> dict[str, Any]:
    """A flow of `a`, which chooses `b` before the second end, or the first one."""
    nodes = {"start": START, "a": A, "which": branching({"x": "x"}), "b": B, "end": first, "end2": second}
    edges = ["start a", "a which", "which:x end", "which:default b", "b end2"]
    return flow(nodes, edges, [*ALL, "a.generated_text which.key", *data])


def default_behind() -> dict[str, Any]:
    """A flow whose second end hands out the reply of `b`, which may not have run, or a default."""
    nodes = {
        "start": START, "a": A, "which": branching({"x": "x"}), "which2": branching({"y": "y"}), "b": B,
        "end": END, "end2": DEFAULT_END,
    }  # fmt: skip
    edges = ["start a", "a which", "which:x end", "which:default which2", "which2:y b", "b end2"]
    data = ["a.generated_text which.key", "a.generated_text which2.key", "a.generated_text end.answer"]
    return flow(nodes, [*edges, "which2:default end2"], [*ALL, *data, "b.generated_text end2.answer"])


def looped(inner: dict[str, Any], data: Sequence[str]) -> dict[str, Any]:
    """A flow that runs a subflow and `c` up to three times."""
    nodes = {
        "start": START, "f": node_of(inner), "c": llm("C"), "again": branching({"no": "no"}), "end": END,
    }  # fmt: skip
    edges = ["start f", "f c", "c again", "again:no end", "again:default f 3"]
    return flow(nodes, edges, ["c.generated_text again.key", "c.generated_text end.answer", *data])


def stale(prompt: Node) -> dict[str, Any]:
    """A subflow in a loop where `d` has a reply of `b`, which did not run in every round."""
    nodes = {"s": START, "a": A, "which": branching({"x": "go"}), "b": B, "d": prompt, "e": OUT}
    edges = ["s a", "a which", "which:go b", "which:default d", "b d", "d e"]
    data = ["s.task a.task", "s.task b.task", "a.generated_text which.key", "b.generated_text d.x"]
    return looped(subflow("s", nodes, edges, data), ["start.task f.task"])


def parallel(*flows: dict[str, Any]) -> Node:
    return {"type": "ParallelFlowNode", "subflows": list(flows)}


def one(name: str, start: str, end: str) -> dict[str, Any]:
    """A subflow with one call."""
    nodes = {start: START, name: llm(f"{name} {{{{task}}}}"), end: OUT}
    data = [f"{start}.task {name}.task", f"{name}.generated_text {end}.out"]
    return subflow(start, nodes, [f"{start} {name}", f"{name} {end}"], data)


def passed() -> dict[str, Any]:
    nodes = {"s": START, "a": A, "e": OUT}
    return subflow("s", nodes, ["s a", "a e"], ["s.task a.task", "s.task e.out"])


def defaults(first: str, second: str) -> dict[str, Any]:
    nodes: dict[str, Node] = {
        "start": START, "a": A, "which": branching({"x": "x", "y": "y"}), "b": B, "end3": END,
        "end": {"type": "EndNode", "outputs": defaulted("answer", first)},
        "end2": {"type": "EndNode", "outputs": defaulted("answer", second)},
    }  # fmt: skip
    edges = ["start a", "a which", "which:x end", "which:y end2", "which:default b", "b end3"]
    return flow(nodes, edges, [*ALL, "a.generated_text which.key", "b.generated_text end3.answer"])


def compared(default: str | None) -> dict[str, Any]:
    """A flow where `which2` compares the reply of `b`, which runs only if `a` says so."""
    second = branching({"yes": "yes"}, inputs=inputs("k") if default is None else defaulted("k", default))
    nodes = {
        "start": START, "a": A, "which": branching({"x": "go"}), "b": B, "which2": second,
        "c": llm("C"), "d": llm("D"), "end": END,
    }  # fmt: skip
    edges = [
        "start a", "a which", "which:go b", "which:default which2", "b which2", "which2:yes c",
        "which2:default d", "c end", "d end",
    ]  # fmt: skip
    data = ["a.generated_text which.key", "b.generated_text which2.k", "a.generated_text end.answer"]
    return flow(nodes, edges, [*ALL, *data])


def observed(**start: Any) -> dict[str, Any]:
    nodes: dict[str, Node] = {
        "start": {"type": "StartNode", **start}, "a": llm("A {{q}} {{r}}"), "end": END,
    }  # fmt: skip
    data = ["start.q a.q", "start.r a.r", "a.generated_text end.answer"]
    return flow(nodes, ["start a", "a end"], data, inputs=inputs("q", "r"))


def keys(mapping: dict[str, str], **more: Any) -> dict[str, Any]:
    nodes = {"start": START, "a": A, "which": branching(mapping, **more), "b": B, "c": llm("C"), "end": END}
    edges = ["start a", "a which", *(f"which:{n} {t}" for n, t in zip(mapping.values(), "bc", strict=False))]
    edges += ["which:default end", "b end", "c end"]
    return flow(nodes, edges, [*ALL, "a.generated_text which.key", "a.generated_text end.answer"])


def inside_loop(first: str, second: str) -> dict[str, Any]:
    """A loop of `a` and `b` that two ends leave, with a reply each."""
    nodes = {
        "start": START, "a": A, "w1": branching({"x": "x"}), "b": B, "w2": branching({"y": "y"}),
        "end": END, "end2": END,
    }  # fmt: skip
    edges = ["start a", "a w1", "w1:x end", "w1:default b", "b w2", "w2:y end2", "w2:default a 3"]
    data = [
        *ALL, "a.generated_text w1.key", "b.generated_text w2.key",
        f"{first}.generated_text end.answer", f"{second}.generated_text end2.answer",
    ]  # fmt: skip
    return flow(nodes, edges, data)


ENDS = "'f' (FlowNode): EndNodes of its flow hand out 'out' of different nodes; put the flow's nodes in its"
REFUSED: dict[str, tuple[Any, str]] = {
    "ends of a subflow": (around(node_of(two_ends(False))), ENDS),
    "ends of a subflow behind both": (around(node_of(two_ends(True))), ENDS),
    "ends of a subflow in a prompt": (around(node_of(two_ends(True)), reads=True), ENDS),
    "ends of a parallel flow": (
        around(parallel(two_ends(False), one("p", "s1", "e0")), reads=True),
        "'f' (ParallelFlowNode): EndNodes of its flow hand out 'out' of different nodes",
    ),
    "one output of two parallel flows": (
        around(parallel(one("p", "s1", "e1"), one("q", "s2", "e2")), reads=True),
        "'f' (ParallelFlowNode): its output 'out' must come from a data edge of one flow, found 2",
    ),
    "nested flows": (
        around(
            node_of(
                subflow(
                    "s0",
                    {"s0": START, "g": node_of(two_ends(True)), "e0": OUT},
                    ["s0 g", "g e0"],
                    ["s0.task g.task", "g.out e0.out"],
                )
            )
        ),
        "'g' (FlowNode): EndNodes of its flow hand out 'out' of different nodes",
    ),
    "two defaults": (
        defaults("left", "right"),
        "'flow' (Flow): its output 'answer' has the defaults 'left' and 'right'; a team has one: write the",
    ),
    "default of a branch": (
        compared("yes"),
        "'which2' (BranchingNode): its input 'k' has the default 'yes', but a condition does not hold where",
    ),
    "no default of a branch": (
        compared(None),
        "'which2' (BranchingNode): the input 'k' has no value on a way past the node that gives it; let that",
    ),
    "equal keys": (
        keys({"yes": "x", " yes": "y"}),
        "'which' (BranchingNode): a condition compares texts without spaces around; write 'yes' for the key "
        "' yes' of its mapping",
    ),
    "two inputs of a branch": (
        keys({"yes": "x", "no": "y"}, inputs=inputs("key", "other")),
        "'which' (BranchingNode): it must have one input, found 2",
    ),
    "a prompt without a value": (
        skipped(),
        "'c' (LlmNode): the input 'x' has no value on a way past the node that gives it; let that node run "
        "on every way, or give the input a default",
    ),
    "a default that is no text": (
        skipped(c=llm("C {{x}}", inputs=defaulted("x", ["-"]))),
        "'c' (LlmNode): the default of the input 'x' must be a text",
    ),
    "a subflow without a value": (
        around(node_of(maybe()), reads=True),
        "'e' (EndNode): the input 'out' has no value on a way past the node that gives it",
    ),
    "a subflow with a default": (
        around(node_of(maybe(end={"type": "EndNode", "outputs": defaulted("out", "-")}))),
        "'e' (EndNode): the input 'out' has no value on a way past the node that gives it",
    ),
    "an input that is handed out": (
        around(node_of(passed()), reads=True),
        "'e' (EndNode): it hands out the input 'out' of its flow; take it from the node before the flow",
    ),
    "an earlier round of a subflow": (
        stale(llm("D {{x}}", inputs=defaulted("x", "-"))),
        "'d' (LlmNode): the input 'x' has no value on a way past the node that gives it; let that node run "
        "on every way: its flow runs in a loop",
    ),
    "an output that is the own input": (
        looped(one("a", "s", "e"), ["start.task f.task", "f.out f.task"]),
        "'f' (FlowNode): the input 'task' is its own output; put the flow's nodes in its place",
    ),
    "an end without the output": (
        ended(END, {"type": "EndNode"}, ["a.generated_text end.answer"]),
        "'end2' (EndNode): the step 'a' runs before it, but it returns an earlier one",
    ),
    "a default where another step ran": (
        default_behind(),
        "'end2' (EndNode): the step 'a' runs before it, but it returns an earlier one",
    ),
    "an end without a value": (
        ended(END, END, ["b.generated_text end2.answer"]),
        "'end' (EndNode): no node gives its output 'answer' on a way to it; give it a default",
    ),
    "ends in a loop": (
        inside_loop("a", "b"),
        "'flow' (Flow): it returns the newest of 'a' and 'b', which repeat; return one of them",
    ),
    "an output that the start has not": (
        observed(outputs=inputs("q")),
        "'start' (StartNode): a data edge begins at its output 'r', which it has not",
    ),
    "a default of an observation": (
        observed(inputs=[*inputs("q"), *defaulted("r", "-")]),
        "'start' (StartNode): the input 'r' has a default, but an observation has no defaults; remove it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_team_would_read_as_something_else_is_refused(name: str) -> None:
    value, message = REFUSED[name]
    assert message in refused(value)


async def played(make_team: Play, value: Any, **replies: str) -> list[str]:
    """The prompts of a turn."""
    texts = {name: [text] for name, text in replies.items()}
    result = await make_team(json.dumps(value), texts).collect([Task("t", "q", "demo", "42")], 1, step=0)
    return [sample.request.messages[0]["content"] for sample in result.episodes[0].samples]


@pytest.mark.parametrize("start", [{"outputs": inputs("q", "r")}, {}, {"inputs": inputs("q", "r")}])
def test_inputs_are_those_of_the_start_or_of_the_flow(start: dict[str, Any]) -> None:
    agent = parsed(observed(**start)).agents["a"]
    assert (agent.prompt, agent.variables) == ("A {q} {r}", ["q", "r"])


def test_ends_of_a_subflow_may_hand_out_one_step() -> None:
    nodes = {"s": START, "a": A, "which": branching({"x": "x"}), "b": B, "e1": OUT, "e2": OUT}
    edges = ["s a", "a which", "which:x b", "b e1", "which:default e2"]
    data = ["s.task a.task", "s.task b.task", "a.generated_text which.key"]
    data += ["a.generated_text e1.out", "a.generated_text e2.out"]
    value = parsed(around(node_of(subflow("s", nodes, edges, data)))).source.value
    assert value["return"] == {"of": ["a"]}
    assert [step.get("call") for step in value["do"]] == ["a", None]


def test_ends_in_a_loop_may_hand_out_one_step() -> None:
    assert parsed(inside_loop("a", "a")).source.value["return"] == {"of": ["a"]}


def test_equal_defaults_are_one() -> None:
    assert parsed(defaults("left", "left")).source.value["return"] == {"of": ["b"], "default": "left"}


async def test_a_default_fills_a_prompt_where_a_node_has_not_run(make_team: Play) -> None:
    value = skipped(c=llm("C {{x}}", inputs=defaulted("x", "nothing")))
    assert await played(make_team, value, a="no", b="0", c="1") == ["A q", "C nothing"]
    assert await played(make_team, value, a="x", b="b's", c="1") == ["A q", "B q", "C b's"]


async def test_a_default_of_the_agent_is_that_of_its_node(make_team: Play) -> None:
    agent: dict[str, Any] = {
        "component_type": "Agent", "name": "c", "llm_config": {"$component_ref": "x"},
        "system_prompt": "C {{x}}", "human_in_the_loop": False, "inputs": defaulted("x", "nothing"),
    }  # fmt: skip
    value = skipped(c={"type": "AgentNode", "agent": {**agent, "id": "agent"}})
    assert await played(make_team, value, a="no", b="0", c="1") == ["A q", "C nothing"]


async def test_a_default_that_leads_to_the_default_branch_is_read(make_team: Play) -> None:
    value = compared("other")
    assert await played(make_team, value, a="no", b="0", c="1", d="2") == ["A q", "D"]
    assert await played(make_team, value, a="x", b="yes", c="1", d="2") == ["A q", "B q", "C"]
