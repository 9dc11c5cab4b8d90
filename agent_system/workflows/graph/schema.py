"""The parts of a team file: agents, steps and conditions. `checks.py` checks what they refer to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)

from agent_system.children import MAX_DEPTH, MOST_CHILDREN
from agent_system.projection import MARKS
from agent_system.workflows.graph.source import KeyPath, TeamSource, lookup, short
from verl.utils.names import did_you_mean

MAX_AGENTS = 64
MAX_CHOICES = 64
KINDS = ("call", "loop", "if", "parallel", "vote", "spawn", "stop")
NO_STEP = "no step"
PLAIN_ANSWERS = ("text", "boxed", "number", "python")
MAPPED_ANSWERS = {
    "tag": "{tag: name}",
    "verdict": "{verdict: name}",
    "code": "{code: [language]}",
    "choice": "{choice: [word, word]}",
}
Scalar = str | int | float | bool | None


class PartProblem(ValueError):
    """What is wrong with a part; `key` is the field that it is about, or empty."""

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class FilePart(BaseModel):
    """A mapping of a team file. Fields have the names of the file, or an alias where Python has the
    word.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _only_fields(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            names = [f.alias or name for name, f in cls.model_fields.items()]
            for key in value:
                if key not in names:
                    raise PartProblem(
                        f"no such field{did_you_mean(key, names)}; fields: {', '.join(names)}", str(key)
                    )
        return value


def _one_of(part: FilePart, names: tuple[str, ...], what: str) -> str:
    """Return the one field of `names` that is set."""
    set_names = [name for name in names if name in part.model_fields_set]
    if len(set_names) != 1:
        spelled_names = ", ".join(name.rstrip("_") for name in names)
        raise PartProblem(f"{what} must have exactly one of {spelled_names}")
    return set_names[0]


def _scalar(value: Any) -> Any:
    if not isinstance(value, Scalar):
        raise PartProblem("expected a text, a number, true, false or null")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PartProblem(f"expected a number, found {short(value)}")
    return value


def _without_repeats(names: list[str], key: str = "") -> list[str]:
    again = next((name for name, count in Counter(names).items() if count > 1), None)
    if again is not None:
        raise PartProblem(f"{short(again)} is there twice", key)
    return names


# A number of the file, whole ones exactly.
Number = Annotated[Any, AfterValidator(_number)]
StepNames = Annotated[list[str], AfterValidator(_without_repeats)]


class Quote(FilePart):
    """How an agent's prompt quotes the replies of the turn.

    Attributes:
        entry: template of a reply, with `{agent}`, `{role}` (first word of its name), `{text}`,
            `{action}`.
        separator: text between replies.
        empty: text where there is no reply.
        last: number of replies that are quoted, the newest; None: all.
    """

    entry: str = "{agent}: {text}"
    separator: str = ""
    empty: str = ""
    last: int | None = Field(default=None, ge=1)


def verdict_word(text: str) -> str:
    """Return a word of a verdict as it is compared."""
    return text.strip(MARKS).lower()


class VerdictAnswer(FilePart):
    """A verdict between `<tag>` and `</tag>`.

    Attributes:
        tag: name of the tag.
        approve, reject: words for each, in any case, without the marks and white space around them.
        fallback: what a reply without a verdict counts as; its action is empty.
    """

    tag: str = "verify"
    approve: list[str] = Field(default=["approve", "approved"], min_length=1, max_length=MAX_CHOICES)
    reject: list[str] = Field(default=["reject", "rejected"], min_length=1, max_length=MAX_CHOICES)
    fallback: Literal["approve", "reject"] = "reject"

    @model_validator(mode="after")
    def _clear_words(self) -> VerdictAnswer:
        words = {}
        for key in ("approve", "reject"):
            words[key] = [verdict_word(word) for word in getattr(self, key)]
            if "" in words[key]:
                raise PartProblem("a word of a verdict needs more than marks and white space", key)
        if both := [word for word in words["approve"] if word in words["reject"]]:
            raise PartProblem(f"{short(both[0])} is a word of approve and of reject", "reject")
        return self


def _verdict(value: Any) -> Any:
    return {"tag": value} if isinstance(value, str) else value


def _yes(value: Any) -> Any:
    if value is not True:  # 1 is equal to it
        raise PartProblem(f"expected true, found {short(value)}")
    return value


Yes = Annotated[bool, BeforeValidator(_yes)]


def _choices(words: list[str]) -> list[str]:
    first_words: dict[str, str] = {}
    for word in words:
        if word != word.strip() or not word:
            raise PartProblem(f"the choice {short(word)} has white space around it, or is empty")
        if (other := first_words.get(word.casefold())) is not None:
            raise PartProblem(f"the choices {short(other)} and {short(word)} are equal in any case")
        first_words[word.casefold()] = word
    return words


class AgentAnswer(FilePart):
    """What of a reply is its action: exactly one of these.

    Attributes:
        text: the whole reply.
        boxed: the content of the last box.
        number: the last number.
        python: the last block of Python.
        tag: the content of the last `<tag>`.
        verdict: see `VerdictAnswer`.
        code: the last fenced block of one of these languages; of any, if the list is empty.
        choice: the last of these words that the reply has, in any case.
    """

    kinds: ClassVar[tuple[str, ...]] = (*PLAIN_ANSWERS, *MAPPED_ANSWERS)

    text: Yes = True
    boxed: Yes = True
    number: Yes = True
    python: Yes = True
    tag: str = ""
    verdict: Annotated[VerdictAnswer, BeforeValidator(_verdict)] = VerdictAnswer()
    code: list[str] = Field(default=[], max_length=MAX_CHOICES)
    choice: Annotated[list[Annotated[str, Field(max_length=200)]], AfterValidator(_choices)] = Field(
        default=[], min_length=2, max_length=MAX_CHOICES
    )

    @property
    def kind(self) -> str:
        """The field that is set."""
        return next(name for name in self.kinds if name in self.model_fields_set)

    @model_validator(mode="after")
    def _one_kind(self) -> AgentAnswer:
        _one_of(self, self.kinds, "answer")
        return self


def _answer(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value in MAPPED_ANSWERS:
        raise PartProblem(f"the answer {value} is a mapping: {MAPPED_ANSWERS[value]}")
    if value not in PLAIN_ANSWERS:
        raise PartProblem(
            f"no answer {short(value)}{did_you_mean(value, AgentAnswer.kinds)}; one of "
            f"{', '.join(PLAIN_ANSWERS)}, or a mapping: {', '.join(MAPPED_ANSWERS.values())}"
        )
    return {value: True}


class DelegateKeys(FilePart):
    """The tool `delegate`.

    Attributes:
        delegate: the agent that it calls.
        max: largest number of children of one call.
        depth: largest depth of children.
    """

    delegate: str
    max: int = Field(default=4, ge=1, le=MOST_CHILDREN)
    depth: int = Field(default=1, ge=1, le=MAX_DEPTH)


def _tool_kind(value: Any) -> str:
    return "delegate" if isinstance(value, Mapping | DelegateKeys) else NO_STEP


AgentTool = Annotated[
    Annotated[str, Tag(NO_STEP)] | Annotated[DelegateKeys, Tag("delegate")], Discriminator(_tool_kind)
]


class AgentSpec(FilePart):
    """An agent.

    Attributes:
        prompt, system: templates of the messages.
        variables: names of the observation's info that they use.
        answer: see `AgentAnswer`.
        quote: see `Quote`; None: `<agent>: <text>`, separated by blank lines.
        class_: `workflow/Agent`, a registered class.
        options: the options of that workflow.
        like: an agent whose fields this one has, where it says nothing itself.
        as_: the agent's name for the environment, its own if None.
        memory: the agent's own memory; none: that of the team.
        tools: names of functions that it may call, and `DelegateKeys`.
        max_rounds: generations of one call with tools.
    """

    prompt: str | None = None
    system: str | None = None
    variables: list[str] = Field(default=[], max_length=MAX_CHOICES)
    answer: Annotated[AgentAnswer, BeforeValidator(_answer)] = AgentAnswer(text=True)
    quote: Quote | None = None
    class_: str | None = Field(default=None, alias="class")
    options: dict[str, Any] = {}
    like: str | None = None
    as_: str | None = Field(default=None, alias="as")
    memory: Literal["none", "simple", "search", "summary"] = "none"
    tools: list[AgentTool] = Field(default=[], max_length=MAX_CHOICES)
    max_rounds: int = Field(default=4, ge=1, le=100)

    def on(self, base: AgentSpec) -> AgentSpec:
        """Return the agent with the fields of another where it says nothing itself."""
        ours = {name: getattr(self, name) for name in self.model_fields_set}
        theirs = {name: getattr(base, name) for name in base.model_fields_set - {"like"}}
        return AgentSpec.model_construct(_fields_set={*theirs, *ours}, **theirs | ours)


COMPARISONS = ("is_", "in_", "below", "above")


class Condition(FilePart):
    """What is compared, and with what; a step that has not run, and a key that is not there, fulfil
    none.

    Attributes:
        of: a step.
        field: `action`, `valid`, or a field of the step's answer.
        observation: a key of the observation's info.
        loop: first | last: the round of the loop around the step.
        is_, in_, below, above: comparisons, one at most; without one the value must be true.
    """

    of: str | None = None
    field: str = "action"
    observation: str | None = None
    loop: Literal["first", "last"] | None = None
    is_: Annotated[Any, AfterValidator(_scalar)] = Field(default=None, alias="is")
    in_: list[Annotated[Any, AfterValidator(_scalar)]] = Field(
        default=[], alias="in", min_length=1, max_length=MAX_CHOICES
    )
    below: Number = 0
    above: Number = 0

    @property
    def comparison(self) -> str:
        """The comparison that is set, or an empty text."""
        return next((name for name in COMPARISONS if name in self.model_fields_set), "")

    @model_validator(mode="after")
    def _fits(self) -> Condition:
        kind = _one_of(self, ("of", "observation", "loop"), "a condition")
        if getattr(self, kind) is None:
            raise PartProblem("expected a text, found None", kind)
        comparisons = self.model_fields_set & set(COMPARISONS)
        if kind == "loop" and (comparisons or "field" in self.model_fields_set):
            raise PartProblem("a condition on the loop has no field and no comparison")
        if kind == "observation" and "field" in self.model_fields_set:
            raise PartProblem("a condition on the observation has no field")
        if len(comparisons) > 1:
            raise PartProblem("a condition has one comparison at most: is, in, below or above")
        if kind == "of" and self.field == "action" and not comparisons:
            raise PartProblem("a condition on an action needs a comparison: is, in, below or above")
        for key in ("is", "in"):
            values = [self.is_] if key == "is" else self.in_
            if kind == "of" and f"{key}_" in comparisons and None in values:
                raise PartProblem("no reply is null; write '' for an empty text", key)
        return self


class CallStep(FilePart):
    """A call of an agent.

    Attributes:
        call: the agent.
        id: name of the step.
        unless: condition under which the call is left out.
        sees: steps whose replies the prompt quotes; None: all before it.
    """

    kind: ClassVar[str] = "call"

    call: str
    id: str | None = None
    unless: Condition | None = None
    sees: StepNames | None = None


class LoopStep(FilePart):
    """Steps that are repeated, `loop` times at most; a `stop` among them ends it."""

    kind: ClassVar[str] = "loop"

    loop: int = Field(ge=1, le=1_000_000)
    do: list[Step] = Field(min_length=1)


class IfStep(FilePart):
    """Steps under a condition, and others without it."""

    kind: ClassVar[str] = "if"

    if_: Condition = Field(alias="if")
    do: list[Step] = Field(min_length=1)
    else_: list[Step] = Field(default=[], alias="else")


class ParallelStep(FilePart):
    """Branches that run at the same time and do not read each other."""

    kind: ClassVar[str] = "parallel"

    parallel: list[Branch] = Field(min_length=2, max_length=MAX_CHOICES)


class VoteStep(FilePart):
    """The action that most replies have.

    Attributes:
        vote: an agent, called `n` times at the same time, or earlier steps.
        n: number of calls.
        id: name of the step.
        sees: as of a call.
        best: an agent that chooses among the replies instead, by number or action; if it names
            none, the votes are counted.
    """

    kind: ClassVar[str] = "vote"

    vote: str | list[str]
    n: int | None = Field(default=None, ge=2, le=1_000_000)
    id: str | None = None
    sees: StepNames | None = None
    best: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _agent_or_steps(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        vote = value.get("vote")
        steps = isinstance(vote, list) and len(vote) > 1 and all(isinstance(item, str) for item in vote)
        if not (isinstance(vote, str) or steps):
            raise PartProblem("expected an agent, or a list of two steps or more", "vote")
        if isinstance(vote, str) and value.get("n") is None:
            raise PartProblem(f"{{vote: {short(vote)}}} needs n, the number of calls")
        if steps and ("n" in value or "sees" in value):
            raise PartProblem("a vote of steps has no n and no sees")
        if isinstance(vote, list):
            _without_repeats(vote, "vote")
        return value


class SpawnKeys(FilePart):
    """What is spawned.

    Attributes:
        of: a step; every line of its action is a task.
        agent: the agent that is called for each task, at the same time.
        max: largest number of children of one reply; further tasks are left out.
        depth: largest depth of children. Above it, an action of two lines or more is itself a list
            of tasks.
    """

    of: str
    agent: str
    max: int = Field(default=4, ge=1, le=MOST_CHILDREN)
    depth: int = Field(default=1, ge=1, le=MAX_DEPTH)


class SpawnStep(FilePart):
    """Calls of an agent for the lines of a reply. Its action is theirs, joined by line breaks.

    Attributes:
        spawn: see `SpawnKeys`.
        id: name of the step.
        sees: as of a call; the children do not read each other.
    """

    kind: ClassVar[str] = "spawn"

    spawn: SpawnKeys
    id: str | None = None
    sees: StepNames | None = None


def _stop(value: Any) -> Any:
    if not isinstance(value, Mapping | Condition) and value != "always":
        raise PartProblem("expected a condition, or always")
    return None if value == "always" else value


class StopStep(FilePart):
    """The end of the loop around it, or of the turn outside of loops, under a condition or, if
    None, always.
    """

    kind: ClassVar[str] = "stop"

    stop: Annotated[Condition | None, BeforeValidator(_stop)]


def _kind_of(value: Any) -> str | None:
    if not isinstance(value, Mapping):
        return getattr(value, "kind", NO_STEP)
    kinds = [kind for kind in KINDS if kind in value]
    return kinds[0] if len(kinds) == 1 else NO_STEP


def _refuse(value: Any) -> Any:
    is_call_under_if = isinstance(value, Mapping) and "if" in value and "call" in value
    hint = "; a call is left out by `unless: {...}`, and an if has its steps in `do`"
    raise PartProblem(
        f"expected a step, a mapping with exactly one of {', '.join(KINDS)}; found {short(value)}"
        f"{hint if is_call_under_if else ''}"
    )


Step = Annotated[
    Annotated[CallStep, Tag("call")]
    | Annotated[LoopStep, Tag("loop")]
    | Annotated[IfStep, Tag("if")]
    | Annotated[ParallelStep, Tag("parallel")]
    | Annotated[VoteStep, Tag("vote")]
    | Annotated[StopStep, Tag("stop")]
    | Annotated[SpawnStep, Tag("spawn")]
    | Annotated[Any, BeforeValidator(_refuse), Tag(NO_STEP)],
    Discriminator(_kind_of),
]
AnyStep = CallStep | LoopStep | IfStep | ParallelStep | VoteStep | SpawnStep | StopStep
NamedStep = CallStep | VoteStep | SpawnStep


def _branch(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


Branch = Annotated[list[Step], Field(min_length=1), BeforeValidator(_branch)]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class Returned(FilePart):
    """The step whose action is the team's.

    Attributes:
        of: steps, the first of which that has run it is.
        default: the action if none has run.
    """

    of: Annotated[StepNames, Field(min_length=1, max_length=MAX_CHOICES), BeforeValidator(_listed)]
    default: str | None = None


def _returned(value: Any) -> Any:
    return {"of": value} if isinstance(value, str | list) else value


class TeamSpec(FilePart):
    """A whole file.

    Attributes:
        team: version of the format.
        agents: the agents by name.
        do: the steps of a turn.
        return_: see `Returned`.
        memory: the team's memory across turns; None: that of the agents' classes, or `simple`.
    """

    team: Literal[1]
    agents: dict[str, AgentSpec] = Field(min_length=1, max_length=MAX_AGENTS)
    do: list[Step] = Field(min_length=1)
    return_: Annotated[Returned, BeforeValidator(_returned)] = Field(alias="return")
    memory: Literal["none", "simple", "search"] | None = None


for _model in (LoopStep, IfStep, ParallelStep, TeamSpec):
    _model.model_rebuild()


def read_spec(source: TeamSource) -> TeamSpec:
    """Return the parts of a file. Raise AgentSystemError with the first of its problems, and their
    number.
    """
    if not isinstance(source.value, dict):
        raise source.error(
            (), f"expected a mapping with team, agents, do and return, found {short(source.value)}"
        )
    if source.value.get("team", 1) != 1 or source.value.get("team", 1) is True:
        raise source.error(
            ("team",), f"expected 1, the version of the format, found {short(source.value['team'])}"
        )
    try:
        return TeamSpec.model_validate(source.value)
    except ValidationError as error:
        problems = error.errors(include_url=False)
    path, message = min((_translated(p, source.value) for p in problems), key=lambda p: source.place(p[0]))
    more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
    raise source.error(path, f"{message}{more}")


_EXPECTED = {
    "string_type": "expected a text",
    "int_type": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "list_type": "expected a list",
    "dict_type": "expected a mapping",
    "model_type": "expected a mapping",
    "model_attributes_type": "expected a mapping",
    "missing": "it is missing",
    "finite_number": "expected a finite number",
}


def _translated(problem: Any, value: Any) -> tuple[KeyPath, str]:
    """Return the path and the message of an error of pydantic."""
    path = _path(problem["loc"], value)
    kind = problem["type"]
    error = problem.get("ctx", {}).get("error")
    if isinstance(error, PartProblem):
        return (*path, error.key) if error.key else path, str(error)
    if kind == "missing":
        return path, _EXPECTED[kind]
    if kind in _EXPECTED:
        return path, f"{_EXPECTED[kind]}, found {short(problem['input'])}"
    text = problem["msg"].removeprefix("Input ").replace("List should have", "should have")
    value_text = "" if isinstance(problem["input"], list | dict) else f", found {short(problem['input'])}"
    return path, f"it {text}{value_text}"


def _path(location: tuple[str | int, ...], value: Any) -> KeyPath:
    """Return the path in the file of pydantic's location, which has the kind of a step behind its
    number.
    """
    path: KeyPath = ()
    after_number = False
    for part in location:
        here = lookup(value, path)
        if isinstance(part, int) and isinstance(here, dict):
            # a branch of one step, which the file may write without a list
            continue
        if after_number and (isinstance(here, dict) or part == NO_STEP):
            after_number = False
            continue
        path = (*path, part)
        after_number = isinstance(part, int)
    return path
