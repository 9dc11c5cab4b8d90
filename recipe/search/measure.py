"""Measures `bash examples/run_search.sh`: exact match on held-out questions before and after.

    python recipe/search/measure.py --seeds 0 1 2

writes `results.json` beside this file, rows `{"seed", "before", "after", "train_seconds", ...}`: exact match at temperature 1, its F1,
how often the Verifier's verdict agrees with what is known, how often what is needed is known at the end, and searches an episode.
`curves.json` has exact match at every validation. What is not measured again is kept.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from recipe.seeds import main

METRICS = {
    "f1": "val/env/f1",
    "verifier_accuracy": "val/env/verifier/accuracy",
    "known": "val/env/known",
    "searches": "val/env/searches",
}


if __name__ == "__main__":
    main("search", Path(__file__).parent, __doc__, METRICS)
