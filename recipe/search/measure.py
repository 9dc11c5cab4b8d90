"""Measure `bash examples/run_search.sh`: exact match on held-out questions before and after training.

    python recipe/search/measure.py --seeds 0 1 2

writes `results.json` into this folder, rows `{"seed", "before", "after", "train_seconds", ...}`: exact match
at temperature 1, F1, the Verifier's accuracy, the share of episodes in which the answer is known at the end,
and searches per episode. `curves.json` has exact match at every validation. Rows of an earlier call are kept
unless they are measured again.
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
