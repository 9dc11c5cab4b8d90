"""One grader process: reads (answer, truth) as JSON lines, compares them with math-verify, writes a verdict line each.

Run by file path and not imported: it needs the standard library and math-verify only, so it starts in well under a second
and never holds a copy of the trainer. Both sides are read as LaTeX; nothing goes through `sympify` or `eval`.
"""

import json
import resource
import signal
import sys


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

    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    latex = [LatexExtractionConfig(boxed_match_priority=0)]

    def read(text: str) -> list[object]:
        return parse(f"\\boxed{{{text}}}", extraction_config=latex, parsing_timeout=None)

    out.write('{"ready": true}\n')
    out.flush()
    for line in sys.stdin:
        answer, truth = json.loads(line)
        # Counts CPU time, so a loaded machine does not change a verdict; the signal's default action ends the process
        # even inside one long multiplication, and after the trainer itself is gone.
        signal.setitimer(signal.ITIMER_PROF, cpu_limit_s)
        try:
            reply: dict[str, object] = {"correct": bool(verify(read(truth), read(answer), timeout_seconds=None))}
        except (Exception, RecursionError, MemoryError) as error:
            reply = {"error": type(error).__name__}
        signal.setitimer(signal.ITIMER_PROF, 0)
        out.write(json.dumps(reply) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
