"""Where edits come from: drawn at random, or written by a model."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_system.evolve.edits import (
    EDITS,
    MAX_EDITS,
    BranchEdit,
    CallEdit,
    CheckEdit,
    DropEdit,
    EditRefused,
    InsertEdit,
    LimitEdit,
    LoopEdit,
    MemoryEdit,
    MergeEdit,
    Parts,
    PromptEdit,
    SeeEdit,
    SplitEdit,
    SwapEdit,
    TeamEdit,
    ToolEdit,
    Value,
    VoteEdit,
    VotesEdit,
    WhoEdit,
    agents_of,
    apply_all,
    ids_in,
    kind_of,
    new_name,
    normal,
    parts_agent,
    read_edits,
    result_of,
    sentences,
    verdicts_in,
    walk,
)
from agent_system.workflows.graph.checks import SHIPPED_TOOLS
from agent_system.workflows.graph.source import KeyPath, path_text
from agent_system.workflows.graph.team import Team

SIZES = (2, 3, 5)
SAME_WORDS = 5
# Numbers of words between which an agent chooses that may approve a reply.
FEW_WORDS = (2, 3)
# How often an edit is drawn.
WEIGHTS: Mapping[str, float] = {
    "call": 1.5, "insert": 5, "drop": 3, "who": 0.5, "loop": 0.25, "limit": 4, "vote": 1.5, "votes": 2,
    "check": 6, "branch": 1, "see": 0.5, "swap": 2, "split": 0.25, "merge": 0.25, "tool": 0.1, "memory": 0.1,
    "prompt": 1,
}  # fmt: skip


@dataclass(frozen=True)
class EditDraw:
    """Draws edits of one team.

    Attributes:
        value: the team, by `normal`.
        parts: what edits take from other files.
        others: steps of other files of the search.
        rng: random numbers.
        votes: votes are worth a try: agents do not always reply the same.
    """

    value: Value
    parts: Parts
    others: Sequence[Value]
    rng: random.Random
    votes: bool = True

    def draw(self) -> TeamEdit | None:
        """Return an edit, which the team may refuse; None if the kind that was drawn has no place."""
        ops = [op for op in WEIGHTS if self.votes or op not in ("vote", "votes")]
        op = self.rng.choices(ops, [WEIGHTS[o] for o in ops])[0]
        edit: TeamEdit | None = getattr(self, f"_{op}")()
        return edit

    def _places(self, *kinds: str) -> list[tuple[str, Value]]:
        """Return the steps of these kinds, of any kind but `stop` without any, with their places."""
        return [
            (path_text(path), step)
            for path, step in walk(self.value["do"])
            if (kind_of(step) in kinds if kinds else kind_of(step) != "stop")
        ]

    def _place(self, *kinds: str) -> tuple[str, Value] | None:
        """Return one of `_places`."""
        places = self._places(*kinds)
        return self.rng.choice(places) if places else None

    def _gap(self) -> str:
        """Return a place between steps, or at the end of a list."""
        gaps: list[KeyPath] = [("do", len(self.value["do"]))]
        for path, _ in walk(self.value["do"]):
            gaps.append(path)
            after = (*path[:-1], int(path[-1]) + 1)
            gaps += [after] if after not in gaps else []
        return path_text(self.rng.choice(sorted(set(gaps), key=str)))

    def _agent(self) -> str:
        """Return an agent of this team or of another file."""
        return self.rng.choice(list(dict.fromkeys([*self.value["agents"], *self.parts.agents])))

    def _own_agent(self) -> str:
        return self.rng.choice(list(self.value["agents"]))

    def _call(self) -> TeamEdit:
        ids = ids_in(self.value["do"])
        sees = self.rng.choice([None, [self.rng.choice(ids)] if ids else []])
        at = self._gap()
        last = path_text(("do", len(self.value["do"])))
        if self.rng.random() < 0.5:
            at = last
            sees = [self.value["return"]["of"][0]]
        # nobody reads a last reply that is not the answer
        return CallEdit(at=at, who=self._agent(), sees=sees, returns=at == last or self.rng.random() < 0.25)

    def _insert(self) -> TeamEdit | None:
        sources = [[s for s in steps if kind_of(s) not in ("call", "vote")] for steps in self._sources()]
        sources = [steps for steps in sources if steps]
        if not sources:
            return None
        last = path_text(("do", len(self.value["do"])))
        at = last if self.rng.random() < 0.7 else self._gap()
        returns = at == last or self.rng.random() < 0.5
        steps = sources[0] if self.rng.random() < 0.75 else sources[-1]
        return InsertEdit(at=at, step=self.rng.choice(steps), returns=returns)

    def _sources(self) -> list[Sequence[Value]]:
        """Return steps of the user's files, and those of other files of the search."""
        return [steps for steps in (self.parts.steps, self.others) if steps]

    def _drop(self) -> TeamEdit | None:
        place = self._place("call", "vote", "loop", "if", "parallel", "stop")
        return place and DropEdit(at=place[0])

    def _who(self) -> TeamEdit | None:
        place = self._place("call", "vote")
        return place and WhoEdit(at=place[0], who=self._agent())

    def _loop(self) -> TeamEdit | None:
        place = self._place()
        return place and LoopEdit(at=place[0], n=self.rng.choice((2, 3)))

    def _limit(self) -> TeamEdit | None:
        place = self._place("loop")
        return place and LimitEdit(at=place[0], n=max(1, place[1]["loop"] + self.rng.choice((-1, 1, 2))))

    def _vote(self) -> TeamEdit | None:
        place = self._place("call")
        return place and VoteEdit(at=place[0], n=self.rng.choice(SIZES))

    def _votes(self) -> TeamEdit | None:
        place = self._place("vote")
        if place is None:
            return None
        now = place[1].get("n", 2)
        return VotesEdit(at=place[0], n=self.rng.choice((1, max(1, now - 2), now + 2)))

    def _check(self) -> TeamEdit | None:
        # a verdict is nobody's answer: to check it is worth nothing, and half of the calls of a large team
        # are verdicts
        verdicts = verdicts_in(self.value["do"])
        steps = [(at, step) for at, step in self._places("call", "vote") if step.get("id") not in verdicts]
        judges = self._judges()
        if not steps or not judges:
            return None
        place = self.rng.choice(steps)
        who = self.rng.choice(list(judges))
        # the first of few words is mostly the one that approves
        passes = self.rng.choice([judges[who][0], judges[who][0], *judges[who]])
        return CheckEdit(at=place[0], who=who, n=self.rng.choice(SIZES), passes=passes)

    def _judges(self) -> dict[str, list[str | None]]:
        """Return the agents whose answer is a verdict, or one of few words, with what may approve."""
        agents = {**self.parts.agents, **self.value["agents"]}
        judges: dict[str, list[str | None]] = {}
        for name in agents:
            answer = parts_agent(agents, name).get("answer")
            if not isinstance(answer, Mapping):
                continue
            if "verdict" in answer:
                judges[name] = [None]
            elif len(answer.get("choice", ())) in FEW_WORDS:
                judges[name] = list(answer["choice"])
        return judges

    def _branch(self) -> TeamEdit | None:
        place = self._place()
        ids = ids_in(self.value["do"])
        conditions = [*self.parts.conditions, {"loop": "last"}]
        conditions += [{"of": self.rng.choice(ids), "field": "valid", "is": False}] if ids else []
        return place and BranchEdit(at=place[0], condition=self.rng.choice(conditions))

    def _see(self) -> TeamEdit | None:
        place = self._place("call", "vote")
        ids = ids_in(self.value["do"])
        return place and SeeEdit(at=place[0], sees=self.rng.choice([None, [], [self.rng.choice(ids)]]))

    def _swap(self) -> TeamEdit | None:
        place = self._place()
        sources = self._sources()
        if place is None or not sources:
            return None
        return SwapEdit(at=place[0], step=self.rng.choice(self.rng.choice(sources)))

    def _split(self) -> TeamEdit | None:
        place = self._place("call", "vote")
        names = agents_of(place[1]) if place else []
        prompt = self._new_prompt(names[0]) if names else None
        if place is None or prompt is None:
            return None
        name = new_name(f"{names[0]} ", {*self.value["agents"], *self.parts.agents, *self.parts.run_agents})
        return SplitEdit(at=place[0], name=name, prompt=prompt)

    def _merge(self) -> TeamEdit:
        return MergeEdit(at=self._own_agent(), into=self._own_agent())

    def _tool(self) -> TeamEdit:
        tools = [*SHIPPED_TOOLS, *self.parts.tools] if self.parts.tools else ["calculator"]
        return ToolEdit(at=self._own_agent(), tool=self.rng.choice(tools), on=self.rng.random() < 0.5)

    def _memory(self) -> TeamEdit:
        at = self.rng.choice(["team", *self.value["agents"]])
        return MemoryEdit(at=at, memory=self.rng.choice(("none", "simple")))

    def _prompt(self) -> TeamEdit | None:
        name = self._own_agent()
        text = self._new_prompt(name)
        return None if text is None else PromptEdit(at=name, text=text)

    def _new_prompt(self, name: str) -> str | None:
        """Return a prompt of an agent with a sentence less, moved or more, or that of another file."""
        prompt = parts_agent(self.value["agents"], name).get("prompt")
        if prompt is None:
            return None
        way = self.rng.choice(("drop", "move", "take", "other"))
        if way == "other":
            others = [text for text in self.parts.prompts.get(name, ()) if text != prompt]
            return self.rng.choice(others) if others else None
        parts = sentences(prompt)
        free = [number for number, text in enumerate(parts) if "{" not in text]
        if way == "take":
            taken_text = self.rng.choice(self.parts.sentences) if self.parts.sentences else None
            return None if taken_text is None or taken_text in prompt else f"{taken_text} {prompt}"
        if not free or len(parts) < 2:
            return None
        moved = parts.pop(self.rng.choice(free))
        if way == "move":
            parts.insert(self.rng.randrange(len(parts) + 1), moved)
        return "".join(parts)


def draw_team(
    team: Team, parts: Parts, others: Sequence[Team], rng: random.Random, *, votes: bool, attempts: int = 30
) -> tuple[list[TeamEdit], Team] | None:
    """Return one or two random edits of a team, and the team after them; None if none was found."""
    value = normal(team.source.value)
    other_steps = [s for other in others for _, s in walk(normal(other.source.value)["do"]) if result_of(s)]
    for _ in range(attempts):
        edit = EditDraw(value, parts, other_steps, rng, votes).draw()
        if edit is None:
            continue
        try:
            changed = edit.apply(team, parts)
        except EditRefused:
            continue
        if rng.random() < 0.6:
            return [edit], changed
        second = EditDraw(normal(changed.source.value), parts, other_steps, rng, votes).draw()
        try:
            again = changed if second is None else second.apply(changed, parts)
        except EditRefused:
            return [edit], changed
        # the second may undo the first
        return ([edit], changed) if second is None or again.key() == team.key() else ([edit, second], again)
    return None


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    return [w for word in text.lower().split() if (w := word.strip(".,;:!?\"'()[]{}"))]


def sequences(texts: Collection[str]) -> set[tuple[str, ...]]:
    """Return all rows of 1 to `SAME_WORDS` words of texts."""
    rows = set()
    for text in texts:
        row = words(text)
        for size in range(1, SAME_WORDS + 1):
            rows.update(tuple(row[i : i + size]) for i in range(len(row) - size + 1))
    return rows


def task_rows(tasks: Collection[str]) -> set[tuple[str, ...]]:
    """Return all `SAME_WORDS` words in a row of tasks, and all words of those that have fewer."""
    rows = set()
    for text in tasks:
        row = words(text)
        rows.update(tuple(row[i : i + SAME_WORDS]) for i in range(max(len(row) - SAME_WORDS, 0) + 1))
    return rows - {()}


@dataclass(frozen=True)
class TaskTexts:
    """The texts of tasks, which a team may not repeat.

    Attributes:
        rows: `task_rows` without the words of the files that a search begins with.
    """

    rows: set[tuple[str, ...]] = field(default_factory=set)

    @classmethod
    def of(cls, tasks: Sequence[str], teams: Sequence[Team]) -> TaskTexts:
        """Return the texts of tasks, but for what files of a user say themselves."""
        return cls(task_rows(tasks) - sequences([t for team in teams for t in texts_in(team.source.value)]))

    def check(self, team: Team) -> None:
        """Raise EditRefused for a team that has `SAME_WORDS` words in a row of a task, or all words
        of a shorter one.
        """
        for text in texts_in(team.source.value):
            for row in self.rows & sequences([text]):
                what = f"{SAME_WORDS} words in a row" if len(row) == SAME_WORDS else "all words"
                raise EditRefused(f"a text repeats {what} of a task")


def texts_in(value: Any) -> list[str]:
    """Return all texts of a value of JSON types."""
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in texts_in(item)]


# Asks a model: the text, and a number that makes its seed; returns the reply.
Ask = Callable[[str, int], Awaitable[str]]


@dataclass(frozen=True)
class ParentFacts:
    """What a model is told of the team that it edits.

    Attributes:
        team: the team.
        score, tokens: means of its episodes.
        stories: episodes with a low score, by `evaluate.story`.
        earlier: edits of earlier files with their scores.
    """

    team: Team
    score: float
    tokens: float
    stories: Sequence[Mapping[str, Any]]
    earlier: Sequence[Mapping[str, Any]]


def proposal_prompt(facts: ParentFacts, parts: Parts) -> str:
    """Return the question to a model. It has no ground truth: no part of it comes from one."""
    episode_texts = [
        "\n".join(
            [
                f"Task: {s['task']}",
                *(f"  {agent}: {text}" for agent, text, _ in s["calls"]),
                f"  answer: {s['answer']}",
            ]
        )
        for s in facts.stories
    ]
    earlier = [json.dumps(dict(e)) for e in facts.earlier]
    others = {name: a for name, a in parts.agents.items() if name not in facts.team.spec.agents}
    return "\n\n".join(
        [
            "Improve a team of agents. This is its file:",
            facts.team.text(),
            f"It scores {facts.score:.3f} with {facts.tokens:.0f} tokens per task; fewer tokens are better.",
            f"Other agents that may be called: {json.dumps(others)}",
            "Episodes with a wrong answer:\n" + ("\n".join(episode_texts) or "none"),
            "Earlier edits and their scores:\n" + ("\n".join(earlier) or "none"),
            f"Reply with a JSON list of 1 to {MAX_EDITS} edits. Places are written as do[0].do[1]. Edits:\n"
            + edit_forms(),
        ]
    )


def edit_forms() -> str:
    """Return the forms of all edits, a line each."""
    defs = EDITS.json_schema()["$defs"]
    lines = []
    for schema in defs.values():
        fields = {n: f.get("const", f.get("type", "...")) for n, f in schema["properties"].items()}
        lines.append(f"{json.dumps(fields)}: {' '.join(schema['description'].split())}")
    return "\n".join(lines)


def structure() -> str:
    """Return the form of a reply as `SamplingParams.structure`."""
    form = {"type": "json_schema", "json_schema": EDITS.json_schema(), "max_whitespace_cnt": 1}
    return json.dumps({"type": "structural_tag", "format": form})


async def ask_for_edits(facts: ParentFacts, parts: Parts, ask: Ask, tasks: TaskTexts) -> dict[str, Any]:
    """Ask a model for edits, once more with the error if the team refuses them.

    Returns `replies`, the texts of the model.
    """
    question = proposal_prompt(facts, parts)
    reply = await ask(question, 0)
    try:
        edited_team(reply, facts.team, parts, tasks)
    except EditRefused as error:
        again = f"{question}\n\nYour reply was:\n{reply[-2000:]}\n\nIt is refused: {error}. Reply again."
        return {"replies": [reply, await ask(again, 1)]}
    return {"replies": [reply]}


def edited_team(reply: str, team: Team, parts: Parts, tasks: TaskTexts) -> tuple[list[TeamEdit], Team]:
    """Return the edits of a reply, and the team after them. Raise EditRefused."""
    edits: list[TeamEdit] = list(read_edits(reply))
    changed = apply_all(edits, team, parts)
    tasks.check(changed)
    return edits, changed
