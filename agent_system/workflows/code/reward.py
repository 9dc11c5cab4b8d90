"""The rewards, with the coefficients of "Stronger-MAS" (arXiv 2510.11062) by default."""

from __future__ import annotations

from collections.abc import Sequence

from agent_system.sandbox import Reason
from agent_system.workflows.code.options import CodeEnvOptions
from agent_system.workflows.code.runs import Checked

SMOKE_TESTS = 3


def pass_rate(checked: Sequence[Checked], least: int = 1) -> float:
    """Share of tests that were passed; where fewer than `least` were run, the others count as not passed."""
    return sum(one.passed for one in checked) / max(len(checked), least, 1)


def builds(golden: Sequence[Checked]) -> bool:
    """Whether a program, run on at least one test, compiles."""
    return bool(golden) and not golden[0].reason.is_no_program


def smokes(golden: Sequence[Checked]) -> bool:
    """Whether a program ended well on each of the first three tests, with an answer, or with none where that is right."""
    return bool(golden) and all(one.reason is Reason.OK and (one.passed or not one.silent) for one in golden[:SMOKE_TESTS])


def coder_reward(golden: Sequence[Checked], options: CodeEnvOptions) -> float:
    """What a reply of the Coder earns for itself; `golden` is empty where it held no program."""
    built = options.build_reward * builds(golden) + options.smoke_reward * smokes(golden)
    return built + options.pass_reward * pass_rate(golden)


def tester_reward(by_reference: Sequence[Checked], num_tests: int, valid: bool, options: CodeEnvOptions) -> float:
    """What a reply of the Tester earns for itself.

    Args:
        by_reference: its tests, run on the reference solution; empty where there is none.
        num_tests: how many it holds, those that contradict each other included.
        valid: it holds a test that the reference runs to its end, or a test at all where there is no reference.
    """
    right = pass_rate(by_reference, max(num_tests, options.min_tests))
    return options.valid_reward * valid + options.reference_reward * right
