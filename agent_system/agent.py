"""An agent is a named role: a prompt template and a projection.

One object serves all episodes, unless the agent has state: it overrides `start`, or has a memory of
its own. Then every episode has an object of its own.
"""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from agent_system.errors import AgentSystemError
from agent_system.memory import Memory
from agent_system.projection import Projection, Projector, raw_text
from verl.utils.names import did_you_mean

if TYPE_CHECKING:
    from agent_system.environment import Task

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
        prompt: template of the user message with `{env_prompt}`, `{team_context}`, `{memory}`,
            `{step}` and the variables that the orchestra passes to `turn.act`. Literal braces are
            written twice.
        system: optional template of the system message, with the same variables. It is never
            shortened.
        projection: text -> `Projection`: a function, the result of a factory such as `tag(...)`, or
            a method.
        memory_class: memory of this agent alone, which `{memory}` shows instead of the team's; None
            for an agent without one. Options may change it per object.
        memory: the memory of the episode, or None.
        calls_tools: whether a call has several generations with tool calls between them, as those
            of a `ToolAgent`.
        acts_as: the agent's name for the environment (`act`, `observe`, `score`, `Outcome.local`);
            None: its name in the team. Options may change it per object.
        agent_id: the agent's name in the team.
        config: the options of the orchestra, so that a subclass can choose a template by them.
    """

    prompt: str = "{env_prompt}"
    system: str | None = None
    projection: ClassVar[Any] = staticmethod(raw_text)
    memory_class: type[Memory] | None = None
    memory: Memory | None = None
    calls_tools: ClassVar[bool] = False
    acts_as: str | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        projection = cls.__dict__.get("projection")
        if (
            inspect.isfunction(projection)
            and next(iter(inspect.signature(projection).parameters), "") != "self"
        ):
            cls.projection = staticmethod(projection)

    def __init__(self, agent_id: str, config: Any = None) -> None:
        self.agent_id = agent_id
        self.config = config

    @property
    def stateful(self) -> bool:
        """Whether every episode has an object of its own."""
        return self.memory_class is not None or type(self).start is not BaseAgent.start

    def start(self, task: Task) -> None:
        """Set the state at the beginning of an episode, as in `self.notes = []`; only `project` and
        the agent's tools may change it.

        Args:
            task: the task, without its ground truth.
        """

    def fork(self) -> Self:
        """Return a copy with a state of its own, the same object for an agent without state. The
        options are not copied.

        Raises:
            AgentSystemError: an attribute cannot be copied.
        """
        if not self.stateful:
            return self
        try:
            return copy.deepcopy(self, {id(self.config): self.config})
        except Exception as error:
            # whatever the attributes of a user's class raise
            raise AgentSystemError(
                f"the state of agent {self.agent_id!r} cannot be copied: {_uncopyable(self)}: "
                f"{type(error).__name__}: {error}; keep plain data in the agent, and open files, "
                "locks and connections where they are used"
            ) from error

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
        messages = (
            [] if self.system is None else [{"role": "system", "content": self._fill(self.system, variables)}]
        )
        messages.append({"role": "user", "content": self._fill(self.prompt, variables)})
        return messages

    def project(self, text: str) -> Projection:
        """Return the action parsed from `text`. An agent with state may change it here: the object
        is a copy, kept if the reply is.
        """
        projector: Projector = self.projection
        return projector(text)

    def _fill(self, template: str, variables: Mapping[str, Any]) -> str:
        try:
            return template.format_map(variables)
        except KeyError as error:
            name = str(error.args[0])
            raise AgentSystemError(
                f"the prompt of {self.agent_id!r} uses {{{name}}}, which turn.act() did not "
                f"pass{did_you_mean(name, variables)}; available: {', '.join(sorted(variables))}"
            ) from error
        except (ValueError, IndexError) as error:
            raise AgentSystemError(
                f"the prompt template of {self.agent_id!r} is malformed ({error}); write literal "
                f"braces twice: {{{{ }}}}"
            ) from error


def own_data(agent: BaseAgent) -> dict[str, bytes]:
    """Return the agent's attributes of built-in types, as bytes to compare; one that holds other
    objects may be missing.
    """
    data: dict[str, bytes] = {}
    for name, value in vars(agent).items():
        # whatever the attributes of a user's class raise
        with suppress(Exception):
            if type(value).__module__ == "builtins":
                _WithoutAgent(agent, written := io.BytesIO()).dump(value)
                data[name] = written.getvalue()
    return data


class _WithoutAgent(pickle.Pickler):
    """Pickles an attribute of an agent without the agent itself, to which its tools may refer."""

    def __init__(self, agent: BaseAgent, file: io.BytesIO) -> None:
        super().__init__(file)
        self._agent = agent

    def persistent_id(self, obj: Any) -> str | None:
        """Return a name for the agent."""
        return "agent" if obj is self._agent else None


def _uncopyable(agent: BaseAgent) -> str:
    """Return the attribute that cannot be copied alone."""
    for name, value in vars(agent).items():
        try:
            copy.deepcopy(value, {id(agent): agent, id(agent.config): agent.config})
        except Exception:
            return f"its attribute {name!r} of type {type(value).__name__}"
    return "its attributes"


def render_entries(entries: Sequence[Entry]) -> str:
    """Return the entries as `<agent>: <text>`, oldest first, separated by blank lines."""
    return "\n\n".join(f"{e.agent_id}: {e.text}" for e in entries)
