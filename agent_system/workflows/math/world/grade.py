"""Comparison of an answer with the ground truth: exact where both are numbers, by value in another
process otherwise.
"""

from __future__ import annotations

from functools import lru_cache

from agent_system.workflows.math.world.exact import (
    ExactNumber,
    exact_number,
    is_number_and_word,
    number_with_symbol,
)
from agent_system.workflows.math.world.grader_pool import Approximate, GraderPool, Verdict
from agent_system.workflows.math.world.latex import same_text

MAX_ANSWER_CHARS = 1000


@lru_cache(maxsize=8)
def shared_pool(workers: int = 0, timeout_s: float = 3.0) -> GraderPool:
    """Return the pool shared by all environments of this process; it starts processes on demand."""
    return GraderPool(workers, timeout_s)


def quick_grade(answer: str, truth: str, tolerance: float = 0.0) -> Verdict | None:
    """Compare without a grader process; return None when one is needed.

    Two numbers are compared as fractions: without a tolerance 204 is not 205 and 0.333 is not 1/3.
    A unit on one side only is ignored; 3 m is not 3 km.

    Args:
        answer: the team's answer.
        truth: the ground truth.
        tolerance: relative, for an answer printed by a program; integers are always compared
            exactly (`close`).
    """
    if not answer.strip() or len(answer) > MAX_ANSWER_CHARS:
        return Verdict.DIFFERENT
    if same_text(answer, truth):
        return Verdict.EQUAL
    left = exact_number(answer)
    right = exact_number(truth)
    if right is not None:
        left = left or number_with_symbol(answer)
    elif right := number_with_symbol(truth):
        return _beside_symbol(answer, right, tolerance)
    if left is not None and right is not None:
        return Verdict.EQUAL if left.equals(right, tolerance) else Verdict.DIFFERENT
    return None


def _beside_symbol(answer: str, right: ExactNumber, tolerance: float) -> Verdict | None:
    """Compare with a truth such as `5 dm`: the letters are a unit where the answer has one, and are
    not exchanged.
    """
    left = exact_number(answer)
    if left is None or not left.unit:
        left = number_with_symbol(answer)
    if left is not None:
        return Verdict.EQUAL if left.equals(right, tolerance) else Verdict.DIFFERENT
    return Verdict.DIFFERENT if is_number_and_word(answer) else None


async def grade(answer: str, truth: str, pool: GraderPool, tolerance: float = 0.0) -> Verdict:
    """Compare the content of the box, or a program's output, with the ground truth; only
    `Verdict.EQUAL` is right.

    The arguments are those of `quick_grade`.

    Raises:
        GraderError: no grader process can be started.
    """
    quick = quick_grade(answer, truth, tolerance)
    if quick is not None:
        return quick
    number = exact_number(answer) if tolerance else None
    if number is None:
        return await pool.compare(answer, truth)
    values = [str(value) for value in (number.value, number.also) if value is not None]
    return await pool.compare(answer, truth, Approximate(tuple(values), tolerance, number.all_digits))
