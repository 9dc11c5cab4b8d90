"""Options of the code workflow: the team's and the world's."""

from __future__ import annotations

from dataclasses import dataclass

from agent_system.errors import AgentSystemError
from agent_system.options import check_choice, check_floats
from agent_system.workflows.code.prompts import STYLES

ORDERS = ("simultaneous", "coder_first", "tester_first")
STOPS = ("tests", "golden")


@dataclass(frozen=True)
class CodeOptions:
    """Options under `agent.orchestra.code`.

    Attributes:
        order: who speaks when in a turn: simultaneous (neither reads the other) | coder_first | tester_first (the second one reads the
            first one's reply).
        prompt_style: wording of the prompts: full | short (for models of a few million parameters).
    """

    order: str = "simultaneous"
    prompt_style: str = "full"

    def __post_init__(self) -> None:
        check_choice("agent.orchestra.code.order", self.order, ORDERS)
        check_choice("agent.orchestra.code.prompt_style", self.prompt_style, tuple(STYLES))


@dataclass(frozen=True)
class CodeEnvOptions:
    """Options under `env.params`.

    Attributes:
        stop: what ends an episode before `env.max_steps`: tests (the program passes all tests of the Tester) | golden (it passes all golden
            tests: the team is told by an oracle when it is right).
        max_tests: tests of one reply that count; later ones are ignored and counted.
        min_tests: tests that the full `reference_reward` takes: it is paid for the share of so many, where a reply has fewer.
        tolerance: how far numbers with a fraction may be apart, absolute or relative.
        build_reward, smoke_reward, pass_reward: local, for a program that compiles, that ends by itself on each of the first three golden
            tests with an answer, and times the share of golden tests that it passes.
        valid_reward, reference_reward: local, for a reply with a test that the reference solution runs to its end (that can be read, where
            there is no reference), and times the share of its tests that the reference solution passes.
    """

    stop: str = "tests"
    max_tests: int = 8
    min_tests: int = 1
    tolerance: float = 1e-6
    build_reward: float = 0.1
    smoke_reward: float = 0.1
    pass_reward: float = 0.8
    valid_reward: float = 0.2
    reference_reward: float = 0.8

    def __post_init__(self) -> None:
        check_choice("env.params.stop", self.stop, STOPS)
        if self.max_tests < 1:
            raise AgentSystemError(f"env.params.max_tests must be 1 or more, found {self.max_tests}")
        if not 1 <= self.min_tests <= self.max_tests:
            raise AgentSystemError(f"env.params.min_tests must be from 1 to max_tests ({self.max_tests}), found {self.min_tests}")
        check_floats(self, "env.params")
