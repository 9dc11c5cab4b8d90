"""Agents that come in several wordings (for large models, for tiny ones), of which the team's options name one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agent_system.agent import BaseAgent, Entry


class StyledAgent(BaseAgent):
    """A role whose prompt is a field of a style.

    Attributes:
        styles: name to style, an object with a template for each role, and `entry` (how a reply of this turn is quoted, with `{role}`,
            the first word of the agent's name, and `{text}`), `separator` (between replies) and `nobody_spoke` (for no replies).
        options: class of the team's options, which are its defaults where an agent is made without.
        role: name of the agent unless it takes part under another one.
        template: field of the style that is this role's prompt.
        style: what the options name.
    """

    styles: ClassVar[Mapping[str, Any]]
    options: ClassVar[type]
    role: ClassVar[str]
    template: ClassVar[str]

    def __init__(self, agent_id: str = "", config: Any = None) -> None:
        super().__init__(agent_id or self.role, config if isinstance(config, self.options) else self.options())
        self.style = self.styles[self.style_name]
        self.prompt = getattr(self.style, self.template)

    @property
    def style_name(self) -> str:
        """Which of `styles`."""
        return self.config.prompt_style

    def team_context(self, entries: Sequence[Entry]) -> str:
        quoted = (self.style.entry.format(role=entry.agent_id.split()[0], text=entry.text) for entry in entries)
        return self.style.separator.join(quoted) or self.style.nobody_spoke
