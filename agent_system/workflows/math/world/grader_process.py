"""One grader process: reads (answer, truth, numbers, tolerance, all_digits) as JSON lines, compares them, writes a verdict line each.

Math-verify compares them, or `close` where `numbers` has the values of an answer that a program has printed and the truth is a real number.

Run by file path: it needs the standard library and math-verify only, so it starts in well under a second and never holds a copy of the
trainer, which imports `close` alone. Both sides are read as LaTeX; nothing goes through `sympify` or `eval`.
"""

import json
import resource
import signal
import sys
from collections.abc import Sequence
from fractions import Fraction

FLOAT_INTEGERS = 2**53


def close(value: Fraction, truth: Fraction, tolerance: float, all_digits: bool) -> bool:
    """Whether a number is `truth`, up to what a computation with floats loses.

    The two may be `tolerance * |truth|` apart, and `tolerance ** 2` where the truth is 0. Integers stay exact: from one up to 2^53, or of
    any size where both are written with `all_digits` (without an exponent), a number must be less than 1/2 away.
    """
    apart = abs(value - truth)
    if not apart or not tolerance:
        return not apart
    integer = 1 in (value.denominator, truth.denominator) and (all_digits or max(abs(value), abs(truth)) <= FLOAT_INTEGERS)
    return apart <= Fraction(tolerance) * (abs(truth) or Fraction(tolerance)) and not (integer and 2 * apart >= 1)


def main() -> None:
    # The folder of this file comes first on the path of a script; its modules must not shadow anyone's.
    sys.path.pop(0)
    cpu_limit_s, memory_bytes = float(sys.argv[1]), int(sys.argv[2])
    out = sys.stdout
    # Whatever a library prints must not be taken for a verdict.
    sys.stdout = sys.stderr
    import logging

    from math_verify import parse, verify
    from math_verify.parser import LatexExtractionConfig
    from sympy import Expr, Rational

    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    latex = [LatexExtractionConfig(boxed_match_priority=0)]

    def read(text: str) -> list[object]:
        return parse(f"\\boxed{{{text}}}", extraction_config=latex, parsing_timeout=None)

    def equal(answer: str, truth: str, numbers: Sequence[str] = (), tolerance: float = 0.0, all_digits: bool = True) -> bool:
        right = read(truth)
        if numbers and right and isinstance(right[0], Expr) and right[0].is_real:
            known = right[0].doit()
            exact = Rational(known if known.is_Rational else known.evalf(50))
            return any(close(Fraction(number), Fraction(int(exact.p), int(exact.q)), tolerance, all_digits) for number in numbers)
        return bool(verify(right, read(answer), timeout_seconds=None))

    out.write('{"ready": true}\n')
    out.flush()
    for line in sys.stdin:
        asked = json.loads(line)
        # Counts CPU time, so a loaded machine does not change a verdict; the signal's default action ends the process
        # even inside one long multiplication, and after the trainer itself is gone.
        signal.setitimer(signal.ITIMER_PROF, cpu_limit_s)
        try:
            reply: dict[str, object] = {"correct": equal(*asked)}
        except (Exception, RecursionError, MemoryError) as error:
            reply = {"error": type(error).__name__}
        signal.setitimer(signal.ITIMER_PROF, 0)
        out.write(json.dumps(reply) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
