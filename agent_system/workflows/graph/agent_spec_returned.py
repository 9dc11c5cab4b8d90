"""The `return` of a team from the EndNodes of a flow of Open Agent Spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent_system.workflows.graph.agent_spec import Components, Flow
from agent_system.workflows.graph.source import short


class ReturnReader:
    """Reads the `return` of a team: the replies that the EndNodes of the whole flow hand out."""

    def __init__(
        self, components: Components, flow: Flow, origins: Callable[[int, str], list[tuple[str, str]]]
    ) -> None:
        """Create it.

        Args:
            components: of the file.
            flow: the whole flow.
            origins: where an output of a node comes from: `("start", input)` or `("step", name)`.
        """
        self._all = components
        self._flow = flow
        self._origins = origins

    def read(self) -> dict[str, Any]:
        """Return the `return` of the team."""
        ends = list(self._flow.ends())
        titles = [title for end in ends for title in self._outputs(end)]
        names = list(dict.fromkeys(titles))
        if len(names) != 1:
            count = f"found {len(names)}" + (f" ({', '.join(map(short, names[:4]))})" if names else "")
            raise self._all.error(
                self._flow.part, f"its EndNodes must have one output, the action of the team; {count}"
            )
        handed_out = {end: self._steps(end, names[0]) for end in ends}
        places = {step: place for steps in handed_out.values() for step, place in steps.items()}
        if not places:
            raise self._all.error(self._flow.part, "its output comes from no call of an agent")
        order = sorted(places, key=lambda step: self._flow.order.index(places[step]), reverse=True)
        self._check(order, places, handed_out)
        default = self._default(ends, names[0])
        if default is None and len(order) > 1:
            default = ""  # each of several ends has a step of its own
        return {"of": order, **({} if default is None else {"default": default})}

    def _default(self, ends: Sequence[int], title: str) -> str | None:
        """Return what is handed out if no step has run."""
        common = self._all.properties(self._flow.part, "outputs").get(title, {})
        defaults: list[Any] = []
        for end in ends:
            part = self._flow.nodes[end]
            items = [
                common,
                *(self._all.properties(part, key).get(title, {}) for key in ("inputs", "outputs")),
            ]
            values = [item["default"] for item in items if "default" in item]
            if not values and not self._flow.is_fed(end, title):
                raise self._all.error(
                    part, f"no node gives its output {short(title)} on a way to it; give it a default"
                )
            defaults += values
        for value in defaults:
            if not isinstance(value, str):
                raise self._all.error(
                    self._flow.part, f"a default of {short(title)} must be a text, found {short(value)}"
                )
            if value != defaults[0]:
                raise self._all.error(
                    self._flow.part,
                    f"its output {short(title)} has the defaults {short(defaults[0])} and {short(value)}; a "
                    "team has one: write the same",
                )
        return defaults[0] if defaults else None

    def _outputs(self, end: int) -> dict[str, dict[str, Any]]:
        part = self._flow.nodes[end]
        return self._all.properties(part, "outputs") or self._all.properties(part, "inputs")

    def _steps(self, end: int, title: str) -> dict[str, int]:
        """Return the steps whose reply an EndNode hands out, with their nodes in the flow."""
        steps: dict[str, int] = {}
        for source, output in self._flow.data.get((end, title), ()):
            for kind, name in self._origins(source, output):
                if kind == "start":
                    raise self._all.error(
                        self._flow.nodes[end], "it hands out an input of the flow, no reply"
                    )
                steps[name] = source
        return steps

    def _check(
        self, order: Sequence[str], places: Mapping[str, int], handed_out: Mapping[int, Mapping[str, int]]
    ) -> None:
        """Raise unless the first step of `order` that has run is the one whose reply is meant."""
        flow = self._flow
        for position, step in enumerate(order):
            for later in order[:position]:
                one, other = (flow.behind[places[name]] for name in (step, later))
                if places[step] == places[later]:
                    raise self._all.error(
                        flow.nodes[places[step]],
                        f"it hands out replies of {short(step)} and {short(later)}; put the flow's nodes in "
                        "its place",
                    )
                if one >> places[later] & 1 and other >> places[step] & 1:
                    raise self._all.error(
                        flow.part,
                        f"it returns the newest of {short(step)} and {short(later)}, which repeat; "
                        "return one of them",
                    )
        for end, steps in handed_out.items():
            before: set[int] = set()
            for step in order:
                place = places[step]
                if step in steps:
                    before.add(place)
                elif flow.leads(flow.start, place, before) and flow.leads(place, end, before):
                    raise self._all.error(
                        flow.nodes[end],
                        f"the step {short(step)} runs before it, but it returns an earlier one",
                    )
