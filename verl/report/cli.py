"""Write the page of one or several runs:

verl-mas report RUN [RUN...] [--out FILE] [--max-mb 8] [--check] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verl.report.folder import ReportError
from verl.report.index import Report, read_report
from verl.report.page import MEGABYTE, report_page
from verl.trainer.config.command import fail
from verl.utils.disk import DiskError, write_whole, writing
from verl.utils.plain import printable, text

# Exit statuses of `--check`.
RAISED = 3
FAILED = 4


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exit with 1 and a one-line error if there is no report, with 3 if
    `--check` finds an alarm, with 4 if it finds none and a run has failed.
    """
    options = _parsed(arguments)
    out = options.out or (options.runs[0] if len(options.runs) == 1 else Path()) / "report.html"
    try:
        report = read_report(options.runs)
        page = report_page(report, options.max_mb)
        write_page(out, page)
    except (ReportError, DiskError) as error:
        fail(str(error), 1)
    lines = [json.dumps(_summary(report, out, page), indent=1)] if options.json else _lines(report, out, page)
    for line in lines:
        sys.stdout.write(f"{line if options.json else printable(line)}\n")
    sys.exit(_status(report) if options.check else 0)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="verl-mas report",
        epilog="See docs/report.md.",
        description="Write the page of one or several runs as one HTML file.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="folder of a run")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="default: report.html in the run, or here for several"
    )
    parser.add_argument(
        "--max-mb", type=_megabytes, default=8.0, metavar="N", help="size of the page, 8 by default"
    )
    parser.add_argument(
        "--check", action="store_true", help="exit with 3 if an alarm is raised, with 4 if a run failed"
    )
    parser.add_argument("--json", action="store_true", help="print what is known of each run as JSON")
    return parser.parse_args(arguments)


def _megabytes(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1000:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1000")
    return value


def write_page(path: Path, page: str) -> None:
    """Write a page whole or not at all.

    Raises:
        DiskError: it cannot be written.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, page.encode())


def _raised(run: dict[str, Any]) -> list[dict[str, Any]]:
    return [alarm for alarm in run["alarms"] if alarm.get("cleared") is None and alarm["level"] != "hint"]


def _has_failed(run: dict[str, Any]) -> bool:
    return (run["state"] or {}).get("state") == "failed"


def _status(report: Report) -> int:
    if any(_raised(run) for run in report.runs):
        return RAISED
    return FAILED if any(map(_has_failed, report.runs)) else 0


def _address(out: Path, run: int, alarm: dict[str, Any]) -> str:
    return f"{out}#/overview?run={run}&alarm={alarm['number']}"


def _lines(report: Report, out: Path, page: str) -> list[str]:
    lines = []
    for number, run in enumerate(report.runs):
        if _has_failed(run):
            lines.append(
                f"{run['name']}: failed: {text(run['state'].get('error')) or 'run.json has no error'}"
            )
        lines += [f"{run['name']}: {note}" for note in run["notes"]]
        for alarm in _raised(run):
            said = str(alarm["text"])
            if alarm.get("try"):
                # the texts of alarms are whole sentences, which the page shows alone
                said = f"{said.removesuffix('.')}; try {', '.join(map(str, alarm['try']))}"
            lines.append(
                f"{run['name']}: step {alarm['raised']}: {alarm['name']}: {said} "
                f"({_address(out, number, alarm)})"
            )
    return [*lines, f"{out} ({len(page) / MEGABYTE:.1f} MB)"]


def _summary(report: Report, out: Path, page: str) -> dict[str, Any]:
    return {
        "file": str(out),
        "bytes": len(page.encode("utf-8")),
        "runs": [
            {
                "name": run["name"],
                "folder": run["folder"],
                "state": (run["state"] or {}).get("state"),
                "error": (run["state"] or {}).get("error"),
                # step 0 is the validation before training
                "steps": sum(step > 0 for step in run["steps"]),
                "episodes": run["episodes"]["length"],
                "left_out_texts": run["left_out_texts"],
                "accuracy": {name: run["accuracy"][name] for name in ("measure", "before", "after")},
                "solved": run["solved"],
                "notes": run["notes"],
                "alarms": [
                    alarm | {"address": _address(out, number, alarm)}
                    for alarm in run["alarms"]
                    if alarm.get("cleared") is None
                ],
            }
            for number, run in enumerate(report.runs)
        ],
    }


if __name__ == "__main__":
    main()
