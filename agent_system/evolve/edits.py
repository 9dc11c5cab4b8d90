"""Edits of a team: small values that make another team of one, or are refused with a reason.

An edit changes the values of the file, and the new file is read and checked like any other, so no
invalid team exists.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from agent_system.errors import AgentSystemError
from agent_system.workflows.graph.schema import KINDS, Step
from agent_system.workflows.graph.source import KeyPath, lookup, short, write_text
from agent_system.workflows.graph.team import Team
from verl.utils.names import did_you_mean

MAX_EDITS = 3
# Lists of a text that are read.
MOST_LISTS = 100
_LIST = re.compile(r"\[\s*\{")
_JSON = json.JSONDecoder()
_PATH = re.compile(r"([A-Za-z_]+)|\[([0-9]{1,4})\]")
Value = dict[str, Any]


class EditRefused(AgentSystemError):
    """An edit that does not fit the team, or whose team is refused; the message says why."""


@dataclass(frozen=True)
class Parts:
    """What edits take from other files.

    Attributes:
        agents: agents of the files by name, as values of the files; of equal names the first.
        prompts: prompts that the files have for an agent, by its name.
        steps: all steps of the files that call agents, with those inside them.
        conditions: all conditions of the files.
        sentences: sentences of their prompts without fields.
        max_calls, tools: arguments of `Team.parse`.
        run_agents: names of the run's agents, which a new agent of a file may not have: it would
            be served as that one is.
    """

    agents: Mapping[str, Value]
    prompts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    steps: Sequence[Value] = ()
    conditions: Sequence[Value] = ()
    sentences: Sequence[str] = ()
    max_calls: int = 32
    tools: Collection[str] = ()
    run_agents: Collection[str] = ()

    @classmethod
    def of(
        cls,
        teams: Sequence[Team],
        max_calls: int = 32,
        tools: Collection[str] = (),
        run_agents: Collection[str] = (),
    ) -> Parts:
        """Return the parts of teams."""
        agents: dict[str, Value] = {}
        prompts: dict[str, list[str]] = {}
        steps: list[Value] = []
        conditions: list[Value] = []
        for team in teams:
            value = normal(team.source.value)
            for name, agent in value["agents"].items():
                agents.setdefault(name, agent)
                if prompt := agent.get("prompt"):
                    prompts.setdefault(name, []).append(prompt)
            for _, step in walk(value["do"]):
                steps += [step] if result_of(step) else []
                conditions += [c for key in ("if", "unless", "stop") if isinstance(c := step.get(key), dict)]
        every_prompt = [text for texts in prompts.values() for text in texts]
        found_sentences = [s for text in every_prompt for s in sentences(text) if "{" not in s and s.strip()]
        return cls(
            agents,
            {name: list(dict.fromkeys(texts)) for name, texts in prompts.items()},
            steps,
            conditions,
            list(dict.fromkeys(s.strip() for s in found_sentences)),
            max_calls,
            tools,
            run_agents,
        )

    def team(self, value: Value, name: str = "team") -> Team:
        """Return the team of a value. Raise EditRefused with the error of its file."""
        try:
            text = write_text(value, is_json=True)
            return Team.parse(text, name=name, is_json=True, max_calls=self.max_calls, tools=self.tools)
        except AgentSystemError as error:
            raise EditRefused(str(error).partition(f"{name}:")[2].partition(" ")[2] or str(error)) from error


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, each with the white space behind it."""
    return re.findall(r".+?(?:[.!?]\s+|\n+|$)", text, re.DOTALL)


def kind_of(step: Mapping[str, Any]) -> str:
    """Return the kind of a step."""
    return next((kind for kind in KINDS if kind in step), "")


def inner_lists(step: Mapping[str, Any]) -> Iterator[tuple[KeyPath, list[Value]]]:
    """Yield the lists of steps inside a step, with their paths from it."""
    for key in ("do", "else"):
        if step.get(key):
            yield (key,), step[key]
    for number, branch in enumerate(step.get("parallel", ())):
        yield ("parallel", number), branch


def walk(steps: Sequence[Value], path: KeyPath = ("do",)) -> Iterator[tuple[KeyPath, Value]]:
    """Yield all steps of a list and inside them, with their paths."""
    for number, step in enumerate(steps):
        where = (*path, number)
        yield where, step
        for inner_path, inner in inner_lists(step):
            yield from walk(inner, (*where, *inner_path))


def ids_in(steps: Sequence[Value]) -> list[str]:
    """Return the names of calls and votes of a list and inside them."""
    return list(dict.fromkeys(step["id"] for _, step in walk(steps) if step.get("id")))


def verdicts_in(steps: Sequence[Value]) -> set[str]:
    """Return the names of the steps that conditions of a list, and inside it, read."""
    conditions = [inner.get(key) for _, inner in walk(steps) for key in ("if", "unless", "stop")]
    return {c["of"] for c in conditions if isinstance(c, dict) and "of" in c}


def result_of(step: Value) -> str:
    """Return the name of the last call or vote of a step that no condition in it reads: of a loop with a
    check that of the reply, not of the verdict. Of the last one, if conditions read all; empty if it has
    none.
    """
    names = ids_in([step])
    verdicts = verdicts_in([step])
    return ([name for name in names if name not in verdicts] or names or [""])[-1]


def agents_of(step: Value) -> list[str]:
    """Return the agents that a step calls, with those inside it."""
    names = (inner.get(key) for _, inner in walk([step]) for key in ("call", "vote", "best", "agent"))
    return list(dict.fromkeys(name for name in names if isinstance(name, str)))


def normal(value: Value) -> Value:
    """Return a copy of a file's value in which all calls and votes have names, branches are lists,
    and `return` is a mapping: then the same edits give equal files.
    """
    value = copy.deepcopy(value)
    list_branches(value["do"])
    name_steps(value["do"], [])
    returned = value["return"]
    if not isinstance(returned, dict):
        returned = {"of": returned}
    of = returned["of"]
    value["return"] = returned | {"of": [of] if isinstance(of, str) else list(of)}
    return value


def list_branches(steps: Sequence[Value]) -> None:
    """Make lists of branches that are single steps."""
    for _, step in walk([{"do": list(steps)}]):
        if "parallel" in step:
            step["parallel"] = [b if isinstance(b, list) else [b] for b in step["parallel"]]


def name_steps(steps: Sequence[Value], others: Sequence[str]) -> None:
    """Name the calls and votes that have no name, unlike the `others`."""
    names = {*others, *ids_in(steps)}
    for _, step in walk(steps):
        if kind_of(step) in ("call", "vote") and not step.get("id"):
            step["id"] = new_name("s", names)
            names.add(step["id"])


def new_name(stem: str, names: Collection[str]) -> str:
    """Return a name that is not among others."""
    return next(name for number in range(1, len(names) + 2) if (name := f"{stem}{number}") not in names)


def path_of(text: str) -> KeyPath:
    """Return the path of a text such as `do[0].do[1]`. Raise EditRefused for another text."""
    parts = _PATH.findall(text)
    path = tuple(int(number) if number else name for name, number in parts)
    if "".join(f"[{p}]" if isinstance(p, int) else p for p in path) != text.replace(".", ""):
        raise EditRefused(f"{short(text)} is no place of a step, such as do[0].do[1]")
    return path


def _name_op(schema: dict[str, Any]) -> None:
    """Let the form of an edit require `op`: without it nothing tells which edit it is."""
    schema["required"] = ["op", *schema.get("required", ())]


class TeamEdit(BaseModel):
    """A change of a team.

    Attributes:
        op: what it does.
        at: the place of a step, such as `do[0].do[1]`, or the name of an agent.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, json_schema_extra=_name_op)

    op: str
    at: str

    def apply(self, team: Team, parts: Parts) -> Team:
        """Return the changed team. Raise EditRefused if the edit does not fit, changes nothing, or
        leads to a team that the checks of files refuse.
        """
        value = normal(team.source.value)
        self.change(value, parts)
        called = [name for step in value["do"] for name in agents_of(step)]
        bases = [agent.get("like") for name, agent in value["agents"].items() if name in called]
        value["agents"] = {
            name: agent for name, agent in value["agents"].items() if name in called or name in bases
        }
        changed = parts.team(value)
        if changed.key() == team.key():
            raise EditRefused("it changes nothing")
        return changed

    def change(self, value: Value, parts: Parts) -> None:
        """Change a value of `normal`. Raise EditRefused."""
        raise NotImplementedError

    def step(self, value: Value, *kinds: str) -> Value:
        """Return the step at the place, of one of these kinds if there are any."""
        step = lookup(value, path_of(self.at))
        if not isinstance(step, dict) or not kind_of(step):
            raise EditRefused(f"there is no step at {short(self.at)}")
        if kinds and kind_of(step) not in kinds:
            raise EditRefused(f"the step at {self.at} is no {' or '.join(kinds)}")
        return step

    def around(self, value: Value, *, end: bool = False) -> tuple[list[Value], int]:
        """Return the list that the place is in, and its number there; the `end` of a list is a
        place, too, if asked for.
        """
        path = path_of(self.at)
        steps = lookup(value, path[:-1])
        number = path[-1] if path else None
        if not isinstance(steps, list) or not isinstance(number, int) or not 0 <= number < len(steps) + end:
            raise EditRefused(f"there is no place {short(self.at)} for a step")
        return steps, number

    def agent(self, value: Value) -> Value:
        """Return the agent of that name."""
        if self.at not in value["agents"]:
            raise EditRefused(f"no agent {short(self.at)}{did_you_mean(self.at, value['agents'])}")
        agent: Value = value["agents"][self.at]
        return agent


def enlist(value: Value, name: str, parts: Parts) -> None:
    """Add an agent of other files to a file that has none of the name. Raise EditRefused if there
    is none.
    """
    if name in value["agents"]:
        return
    if name not in parts.agents:
        every_agent = list(dict.fromkeys([*value["agents"], *parts.agents]))
        raise EditRefused(
            f"no agent {short(name)}{did_you_mean(name, every_agent)}; agents: {', '.join(every_agent)}"
        )
    value["agents"][name] = copy.deepcopy(parts.agents[name])


def rename(value: Any, names: Mapping[str, str], key: str = "") -> Any:
    """Return a step with other names of steps."""
    if isinstance(value, dict):
        return {name: rename(item, names, name) for name, item in value.items()}
    if isinstance(value, list):
        if key in ("sees", "vote"):
            return [names.get(item, item) for item in value]
        return [rename(item, names, key) for item in value]
    return names.get(value, value) if key in ("id", "of") and isinstance(value, str) else value


def forget(value: Value, names: Collection[str]) -> None:
    """Remove what refers to steps that are gone: in `sees`, in `return`, and stops and `unless` on
    them. Conditions of an `if` stay, so that the checks refuse the file.
    """
    for _, step in walk(value["do"]):
        if step.get("sees") is not None:
            step["sees"] = [name for name in step["sees"] if name not in names]
        if isinstance(step.get("unless"), dict) and step["unless"].get("of") in names:
            del step["unless"]
    value["do"] = _without_stops(value["do"], names)
    value["return"]["of"] = [name for name in value["return"]["of"] if name not in names]


def _without_stops(steps: Sequence[Value], names: Collection[str]) -> list[Value]:
    left = []
    for step in steps:
        if isinstance(step.get("stop"), dict) and step["stop"].get("of") in names:
            continue
        for path, inner in inner_lists(step):
            holder = lookup(step, path[:-1])
            holder[path[-1]] = _without_stops(inner, names)
        left.append(step)
    return left


class CallEdit(TeamEdit):
    """Insert a call in front of the place `at`, or at the end of its list; with `returns` its
    action is the team's wherever it has run.
    """

    op: Literal["call"] = "call"
    who: str
    sees: list[str] | None = None
    returns: bool = False

    def change(self, value: Value, parts: Parts) -> None:
        steps, number = self.around(value, end=True)
        enlist(value, self.who, parts)
        step: Value = {"call": self.who, "id": new_name("s", ids_in(value["do"]))}
        if self.sees is not None:
            step["sees"] = list(self.sees)
        steps.insert(number, step)
        if self.returns:
            value["return"]["of"].insert(0, step["id"])


class DropEdit(TeamEdit):
    """Remove a step, with what refers to it."""

    op: Literal["drop"] = "drop"

    def change(self, value: Value, parts: Parts) -> None:
        step = self.step(value)
        steps, number = self.around(value)
        if len(steps) == 1:
            raise EditRefused("it is the only step there; drop the step around it")
        del steps[number]
        forget(value, ids_in([step]))


class WhoEdit(TeamEdit):
    """Have another agent make a call or the calls of a vote."""

    op: Literal["who"] = "who"
    who: str

    def change(self, value: Value, parts: Parts) -> None:
        step = self.step(value, "call", "vote")
        kind = kind_of(step)
        if not isinstance(step[kind], str):
            raise EditRefused("it is a vote of steps")
        enlist(value, self.who, parts)
        step[kind] = self.who


class LoopEdit(TeamEdit):
    """Repeat a step."""

    op: Literal["loop"] = "loop"
    n: int = Field(ge=2, le=100)

    def change(self, value: Value, parts: Parts) -> None:
        steps, number = self.around(value)
        steps[number] = {"loop": self.n, "do": [steps[number]]}


class LimitEdit(TeamEdit):
    """Change how often a loop repeats; once leaves its steps alone."""

    op: Literal["limit"] = "limit"
    n: int = Field(ge=1, le=100)

    def change(self, value: Value, parts: Parts) -> None:
        step = self.step(value, "loop")
        if self.n > 1:
            step["loop"] = self.n
            return
        steps, number = self.around(value)
        # in an only round, which is the last one, they are never called
        unused = [s["id"] for s in step["do"] if s.get("unless") == {"loop": "last"}]
        left = [s for s in step["do"] if "stop" not in s and s.get("id") not in unused]
        steps[number : number + 1] = left
        forget(value, unused)


class VoteEdit(TeamEdit):
    """Make a vote of `n` calls of a call; `best` is an agent that chooses among them."""

    op: Literal["vote"] = "vote"
    n: int = Field(ge=2, le=100)
    best: str | None = None

    def change(self, value: Value, parts: Parts) -> None:
        step = self.step(value, "call")
        if "unless" in step:
            raise EditRefused("a vote has no unless")
        if self.best is not None:
            enlist(value, self.best, parts)
        steps, number = self.around(value)
        vote: Value = {"vote": step["call"], "n": self.n, "id": step["id"]}
        if self.best is not None:
            vote["best"] = self.best
        steps[number] = vote | {key: step[key] for key in ("sees",) if key in step}


class VotesEdit(TeamEdit):
    """Change the number of calls of a vote; one makes a call of it."""

    op: Literal["votes"] = "votes"
    n: int = Field(ge=1, le=100)

    def change(self, value: Value, parts: Parts) -> None:
        step = self.step(value, "vote")
        if not isinstance(step["vote"], str):
            raise EditRefused("it is a vote of steps")
        if self.n > 1:
            step["n"] = self.n
            return
        call: Value = {"call": step.pop("vote")} | {key: step[key] for key in ("id", "sees") if key in step}
        step.clear()
        step.update(call)


class CheckEdit(TeamEdit):
    """Repeat a step until an agent approves its reply, `n` times at most; `passes` is the action
    that approves, without it the agent's answer must be a verdict.
    """

    op: Literal["check"] = "check"
    who: str
    n: int = Field(ge=2, le=100)
    passes: str | None = None

    def change(self, value: Value, parts: Parts) -> None:
        step = self.step(value)
        steps, number = self.around(value)
        enlist(value, self.who, parts)
        if not result_of(step):
            raise EditRefused("there is no reply to check")
        name = new_name("v", ids_in(value["do"]))
        passed = {"field": "approved"} if self.passes is None else {"is": self.passes}
        verdict = {"call": self.who, "id": name, "sees": [result_of(step)], "unless": {"loop": "last"}}
        steps[number] = {"loop": self.n, "do": [step, verdict, {"stop": {"of": name, **passed}}]}


class BranchEdit(TeamEdit):
    """Play a step under a condition only."""

    op: Literal["branch"] = "branch"
    condition: dict[str, Any]

    def change(self, value: Value, parts: Parts) -> None:
        steps, number = self.around(value)
        steps[number] = {"if": copy.deepcopy(self.condition), "do": [steps[number]]}


class SeeEdit(TeamEdit):
    """Change which replies a call or a vote reads; null: all."""

    op: Literal["see"] = "see"
    sees: list[str] | None

    def change(self, value: Value, parts: Parts) -> None:
        step = self.step(value, "call", "vote")
        step.pop("sees", None)
        if self.sees is not None:
            step["sees"] = list(self.sees)


def adopted(step: Value, value: Value, others: Sequence[str], before: str, parts: Parts) -> Value:
    """Return a step of another file as one of this file, with its agents added.

    Args:
        step: the step.
        value: this file.
        others: names that its steps may not have.
        before: the step that its references mean where this file has none of the name.
        parts: have the agents.

    Raises EditRefused for what is no step.
    """
    try:
        STEP.validate_python(step)
    except ValidationError as error:
        raise EditRefused(f"the step: {_first(error)}") from error
    step = copy.deepcopy(step)
    list_branches([step])
    name_steps([step], others)
    names: dict[str, str] = {}
    for name in ids_in([step]):
        names[name] = new_name("s", {*others, *names.values()}) if name in others else name
    for name in references([step]):
        if name not in names and name not in others:
            names[name] = before
    for name in agents_of(step):
        enlist(value, name, parts)
    renamed: Value = rename(step, names)
    return renamed


def references(steps: Sequence[Value]) -> set[str]:
    """Return the names of steps that steps refer to."""
    names: set[str] = set()
    for _, step in walk(steps):
        names.update(step.get("sees") or ())
        names.update(step["vote"] if isinstance(step.get("vote"), list) else ())
        conditions = [c for key in ("if", "unless", "stop") if isinstance(c := step.get(key), dict)]
        names.update(c["of"] for c in conditions if "of" in c)
    return names


class InsertEdit(TeamEdit):
    """Insert a step, such as one of another file, like `call`. What it refers to and this file has
    not is the step before it.
    """

    op: Literal["insert"] = "insert"
    step_: dict[str, Any] = Field(alias="step")
    returns: bool = False

    def change(self, value: Value, parts: Parts) -> None:
        steps, number = self.around(value, end=True)
        before = next((r for s in reversed(steps[:number]) if (r := result_of(s))), value["return"]["of"][-1])
        step = adopted(dict(self.step_), value, ids_in(value["do"]), before, parts)
        steps.insert(number, step)
        if self.returns and result_of(step):
            value["return"]["of"].insert(0, result_of(step))


class SwapEdit(TeamEdit):
    """Put another step in place of a step; where the old one was the team's answer, the new one is."""

    op: Literal["swap"] = "swap"
    step_: dict[str, Any] = Field(alias="step")

    def change(self, value: Value, parts: Parts) -> None:
        old = self.step(value)
        steps, number = self.around(value)
        old_names = set(ids_in([old]))
        others = [name for _, s in walk(value["do"]) if (name := s.get("id")) and name not in old_names]
        before = (others or [""])[0]
        new = adopted(dict(self.step_), value, others, before, parts)
        steps[number] = new
        result = result_of(new)
        stays = {result_of(old): result} if result else {}
        value["do"] = [rename(s, stays) for s in value["do"]]
        returned = [stays.get(name, name) for name in value["return"]["of"]]
        value["return"]["of"] = list(dict.fromkeys(returned))
        forget(value, old_names - set(ids_in(value["do"])))


class SplitEdit(TeamEdit):
    """Give one of an agent's calls an agent of its own, which starts as a copy of the old one with
    another prompt.
    """

    op: Literal["split"] = "split"
    name: str
    prompt: str

    def change(self, value: Value, parts: Parts) -> None:
        step = self.step(value, "call", "vote")
        kind = kind_of(step)
        old = step[kind]
        if not isinstance(old, str):
            raise EditRefused("it is a vote of steps")
        if self.name in (*value["agents"], *parts.agents, *parts.run_agents):
            raise EditRefused(f"there is an agent {self.name!r}")
        role = parts_agent(value["agents"], old).get("as", old)
        value["agents"][self.name] = {"like": old, "as": role, "prompt": self.prompt}
        step[kind] = self.name


def parts_agent(agents: Mapping[str, Value], name: str) -> Value:
    """Return an agent with the fields of those that it is like."""
    agent = agents.get(name, {})
    base = agent.get("like")
    return {**(parts_agent(agents, base) if base else {}), **agent}


class MergeEdit(TeamEdit):
    """Have one agent make the calls of another one, `at`, too."""

    op: Literal["merge"] = "merge"
    into: str

    def change(self, value: Value, parts: Parts) -> None:
        self.agent(value)
        if self.into not in value["agents"]:
            raise EditRefused(f"no agent {short(self.into)}{did_you_mean(self.into, value['agents'])}")
        for _, step in walk(value["do"]):
            for key in ("call", "vote", "best", "agent"):
                if step.get(key) == self.at:
                    step[key] = self.into


class ToolEdit(TeamEdit):
    """Give an agent a tool, or take it away."""

    op: Literal["tool"] = "tool"
    tool: str
    on: bool = True

    def change(self, value: Value, parts: Parts) -> None:
        agent = self.agent(value)
        tools = [name for name in parts_agent(value["agents"], self.at).get("tools", ()) if name != self.tool]
        agent["tools"] = [*tools, self.tool] if self.on else tools


class MemoryEdit(TeamEdit):
    """Change the memory of an agent, or of the team where `at` is `team`."""

    op: Literal["memory"] = "memory"
    memory: Literal["none", "simple", "search", "summary"]

    def change(self, value: Value, parts: Parts) -> None:
        (value if self.at == "team" else self.agent(value))["memory"] = self.memory


def _without_length(schema: dict[str, Any]) -> None:
    """Take the length out of a text's schema: under the form of a reply, xgrammar allows no line end
    and no quote in a text of limited length.
    """
    schema.pop("maxLength")


class PromptEdit(TeamEdit):
    """Give an agent another prompt."""

    op: Literal["prompt"] = "prompt"
    text: str = Field(max_length=8000, json_schema_extra=_without_length)

    def change(self, value: Value, parts: Parts) -> None:
        self.agent(value)["prompt"] = self.text


AnyEdit = Annotated[
    CallEdit | InsertEdit | DropEdit | WhoEdit | LoopEdit | LimitEdit | VoteEdit | VotesEdit | CheckEdit
    | BranchEdit | SeeEdit | SwapEdit | SplitEdit | MergeEdit | ToolEdit | MemoryEdit | PromptEdit,
    Field(discriminator="op"),
]  # fmt: skip
STEP: TypeAdapter[Any] = TypeAdapter(Step)
EDITS: TypeAdapter[list[AnyEdit]] = TypeAdapter(
    Annotated[list[AnyEdit], Field(min_length=1, max_length=MAX_EDITS)]
)


def read_edits(text: str) -> list[AnyEdit]:
    """Return the edits of the last JSON list of a text, behind whatever it says in brackets before.
    Raise EditRefused for another text.
    """
    if "[" not in text or len(text) > 64_000:
        raise EditRefused("expected a JSON list of edits")
    begin, end = _last_list(text)
    try:
        return EDITS.validate_json(text[begin:end])
    except (ValidationError, ValueError) as error:
        text = _first(error) if isinstance(error, ValidationError) else str(error)
        raise EditRefused(f"edits: {text}") from error


def _last_list(text: str) -> tuple[int, int]:
    """Return where the last list of objects of a text begins and ends; without one, the places of
    its first and last bracket.
    """
    last = (text.find("["), text.rfind("]") + 1)
    end = 0
    # each that does not end costs the rest of the text
    for _ in range(MOST_LISTS):
        match = _LIST.search(text, end)
        if match is None:
            break
        try:
            _, end = _JSON.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            end = match.end()
        else:
            last = (match.start(), end)
    return last


def _first(error: ValidationError) -> str:
    """Return the first problem that pydantic has found, in one line with its place."""
    problem = error.errors(include_url=False)[0]
    where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in problem["loc"])
    return f"{where[:200]}: {problem['msg'][:400]}"


def apply_all(edits: Sequence[TeamEdit], team: Team, parts: Parts) -> Team:
    """Return a team after several edits. Raise EditRefused for the first that is refused."""
    for edit in edits:
        team = edit.apply(team, parts)
    return team


def dump(edits: Sequence[TeamEdit]) -> list[dict[str, Any]]:
    """Return edits as values of JSON types."""
    return [edit.model_dump(by_alias=True, exclude_unset=False, exclude_none=False) for edit in edits]
