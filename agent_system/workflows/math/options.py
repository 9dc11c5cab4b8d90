"""Options of the math workflow, under `agent.orchestra.math`."""

from __future__ import annotations

from dataclasses import dataclass

from agent_system.errors import AgentSystemError, suggestion
from agent_system.workflows.math.prompts import STYLES

FALLBACKS = ("approve", "reject")


@dataclass(frozen=True)
class MathOptions:
    """How Solver and Verifier work together.

    Attributes:
        max_loop_num: most solutions of one episode.
        verdict_fallback: what a reply without a clear verdict counts as: approve | reject.
        verify_last: ask for a verdict on the last solution too; it decides nothing, but it is rewarded.
        prompt_style: wording of the prompts: full | short (for models of a few million parameters).
    """

    max_loop_num: int = 2
    verdict_fallback: str = "reject"
    verify_last: bool = False
    prompt_style: str = "full"

    def __post_init__(self) -> None:
        if self.max_loop_num < 1:
            raise AgentSystemError(f"agent.orchestra.math.max_loop_num must be 1 or more, found {self.max_loop_num}")
        for name, known in (("verdict_fallback", FALLBACKS), ("prompt_style", tuple(STYLES))):
            value = getattr(self, name)
            if value not in known:
                raise AgentSystemError(
                    f"agent.orchestra.math.{name} must be one of {', '.join(known)}, found {value!r}{suggestion(value, known)}"
                )
