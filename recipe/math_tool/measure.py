"""Measure `bash examples/run_math_tool.sh`: the team's success on held-out problems, and its tool calls,
before and after training.

    python recipe/math_tool/measure.py --seeds 0 1 2

writes `results.json` into this folder, rows `{"seed", "before", "after", "train_seconds", ...}`: success at
temperature 1, accuracy of both roles, tool calls per episode, and malformed and failed calls, which are
totals of a validation (200 episodes). `curves.json` has the success at every validation. Rows of an earlier
call are kept unless they are measured again.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from recipe.seeds import main

METRICS = {
    "tool_accuracy": "val/env/tool/accuracy",
    "reasoner_accuracy": "val/env/reasoner/accuracy",
    "calls": "val/agent/tool_agent/tools/calls_per_episode",
    "malformed": "val/agent/tool_agent/tools/malformed",
    "errors": "val/agent/tool_agent/tools/errors",
}


if __name__ == "__main__":
    main("math_tool", Path(__file__).parent, __doc__, METRICS)
