"""A team as a flow of Open Agent Spec.

Calls are LlmNodes, with a system message or tools AgentNodes; `if`, `unless` and `stop` are
BranchingNodes, a loop is an edge back, branches are the flows of a ParallelFlowNode, and a vote is
a ParallelMapNode between a tool that copies and a tool that counts. Data edges carry the newest
reply that a prompt quotes. What the format has no field for stands in `metadata.verl_mas`.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

from agent_system.errors import AgentSystemError
from agent_system.workflows.graph.agent_spec import (
    BRANCH_INPUT,
    COPIES_TOOL,
    DEFAULT_BRANCH,
    FACTS,
    REPLY,
    VERSION,
    VOTE_TOOL,
    placeholders,
    template_of,
)
from agent_system.workflows.graph.schema import AgentSpec, TeamSpec
from verl.utils.names import slug

# A control edge that has no target yet: a node and its branch.
Ends = list[tuple[str, str | None]]
Step = Mapping[str, Any]
CONTEXT = "team_context"
TASK = "env_prompt"
YES = "yes"
LIST = {"type": "array", "items": {"type": "string"}}


def flow_of(value: Mapping[str, Any], spec: TeamSpec, agents: Mapping[str, AgentSpec]) -> dict[str, Any]:
    """Return a team as a component of Open Agent Spec.

    Args:
        value: the team file.
        spec: its parts.
        agents: its agents, those with `like` completed.

    Raises:
        AgentSystemError: what the format cannot say.
    """
    return _TeamWriter(value, spec, agents).flow()


def _text(title: str, default: str | None = None) -> dict[str, Any]:
    return {"title": title, "type": "string", **({} if default is None else {"default": default})}


def _ref(name: str) -> dict[str, str]:
    return {"$component_ref": name}


def _branches(step: Step) -> list[list[Step]]:
    return [branch if isinstance(branch, list) else [branch] for branch in step["parallel"]]


class _TeamWriter:
    """Writes a whole team.

    Attributes:
        components: what `$referenced_components` has, by id.
        inputs: the inputs of every flow.
    """

    def __init__(self, value: Mapping[str, Any], spec: TeamSpec, agents: Mapping[str, AgentSpec]) -> None:
        self._value = value
        self._spec = spec
        self._agents = agents
        self._count = 0
        self.components: dict[str, dict[str, Any]] = {}
        names = {name: None for agent in agents.values() for name in placeholders(self.template(agent))}
        observed = [c for c in _observed(value["do"]) if c.isidentifier()]
        others = [name for name in (*names, *observed) if name not in (TASK, CONTEXT)]
        self.inputs = [_text(TASK), _text(CONTEXT, ""), *(_text(n, "") for n in dict.fromkeys(others))]

    def flow(self) -> dict[str, Any]:
        """Return the flow."""
        returned = self._spec.return_
        writer = _FlowWriter(self)
        output = _text("answer", returned.default or "")
        flow = writer.whole("team", self._value["do"], output, returned.of)
        facts = {"agents": {name: self._fields(name) for name in self._agents}}
        facts |= {key: self._value[key] for key in ("team", "return", "memory") if key in self._value}
        flow["metadata"] = {FACTS: facts}
        return {**flow, "$referenced_components": self.components, "agentspec_version": VERSION}

    def add(self, kind: str, name: str, **fields: Any) -> str:
        """Add a component and return its id."""
        self._count += 1
        number = f"{slug(name) or 'node'}-{self._count}"
        self.components[number] = {"component_type": kind, "id": number, "name": name, **fields}
        return number

    def edge(self, kind: str, name: str, **fields: Any) -> dict[str, Any]:
        """Return a component that stands where it is used."""
        self._count += 1
        return {"component_type": kind, "id": f"edge-{self._count}", "name": name, **fields}

    def _fields(self, name: str) -> dict[str, Any]:
        """Return what the nodes of an agent do not say."""
        agent = self._agents[name]
        fields = agent.model_dump(by_alias=True, exclude_unset=True, exclude={"like"})
        if agent.class_ is None:
            fields.pop("prompt")
            fields.pop("tools", None)
        like = self._spec.agents[name].like
        return fields if like is None else {**fields, "like": like}

    def template(self, agent: AgentSpec) -> str:
        """Return an agent's messages as one template."""
        prompt = agent.prompt or f"{{{TASK}}}{{{CONTEXT}}}"
        text = f"{agent.system}\n\n{prompt}" if agent.system else prompt
        template = template_of(text) if agent.class_ is None else _written(text)
        if template is None:
            raise AgentSystemError(
                "no file of Open Agent Spec has this prompt: text such as {{name}} would be an input there, "
                f"and it cannot be written otherwise: {text[:60]!r}"
            )
        return template

    def call(self, name: str, facts: Mapping[str, Any]) -> str:
        """Add the node of a call and return its id."""
        agent = self._agents[name]
        template = self.template(agent)
        inputs = [_text(title, None if title == TASK else "") for title in placeholders(template)]
        shared = {"inputs": inputs, "outputs": [_text(REPLY)]}
        metadata = {FACTS: {"call": name, **facts}}
        model = self._model(name)
        if agent.system is None and not agent.tools:
            fields = {"llm_config": _ref(model), "prompt_template": template}
            return self.add("LlmNode", name, metadata=metadata, **shared, **fields)
        names = [tool for tool in agent.tools if isinstance(tool, str)]
        if len(names) < len(agent.tools):
            raise AgentSystemError(
                f"Open Agent Spec has no form for the tool delegate, which agent {name!r} has"
            )
        tools = [self.edge("ServerTool", tool, description=f"The tool {tool}.") for tool in names]
        whole = self.edge(
            "Agent", name, llm_config=_ref(model), system_prompt=template, tools=tools,
            human_in_the_loop=False, **shared,
        )  # fmt: skip
        return self.add("AgentNode", name, metadata=metadata, agent=whole, **shared)

    def _model(self, agent: str) -> str:
        """Return the id of the model of an agent."""
        name = f"policy of {agent}"
        for number, part in self.components.items():
            if part["component_type"] == "OpenAiCompatibleConfig" and part["name"] == name:
                return number
        url = "http://127.0.0.1:8000/v1"
        return self.add("OpenAiCompatibleConfig", name, model_id=slug(agent), url=url)


def _written(prompt: str) -> str:
    """Return the inputs of a class's prompt alone, where its text has no template."""
    names = [name for _, name, _, _ in string.Formatter().parse(prompt) if name is not None]
    return template_of(prompt) or "".join(f"{{{{{name}}}}}" for name in names)


def _observed(value: Any) -> list[str]:
    """Return the keys of the observation that conditions compare."""
    if isinstance(value, list):
        return [key for item in value for key in _observed(item)]
    if not isinstance(value, dict):
        return []
    keys = [value["observation"]] if isinstance(value.get("observation"), str) else []
    return [*keys, *(key for item in value.values() for key in _observed(item))]


class _FlowWriter:
    """Writes one flow."""

    def __init__(self, team: _TeamWriter) -> None:
        self._team = team
        self._nodes: list[str] = []
        self._control: list[dict[str, Any]] = []
        self._data: list[dict[str, Any]] = []
        self._sources: dict[str, list[str]] = {}
        # The output of each node with a reply, and the nodes of each step.
        self._replies: dict[str, list[str]] = {}
        self._steps: dict[str, list[tuple[str, str]]] = {}
        # Inputs that take the replies of steps; of the newest ones where it is None.
        self._readers: list[tuple[str, str, Sequence[str] | None]] = []

    def whole(
        self, name: str, steps: Sequence[Step], output: dict[str, Any], returned: Sequence[str] | None
    ) -> dict[str, Any]:
        """Return the flow of steps; its output is the reply of `returned`, of the newest step if
        None.
        """
        inputs = self._team.inputs
        start = self._node("StartNode", "start", [], inputs=inputs, outputs=inputs)
        self._replies[start] = [CONTEXT]
        stopped: Ends = []
        ends = self.steps(steps, [(start, None)], stopped)
        for label, final, facts in (("end", ends, {}), ("stopped", stopped, {"stop": True})):
            if final:
                fields = {"inputs": [output], "outputs": [output], "metadata": {FACTS: facts}}
                end = self._node("EndNode", label, final, **fields)
                self._readers.append((end, output["title"], returned))
        self._wire()
        return self._team.edge(
            "Flow", name, inputs=inputs, outputs=[output], start_node=_ref(start),
            nodes=[_ref(node) for node in self._nodes], control_flow_connections=self._control,
            data_flow_connections=self._data,
        )  # fmt: skip

    # control

    def steps(self, steps: Sequence[Step], ends: Ends, stopped: Ends) -> Ends:
        """Write steps behind `ends` and return their own ends; `stopped` takes those of `stop`."""
        for step in steps:
            ends = self._step(step, ends, stopped)
        return ends

    def _step(self, step: Step, ends: Ends, stopped: Ends) -> Ends:
        if "call" in step:
            return self._call(step, ends)
        if "vote" in step:
            return self._vote(step, ends)
        if "loop" in step:
            return self._loop(step, ends)
        if "parallel" in step:
            return [(self._parallel(step, ends), None)]
        if "if" in step:
            return self._if(step, ends, stopped)
        if "spawn" in step:
            raise AgentSystemError(
                "Open Agent Spec has no form for spawn, whose number of calls a reply decides"
            )
        if step["stop"] == "always":
            stopped += ends
            return []
        choice = self._branching(step, step["stop"], ends)
        stopped.append((choice, YES))
        return [(choice, DEFAULT_BRANCH)]

    def _if(self, step: Step, ends: Ends, stopped: Ends) -> Ends:
        facts = {key: value for key, value in step.items() if key != "do" and (key != "else" or not value)}
        choice = self._branching(facts, step["if"], ends)
        arms = [self.steps(step["do"], [(choice, YES)], stopped)]
        arms.append(self.steps(step.get("else", []), [(choice, DEFAULT_BRANCH)], stopped))
        ends = arms[0] + arms[1]
        if step.get("else") and ends and not all(arms):
            # without it the other arm could as well be the steps behind
            meeting = self._nothing("meet", ends)
            self._team.components[choice]["metadata"][FACTS]["meet"] = meeting
            ends = [(meeting, DEFAULT_BRANCH)]
        return ends

    def _nothing(self, name: str, ends: Ends) -> str:
        """Add a node that does nothing."""
        return self._node(
            "BranchingNode", name, ends, mapping={}, inputs=[_text(BRANCH_INPUT, "")],
            metadata={FACTS: {"nothing": True}},
        )  # fmt: skip

    def _connect(self, ends: Ends, target: str, facts: Mapping[str, Any] | None = None) -> None:
        metadata = {"metadata": {FACTS: facts}} if facts else {}
        for node, branch in ends:
            self._sources.setdefault(target, []).append(node)
            fields = {"from_node": _ref(node), "from_branch": branch, "to_node": _ref(target)}
            self._control.append(
                self._team.edge("ControlFlowEdge", f"{node} to {target}", **fields, **metadata)
            )

    def _node(self, kind: str, name: str, ends: Ends, **fields: Any) -> str:
        node = self._team.add(kind, name, **fields)
        return self._placed(node, ends)

    def _placed(self, node: str, ends: Ends) -> str:
        self._nodes.append(node)
        self._connect(ends, node)
        return node

    def _branching(self, facts: Step, condition: Any, ends: Ends, key: str = YES) -> str:
        """Add a BranchingNode. What it compares is the whole reply, and without a text `true`."""
        condition = condition if isinstance(condition, dict) else {}
        values = condition.get("in", [condition.get("is", True)])
        texts = [value if isinstance(value, str) else str(value).lower() for value in values]
        node = self._node(
            "BranchingNode", "branch", ends, metadata={FACTS: dict(facts)},
            mapping=dict.fromkeys(texts, key), inputs=[_text(BRANCH_INPUT, "")],
        )  # fmt: skip
        if "of" in condition:
            self._readers.append((node, BRANCH_INPUT, [condition["of"]]))
        elif any(item["title"] == condition.get("observation") for item in self._team.inputs):
            self._edge(self._nodes[0], condition["observation"], node, BRANCH_INPUT)
        return node

    def _loop(self, step: Step, ends: Ends) -> Ends:
        steps = step["do"]
        first = len(self._nodes)
        if "loop" in steps[0]:  # two loops would begin at one node
            ends = [(self._nothing("begin", ends), DEFAULT_BRANCH)]
        left: Ends = []
        ends = self.steps(steps, ends, left)
        if not ends:
            raise AgentSystemError("a loop that always stops in its first round is none; leave it out")
        limit = {"max": step["loop"]}
        if "stop" in steps[-1]:
            self._connect(ends, self._nodes[first], limit)
            return left
        rounds = self._branching({"rounds": True}, {"is": "done"}, ends, "done")
        self._connect([(rounds, DEFAULT_BRANCH)], self._nodes[first], limit)
        return [*left, (rounds, "done")]

    # calls

    def _call(self, step: Step, ends: Ends) -> Ends:
        facts = {key: step[key] for key in step if key != "call" and (key != "unless" or step[key] is None)}
        skipped: Ends = []
        if step.get("unless") is not None:
            choice = self._branching({"unless": step["unless"]}, step["unless"], ends)
            ends = [(choice, DEFAULT_BRANCH)]
            skipped = [(choice, YES)]
        node = self._called(step["call"], facts, ends, step.get("sees"))
        self._reply(step, node, REPLY)
        return [*skipped, (node, None)]

    def _called(self, agent: str, facts: Step, ends: Ends, sees: Sequence[str] | None) -> str:
        node = self._placed(self._team.call(agent, facts), ends)
        for item in self._team.components[node]["inputs"]:
            if item["title"] == CONTEXT:
                self._readers.append((node, CONTEXT, sees))
            else:
                self._edge(self._nodes[0], item["title"], node, item["title"])
        return node

    def _reply(self, step: Step, node: str, output: str) -> None:
        self._replies.setdefault(node, []).append(output)
        if step.get("id") is not None:
            self._steps.setdefault(step["id"], []).append((node, output))

    def _parallel(self, step: Step, ends: Ends) -> str:
        outputs: list[dict[str, Any]] = []
        flows: list[dict[str, Any]] = []
        names: list[list[str]] = []
        for number, branch in enumerate(_branches(step), 1):
            writer = _FlowWriter(self._team)
            outputs.append(_text(f"reply_{number}", ""))
            flows.append(writer.whole(f"branch {number}", branch, outputs[-1], None))
            names.append(list(writer._steps))
        node = self._node(
            "ParallelFlowNode", "parallel", ends, subflows=flows, inputs=self._team.inputs, outputs=outputs
        )
        self._pass_inputs(node)
        self._replies[node] = [output["title"] for output in outputs]
        for output, steps in zip(outputs, names, strict=True):
            for name in steps:
                self._steps.setdefault(name, []).append((node, output["title"]))
        return node

    def _pass_inputs(self, node: str, prefix: str = "", without: str = CONTEXT) -> None:
        self._readers.append((node, f"{prefix}{CONTEXT}", None))
        for item in self._team.inputs:
            if item["title"] not in (CONTEXT, without):
                self._edge(self._nodes[0], item["title"], node, f"{prefix}{item['title']}")

    # votes

    def _vote(self, step: Step, ends: Ends) -> Ends:
        of_steps = isinstance(step["vote"], list)
        derived = ("n", "best") if of_steps else ("n", "best", "vote")
        rest = {key: step[key] for key in step if key not in derived or (key == "best" and step[key] is None)}
        facts: dict[str, Any] = {"vote": rest}
        part = {"part": True}
        if not of_steps:
            mapped = self._copies(step, ends, facts)
            ends = [(mapped, None)]
            facts = part
        if step.get("best") is not None:
            judge = self._called(step["best"], facts, ends, step["vote"] if of_steps else None)
            if not of_steps:
                self._readers = [reader for reader in self._readers if reader[:2] != (judge, CONTEXT)]
                if CONTEXT in [item["title"] for item in self._team.components[judge]["inputs"]]:
                    self._edge(mapped, f"collected_{REPLY}", judge, CONTEXT)
            ends = [(judge, None)]
            facts = part
        inputs = (
            [_text(f"reply_{n}", "") for n in range(1, len(step["vote"]) + 1)]
            if of_steps
            else [{"title": "replies", **LIST}]
        )
        inputs.append(_text("choice", ""))
        name = f"{VOTE_TOOL}_of_steps" if of_steps else VOTE_TOOL
        node = self._tool(name, "The most frequent reply.", ends, facts, inputs, _text(REPLY))
        if of_steps:
            for number, source in enumerate(step["vote"], 1):
                self._readers.append((node, f"reply_{number}", [source]))
        else:
            self._edge(mapped, f"collected_{REPLY}", node, "replies")
        if step.get("best") is not None:
            self._edge(judge, REPLY, node, "choice")
        self._reply(step, node, REPLY)
        return [(node, None)]

    def _copies(self, step: Step, ends: Ends, facts: Step) -> str:
        """Add the calls of a vote and return the node that has their replies as a list."""
        count = {"title": "n", "type": "integer", "default": step["n"]}
        copies = self._tool(
            COPIES_TOOL, "A list of n copies of a text.", ends, facts, [_text("text"), count],
            {"title": "copies", **LIST},
        )  # fmt: skip
        self._edge(self._nodes[0], TASK, copies, "text")
        writer = _FlowWriter(self._team)
        flow = writer.whole("vote", [{"call": step["vote"]}], _text(REPLY), None)
        inputs = [
            {"title": f"iterated_{item['title']}", "anyOf": [item, {"type": "array", "items": item}]}
            | ({"default": item["default"]} if "default" in item else {})
            for item in self._team.inputs
        ]
        collected = {"title": f"collected_{REPLY}", "type": "array", "items": _text(REPLY)}
        node = self._node(
            "ParallelMapNode", "votes", [(copies, None)], subflow=flow, reducers={REPLY: "append"},
            inputs=inputs, outputs=[collected], metadata={FACTS: {"part": True}},
        )  # fmt: skip
        self._edge(copies, "copies", node, f"iterated_{TASK}")
        self._pass_inputs(node, "iterated_", TASK)
        self._readers[-1] = (node, f"iterated_{CONTEXT}", step.get("sees"))
        return node

    def _tool(
        self, name: str, description: str, ends: Ends, facts: Step, inputs: list[Any], output: dict[str, Any]
    ) -> str:
        shared = {"inputs": inputs, "outputs": [output]}
        tool = self._team.edge("ServerTool", name, description=description, **shared)
        return self._node("ToolNode", name, ends, tool=tool, metadata={FACTS: dict(facts)}, **shared)

    # data

    def _edge(self, source: str, output: str, target: str, name: str) -> None:
        fields = {"source_node": _ref(source), "source_output": output}
        fields |= {"destination_node": _ref(target), "destination_input": name}
        self._data.append(self._team.edge("DataFlowEdge", f"{output} to {target}", **fields))

    def _wire(self) -> None:
        """Write the data edges of replies: those of steps, or of the newest ones."""
        newest = self._newest()
        for node, name, steps in self._readers:
            if steps is None:
                sources = [(source, o) for source in newest[node] for o in self._replies[source]]
            else:
                sources = [place for step in steps for place in self._steps.get(step, ())]
            for source, output in dict.fromkeys(sources):
                self._edge(source, output, node, name)

    def _newest(self) -> dict[str, dict[str, None]]:
        """Return for every node the nodes whose reply can be the newest one when it runs."""
        newest: dict[str, dict[str, None]] = {node: {} for node in self._nodes}
        changed = True
        while changed:
            changed = False
            for node in self._nodes:
                before = len(newest[node])
                for source in self._sources.get(node, ()):
                    newest[node] |= {source: None} if source in self._replies else newest[source]
                changed |= len(newest[node]) != before
        return newest
