"""Measure `bash examples/run_code.sh`: success on held-out tasks before and after training.

    python recipe/code/measure.py --seeds 0 1 2

writes `results.json` into this folder, rows `{"seed", "before", "after", "train_seconds", ...}`: the share of
tasks whose last program passes all golden tests, the pass rate, the share of right tests of the Tester, turns
and agreement. `curves.json` has the success at every validation. Rows of an earlier call are kept unless they
are measured again.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from recipe.seeds import main

METRICS = {
    "pass_rate": "val/env/pass_rate",
    "tester_right": "val/env/tester/right",
    "agreed": "val/env/agreed",
    "turns": "val/episode/turns/mean",
}


if __name__ == "__main__":
    main("code", Path(__file__).parent, __doc__, METRICS)
