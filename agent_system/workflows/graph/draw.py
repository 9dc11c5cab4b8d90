"""The steps of a team as a flow chart in Mermaid."""

from __future__ import annotations

from collections.abc import Sequence

from agent_system.workflows.graph.schema import (
    AnyStep,
    CallStep,
    Condition,
    IfStep,
    LoopStep,
    ParallelStep,
    SpawnStep,
    StopStep,
    TeamSpec,
    VoteStep,
)

# Those of the entity names come first.
_CODES = {
    "&": "&amp;",
    "#": "#35;",
    '"': "&quot;",
    "<": "&lt;",
    ">": "&gt;",
    "`": "#96;",
}
_SIGNS = {"is_": "is", "in_": "in", "below": "<", "above": ">"}


def draw(spec: TeamSpec) -> str:
    """Return a flow chart from the beginning of a turn to the action that is returned."""
    chart = _Chart()
    stopped: Ends = []
    ends = chart.steps(spec.do, [("begin", "")], stopped)
    chart.arrows([*ends, *stopped], "result")
    end = f'  result(["{_text(", ".join(spec.return_.of))}"])'
    return "\n".join(["flowchart TD", "  begin([turn])", *chart.lines, end, *chart.links]) + "\n"


def condition_text(condition: Condition) -> str:
    """Return a condition in words."""
    if condition.loop is not None:
        return f"{condition.loop} round"
    subject = condition.observation if condition.of is None else f"{condition.of}.{condition.field}"
    comparison = condition.comparison
    return f"{subject} {_SIGNS[comparison]} {getattr(condition, comparison)}" if comparison else str(subject)


def _text(text: str) -> str:
    """Return a text without what has a meaning in Mermaid's quotes, in one line."""
    for character, code in _CODES.items():
        text = text.replace(character, code)
    return "<br/>".join(text.splitlines())


Ends = list[tuple[str, str]]


class _Chart:
    """Boxes and arrows of a chart. An end is a box from which the next arrow begins, with the
    arrow's text.

    Attributes:
        lines: the boxes.
        links: the arrows.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.links: list[str] = []
        self._count = 0

    def steps(self, steps: Sequence[AnyStep], ends: Ends, stopped: Ends) -> Ends:
        """Draw steps behind `ends` and return their own ends; `stopped` takes those of `stop`."""
        for step in steps:
            ends = self._step(step, ends, stopped)
        return ends

    def arrows(self, ends: Ends, target: str) -> None:
        """Draw an arrow from every end."""
        for box, text in ends:
            self.links.append(f'  {box} -->|"{_text(text)}"| {target}' if text else f"  {box} --> {target}")

    def _box(self, text: str, opening: str, closing: str, ends: Ends) -> str:
        box = f"n{self._count}"
        self._count += 1
        self.lines.append(f'  {box}{opening}"{_text(text)}"{closing}')
        self.arrows(ends, box)
        return box

    def _step(self, step: AnyStep, ends: Ends, stopped: Ends) -> Ends:
        match step:
            case CallStep():
                return self._call(step, ends)
            case VoteStep():
                votes = f"{step.n} x {step.vote}" if isinstance(step.vote, str) else ", ".join(step.vote)
                best = f", best by {step.best}" if step.best else ""
                return [(self._box(f"vote: {votes}{best}", "[[", "]]", ends), "")]
            case SpawnStep():
                keys = step.spawn
                depth = f", depth {keys.depth}" if keys.depth > 1 else ""
                text = f"spawn: up to {keys.max} x {keys.agent}, lines of {keys.of}{depth}"
                return [(self._box(text, "[[", "]]", ends), "")]
            case LoopStep():
                return self._loop(step, ends)
            case IfStep():
                box = self._box(condition_text(step.if_), "{", "}", ends)
                inside = self.steps(step.do, [(box, "yes")], stopped)
                return [*inside, *self.steps(step.else_, [(box, "no")], stopped)]
            case ParallelStep():
                box = self._box("at the same time", "[/", "/]", ends)
                return [end for branch in step.parallel for end in self.steps(branch, [(box, "")], stopped)]
            case StopStep():
                return self._stop(step, ends, stopped)

    def _call(self, step: CallStep, ends: Ends) -> Ends:
        name = step.call if step.id is None else f"{step.id}: {step.call}"
        if step.unless is None:
            return [(self._box(name, "[", "]", ends), "")]
        choice = self._box(condition_text(step.unless), "{", "}", ends)
        return [(choice, "yes"), (self._box(name, "[", "]", [(choice, "no")]), "")]

    def _loop(self, step: LoopStep, ends: Ends) -> Ends:
        box = self._box(f"at most {step.loop} times", "{{", "}}", ends)
        left: Ends = []
        self.arrows(self.steps(step.do, [(box, "")], left), box)
        return [(box, "over"), *left]

    def _stop(self, step: StopStep, ends: Ends, stopped: Ends) -> Ends:
        if step.stop is None:
            stopped += ends
            return []
        box = self._box(condition_text(step.stop), "{", "}", ends)
        stopped.append((box, "stop"))
        return [(box, "no")]
