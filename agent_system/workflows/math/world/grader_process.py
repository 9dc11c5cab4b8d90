"""One grader process: reads (answer, truth, numbers, tolerance, all_digits) as JSON lines and
writes one line with the verdict for each.

The comparison is made by `algebra`, or by `close` where `numbers` holds the values of an answer
printed by a program and the truth is a real number. Both sides are parsed as LaTeX; nothing is
passed to `sympify` or `eval`.

The file is run by its path, and of this project it imports the modules beside it alone, so that it
starts in about a second and does not import the trainer. The trainer imports `close` from here.
"""

import json
import resource
import signal
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from types import ModuleType

FLOAT_INTEGERS = 2**53


def close(value: Fraction, truth: Fraction, tolerance: float, all_digits: bool) -> bool:
    """Return whether `value` equals `truth` up to the error of a computation with floats.

    The two may differ by `tolerance * |truth|`, or by `tolerance ** 2` where the truth is 0.
    Integers are compared exactly: if one of the two is an integer, and both are at most 2^53 or
    written with `all_digits` (without an exponent), they must differ by less than 1/2.
    """
    apart = abs(value - truth)
    if not apart or not tolerance:
        return not apart
    integer = 1 in (value.denominator, truth.denominator) and (
        all_digits or max(abs(value), abs(truth)) <= FLOAT_INTEGERS
    )
    return apart <= Fraction(tolerance) * (abs(truth) or Fraction(tolerance)) and not (
        integer and 2 * apart >= 1
    )


def _without_trainer() -> None:
    """Let modules beside this one be imported by their full names without the packages around them,
    which import the trainer.
    """
    folder = Path(__file__).resolve().parent
    packages = [
        "agent_system",
        "agent_system.workflows",
        "agent_system.workflows.math",
        "agent_system.workflows.math.world",
    ]
    for name, place in zip(
        packages, [folder.parents[2], folder.parents[1], folder.parents[0], folder], strict=True
    ):
        package = sys.modules[name] = ModuleType(name)
        package.__path__ = [str(place)]


def main() -> None:
    # A script's folder is the first entry of sys.path; the modules in it must not shadow others.
    sys.path.pop(0)
    cpu_limit_s = float(sys.argv[1])
    memory_bytes = int(sys.argv[2])
    out = sys.stdout
    # Output of libraries must not be parsed as a verdict.
    sys.stdout = sys.stderr
    import logging

    _without_trainer()
    from agent_system.workflows.math.world import algebra

    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def equal(
        answer: str, truth: str, numbers: Sequence[str] = (), tolerance: float = 0.0, all_digits: bool = True
    ) -> bool:
        if numbers:
            values = [Fraction(number) for number in numbers]
            near = algebra.approximately(
                truth, lambda fraction: any(close(v, fraction, tolerance, all_digits) for v in values)
            )
            if near is not None:
                return near
        return algebra.equal(answer, truth)

    # the first comparison takes 0.2 s more, of which a loaded machine makes a timeout
    equal("1+1", "2")
    out.write('{"ready": true}\n')
    out.flush()
    for line in sys.stdin:
        arguments = json.loads(line)
        # Limits CPU time, so a loaded machine does not change a verdict; the signal's default
        # action ends the process even inside one long multiplication, and after the trainer has
        # ended.
        signal.setitimer(signal.ITIMER_PROF, cpu_limit_s)
        try:
            reply: dict[str, object] = {"correct": equal(*arguments)}
        except (Exception, RecursionError, MemoryError) as error:
            reply = {"error": type(error).__name__}
        signal.setitimer(signal.ITIMER_PROF, 0)
        out.write(json.dumps(reply) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
