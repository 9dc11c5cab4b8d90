"""The two roles. Their wording is in `prompts.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agent_system.agent import BaseAgent, Entry
from agent_system.projection import Projection, boxed_answer, verdict
from agent_system.registry import AgentRegistry
from agent_system.workflows.math.options import MathOptions
from agent_system.workflows.math.prompts import STYLES

SOLVER = "Solver Agent"
VERIFIER = "Verifier Agent"
APPROVE, REJECT = "approve", "reject"


class MathAgent(BaseAgent):
    """A role that reads the whole discussion in the style that `prompt_style` names."""

    def __init__(self, agent_id: str, config: Any = None) -> None:
        super().__init__(agent_id, config if isinstance(config, MathOptions) else MathOptions())
        self.style = STYLES[self.config.prompt_style]

    def team_context(self, entries: Sequence[Entry]) -> str:
        quoted = (self.style.entry.format(role=entry.agent_id.split()[0], text=entry.text) for entry in entries)
        return self.style.separator.join(quoted) or self.style.nobody_spoke


@AgentRegistry.register(SOLVER, orchestra="math")
class SolverAgent(MathAgent):
    r"""Proposes a solution; its action is what stands in the last `\boxed{}`."""

    projection = boxed_answer

    def __init__(self, agent_id: str = SOLVER, config: Any = None) -> None:
        super().__init__(agent_id, config)
        self.prompt = self.style.solver


@AgentRegistry.register(VERIFIER, orchestra="math")
class VerifierAgent(MathAgent):
    """Judges the latest solution.

    Its action is `approve`, `reject`, or empty when no verdict could be read: then `fields["approved"]` holds the fallback,
    and the environment, which sees actions only, rewards nothing.
    """

    def __init__(self, agent_id: str = VERIFIER, config: Any = None) -> None:
        super().__init__(agent_id, config)
        self.prompt = self.style.verifier
        self._read = verdict("verify", fallback=self.config.verdict_fallback)

    def project(self, text: str) -> Projection:
        found = self._read(text)
        return found if found.fields["parsed"] else replace(found, action="")
