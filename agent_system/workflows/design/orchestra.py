"""The workflow `design`: a Designer writes the steps of a team, which the roles then play.

agent.orchestra_type=design agent.orchestra.design.file=roles.yaml
agent.agent_ids='[Designer Agent,Solver,Checker,Filer]'
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_system.agent import BaseAgent, Entry
from agent_system.errors import AgentSystemError
from agent_system.options import build_options
from agent_system.orchestra import BaseOrchestra
from agent_system.projection import Projection
from agent_system.registry import ANY, AgentRegistry, OrchestraRegistry
from agent_system.turn import Turn
from agent_system.workflows.design.designs import Roles
from agent_system.workflows.graph import GraphOptions, GraphOrchestra

NAME = "design"
DESIGNER = "Designer Agent"
# `{roles}` and `{example}` are filled in at the start, the others at each call.
PROMPT = """\
Design a team of language models for this task, as JSON. It is not solved by you but by the team.

Task: {env_prompt}

Roles: {roles}

"do" is a list of steps: {"call": role, "id": name}; {"vote": role, "n": 3, "id": name}, the most \
frequent of n answers; {"loop": 3, "do": [steps]}, repeated up to 3 times; {"stop": {"of": name, "is": \
answer}}, the end of the loop; {"if": {"of": name, "is": answer}, "do": [steps]}; {"parallel": [[steps], \
[steps]]}. "return" is the name of the step whose answer counts. Each call costs time.

Example: {example}

Reply with the JSON alone."""


@dataclass(frozen=True)
class DesignOptions:
    """Options under `agent.orchestra.design`.

    Attributes:
        file: a team file, YAML or JSON; its agents are the roles, its steps the example of the
            prompt.
        designer: name of the Designer.
        prompt: its prompt, with `{env_prompt}`, and `{roles}` and `{example}` where it shows these;
            empty for `PROMPT`.
        max_steps: largest number of steps of a design.
        max_calls: largest number of calls in a turn that a design may make.
        tools: as of `graph`.
    """

    file: str = ""
    designer: str = DESIGNER
    prompt: str = ""
    max_steps: int = 16
    max_calls: int = 64
    tools: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.file:
            raise AgentSystemError(
                "agent.orchestra_type=design needs a team file with the roles: "
                "agent.orchestra.design.file=roles.yaml, see docs/designer.md"
            )
        for name in ("max_steps", "max_calls"):
            if getattr(self, name) < 1:
                raise AgentSystemError(
                    f"agent.orchestra.design.{name} must be 1 or more, found {getattr(self, name)}"
                )


class Designer(BaseAgent):
    """Writes a design; its action is the text of one, valid if it can be played.

    `fields` has `steps` and `calls` of a design, or the `problem` of an invalid one.
    """

    def __init__(self, agent_id: str, config: DesignOptions, roles: Roles) -> None:
        super().__init__(agent_id, config)
        example = {key: roles.team.source.value[key] for key in ("do", "return")}
        texts = {"roles": ", ".join(roles.team.agents), "example": json.dumps(example)}
        self.prompt = filled(config.prompt or PROMPT, texts)
        self._roles = roles

    def team_context(self, entries: Sequence[Entry]) -> str:
        """Return an empty text: nothing is said before a design."""
        del entries
        return ""

    def project(self, text: str) -> Projection:
        try:
            design = self._roles.read(text)
        except AgentSystemError as problem:
            return Projection("", valid=False, fields={"problem": str(problem)}, text=text)
        return Projection(text, fields={"steps": design.steps, "calls": design.calls}, text=text)


def filled(template: str, texts: Mapping[str, str]) -> str:
    """Return a template of calls with some texts filled in: braces are literal but for `{env_prompt}`,
    `{memory}`, `{step}` and the names of `texts`.
    """
    text = template.replace("{", "{{").replace("}", "}}")
    for name in ("env_prompt", "memory", "step"):
        text = text.replace(f"{{{{{name}}}}}", f"{{{name}}}")
    for name, content in texts.items():
        text = text.replace(f"{{{{{name}}}}}", content.replace("{", "{{").replace("}", "}}"))
    return text


# Names are looked up before a file is read; `DesignOrchestra.make_agent` makes the agents.
AgentRegistry.register(ANY, orchestra=NAME)(BaseAgent)


@OrchestraRegistry.register(NAME)
class DesignOrchestra(GraphOrchestra):
    """Plays the steps that the Designer writes in each turn with the roles of a file.

    A turn whose design cannot be played has no further call, and its action is empty. `env/design/valid`,
    `env/design/steps` and `env/design/calls` are of the last turn, the two last ones of valid designs.

    Attributes:
        roles: the roles.
    """

    config_class = DesignOptions

    @classmethod
    def from_options(cls, options: Mapping[str, Any] | None, name: str) -> BaseOrchestra:
        return cls(build_options(cls.config_class, options, f"agent.orchestra.{name}"))

    def __init__(self, config: DesignOptions) -> None:
        """Read the roles.

        Raises AgentSystemError for a file that is wrong, and one with an agent of the Designer's
        name.
        """
        super().__init__(GraphOptions(config.file, tools=config.tools))
        self.where = f"agent.orchestra.{NAME}.file={config.file}"
        if config.designer in self.team.agents:
            raise self.team.source.error(
                ("agents", config.designer), "is the name of the Designer, which is no role; rename the role"
            )
        self.roles = Roles(self.team, config.max_steps, config.max_calls)
        self.agents = (config.designer, *self.team.agents)
        self._designer = Designer(config.designer, config, self.roles)

    def make_agent(self, agent_id: str, env_name: str) -> BaseAgent:
        """Return the Designer or a role. Raises as `GraphOrchestra.make_agent`."""
        return self._designer if agent_id == self.agents[0] else super().make_agent(agent_id, env_name)

    async def run(self, turn: Turn) -> Any:
        """Ask for a design and play it."""
        turn.design = ""
        reply = await turn.act(self.agents[0])
        turn.info["design/valid"] = float(reply.valid)
        if not reply.valid:
            return ""
        design = self.roles.read(reply.action)
        turn.design = design.key
        turn.info |= {"design/steps": design.steps, "design/calls": design.calls}
        return await design.play(turn)
