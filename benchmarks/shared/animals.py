"""The reward of `benchmarks/real_model.py`, in verl's form."""

from __future__ import annotations

import re
from typing import Any


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """Return 1 for a reply that names the animal, the first word of the truth `horse/table`, and nowhere the
    other one.
    """
    animal, other = (re.search(rf"\b{word}\b", solution_str.lower()) for word in ground_truth.split("/"))
    return float(animal is not None and other is None)
