"""Agents with several prompt wordings (for large models, for tiny ones); the team's options name
one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agent_system.agent import BaseAgent, Entry


class StyledAgent(BaseAgent):
    """A role whose prompt is a field of a style.

    Attributes:
        styles: style by name. A style has a template for each role, and `entry` (template for
            quoting a reply of this turn, with `{role}`, the first word of the agent's name, and
            `{text}`), `separator` (between replies) and `no_replies`.
        options: class of the team's options; its defaults hold where an agent is created without
            options.
        role: default name of the agent.
        template: field of the style that is this role's prompt.
        style: the style that the options name.
    """

    styles: ClassVar[Mapping[str, Any]]
    options: ClassVar[type]
    role: ClassVar[str]
    template: ClassVar[str]

    def __init__(self, agent_id: str = "", config: Any = None) -> None:
        super().__init__(
            agent_id or self.role, config if isinstance(config, self.options) else self.options()
        )
        self.style = self.styles[self.style_name]
        self.prompt = getattr(self.style, self.template)

    @property
    def style_name(self) -> str:
        """Key of `styles`."""
        return self.config.prompt_style

    def team_context(self, entries: Sequence[Entry]) -> str:
        quoted = (
            self.style.entry.format(role=entry.agent_id.split()[0], text=entry.text) for entry in entries
        )
        return self.style.separator.join(quoted) or self.style.no_replies
