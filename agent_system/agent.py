"""An agent is a named role: a prompt template and a projection. It holds no state, so one object serves all episodes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from agent_system.errors import AgentSystemError
from agent_system.projection import Projection, Projector, raw_text
from verl.utils.names import did_you_mean

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Entry:
    """A reply or note of the current turn.

    Attributes:
        agent_id: the agent, or the speaker given to `Turn.note`.
        text: the reply without its thinking.
        action: the action that the projection parsed from the reply.
    """

    agent_id: str
    text: str
    action: str = ""


class BaseAgent:
    """A role that a user subclasses.

    Attributes:
        prompt: template of the user message with `{env_prompt}`, `{team_context}`, `{memory}`, `{step}` and the variables that the
            orchestra passes to `turn.act`. Literal braces are written twice.
        system: optional template of the system message, with the same variables. It is never shortened.
        projection: text -> `Projection`: a function, the result of a factory such as `tag(...)`, or a method.
        agent_id: the agent's name in the team.
        config: the options of the orchestra, so that a subclass can choose a template by them.
    """

    prompt: str = "{env_prompt}"
    system: str | None = None
    projection: ClassVar[Any] = staticmethod(raw_text)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        projection = cls.__dict__.get("projection")
        if inspect.isfunction(projection) and next(iter(inspect.signature(projection).parameters), "") != "self":
            cls.projection = staticmethod(projection)

    def __init__(self, agent_id: str, config: Any = None) -> None:
        self.agent_id = agent_id
        self.config = config

    def team_context(self, entries: Sequence[Entry]) -> str:
        """Return the turn so far as this agent's prompt shows it. Override to change the wording."""
        return render_entries(entries)

    def messages(self, variables: Mapping[str, Any]) -> list[Message]:
        """Return the chat messages of one call.

        Args:
            variables: the variables available to the templates.

        Raises:
            AgentSystemError: a template uses a variable that was not passed.
        """
        messages = [] if self.system is None else [{"role": "system", "content": self._fill(self.system, variables)}]
        messages.append({"role": "user", "content": self._fill(self.prompt, variables)})
        return messages

    def project(self, text: str) -> Projection:
        """Return the action parsed from `text`."""
        projector: Projector = self.projection
        return projector(text)

    def _fill(self, template: str, variables: Mapping[str, Any]) -> str:
        try:
            return template.format_map(variables)
        except KeyError as error:
            name = str(error.args[0])
            raise AgentSystemError(
                f"the prompt of {self.agent_id!r} uses {{{name}}}, which turn.act() did not pass{did_you_mean(name, variables)}; "
                f"available: {', '.join(sorted(variables))}"
            ) from error
        except (ValueError, IndexError) as error:
            raise AgentSystemError(
                f"the prompt template of {self.agent_id!r} is malformed ({error}); write literal braces twice: {{{{ }}}}"
            ) from error


def render_entries(entries: Sequence[Entry]) -> str:
    """Return the entries as `<agent>: <text>`, oldest first, separated by blank lines."""
    return "\n\n".join(f"{e.agent_id}: {e.text}" for e in entries)
