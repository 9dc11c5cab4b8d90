"""Options of the math_tool workflow: the team's and the world's."""

from __future__ import annotations

from dataclasses import dataclass

from agent_system.errors import AgentSystemError
from agent_system.options import check_choice, check_floats
from agent_system.workflows.math_tool.prompts import STYLES

DECIDERS = ("reasoner", "tool")


@dataclass(frozen=True)
class MathToolOptions:
    """Options under `agent.orchestra.math_tool`.

    Attributes:
        prompt_style: wording of the prompts: full | short (for models of a few million parameters).
    """

    prompt_style: str = "full"

    def __post_init__(self) -> None:
        check_choice("agent.orchestra.math_tool.prompt_style", self.prompt_style, tuple(STYLES))


@dataclass(frozen=True)
class MathToolEnvOptions:
    """Options under `env.params`.

    Attributes:
        decides: whose answer is the team's where they do not agree: reasoner | tool; where it has none, the team is wrong.
        format_reward, match_reward: Reasoner, local, for an answer in a box and for a right one.
        build_reward, run_reward, output_reward: Tool-user, local, for a program that compiles, one that ends by itself and prints an
            answer, one whose answer is right.
        tolerance: relative, for the number that a program prints, against the truth and the Reasoner's answer; integers stay exact.
        grader_workers: most grader processes; 0 takes the number of cores, at most four.
        grader_timeout_s: CPU seconds after which an answer that cannot be compared scores 0.
    """

    decides: str = "reasoner"
    format_reward: float = 0.2
    match_reward: float = 0.8
    build_reward: float = 0.1
    run_reward: float = 0.1
    output_reward: float = 0.8
    tolerance: float = 1e-6
    grader_workers: int = 0
    grader_timeout_s: float = 3.0

    def __post_init__(self) -> None:
        check_choice("env.params.decides", self.decides, DECIDERS)
        if self.grader_timeout_s <= 0 or self.grader_workers < 0:
            raise AgentSystemError(
                f"env.params.grader_timeout_s must be positive and grader_workers 0 or more, "
                f"found {self.grader_timeout_s:g} and {self.grader_workers}"
            )
        check_floats(self, "env.params")
