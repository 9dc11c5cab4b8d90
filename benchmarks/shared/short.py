"""`--short`: sizes with which a benchmark ends within three minutes on two cores, with the same last line."""

from __future__ import annotations

import argparse
from typing import Any


def parse_args(parser: argparse.ArgumentParser, **short: Any) -> argparse.Namespace:
    """Parse the command line, with `--short` beside the options of the parser.

    Args:
        parser: of a benchmark, complete.
        short: the defaults that options have under `--short`; each can still be set.
    """
    sizes = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in short.items())
    parser.add_argument(
        "--short",
        action="store_true",
        help=f"at most three minutes on two cores, for a first look: {sizes or 'as without it'}",
    )
    if parser.parse_known_args()[0].short:
        parser.set_defaults(**short)
    return parser.parse_args()
