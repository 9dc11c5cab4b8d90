"""Time of a step of a team of four with one model, with one adapter per agent and with one model per agent,
and with a single adapter.

    python benchmarks/placement.py [--tasks 4] [--group 4] [--steps 4] [--rounds 3] [key=value ...]

Every level is a separate run in a separate process with the local controller; a round runs all of them, one
after the other. Learning rates are almost 0, so that all levels sample and train on replies of the same
lengths. The last line is one JSON object: `l1_s`, `l2_s`, `l3_s` and `single_s` are the seconds of a step
from the first prompt to the last weight sent (medians of all steps but each run's first), `l2_over_single` is
the median over rounds of L2's seconds relative to a single adapter on the same rows, `l2_update_over_single`
the same for the update alone; `lora_sync_bytes` and `full_sync_bytes` are the sizes of the weight sync of a
step with four adapters and with four models; `peak_gib` is the peak memory of a run's process (median of the
rounds), `spread` the lowest and highest round.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent_system import (
    AgentRegistry,
    BaseAgent,
    BaseEnv,
    BaseOrchestra,
    EnvRegistry,
    Observation,
    OrchestraRegistry,
    Outcome,
    Task,
    Turn,
)
from agent_system.launch import train as launch
from agent_system.projection import Projection
from benchmarks.shared.short import parse_args
from examples.embedded.math.tasks import generate_split, to_row
from recipe.runs import overrides_of, read_metrics
from verl.models.loader import without_progress_bars
from verl.models.tiny import TinyModelSize, make_tiny_model
from verl.trainer.plan.command_line import compose_config

MEMORY = "perf/cpu_memory_used_gb"
MEMBERS = ("Member A", "Member B", "Member C", "Member D")
LORA = {"agent.specialization": "lora", "actor_rollout_ref.model.lora_rank": 8}
LEVELS: dict[str, dict[str, Any]] = {
    "l1": {"agent.specialization": "prompt"},
    "l2": LORA,
    "l3": {"agent.specialization": "full"},
    "single": LORA | {"agent.adapter_ids": ["one"] * len(MEMBERS)},
}


def whole_text(text: str) -> Projection:
    """Return any reply as a valid action."""
    return Projection(text, True, {})


class Member(BaseAgent):
    """An agent that reads the question only, so that the prompts of all members have the same length."""

    prompt = "{env_prompt}"
    projection = staticmethod(whole_text)


for _name in MEMBERS:
    AgentRegistry.register(_name, orchestra="panel")(type(_name.replace(" ", ""), (Member,), {}))


@OrchestraRegistry.register("panel")
class Panel(BaseOrchestra):
    """One call of every member."""

    agents = MEMBERS

    async def run(self, turn: Turn) -> str:
        return "".join([(await turn.act(name)).action for name in MEMBERS])


@EnvRegistry.register("panel")
class PanelWorld(BaseEnv):
    """Environment whose reward is a hash of the reply's text."""

    blocking = False

    def reset(self, task: Task) -> Observation:
        return Observation(task.prompt)

    def act(self, agent_id: str, action: str) -> Outcome:
        return Outcome(local=zlib.crc32(action.encode()) % 100 / 100)

    def step(self, action: str) -> Outcome:
        return Outcome(team=0.0, done=True, info={"success": False})


def prepare(folder: Path, args: argparse.Namespace) -> None:
    """Write a model and tasks."""
    problems, _ = generate_split(args.tasks * 2, 8, 0)
    rows = [to_row(problem, i, "train") for i, problem in enumerate(problems)]
    size = TinyModelSize(hidden_size=args.hidden, intermediate_size=3 * args.hidden)
    with without_progress_bars():
        make_tiny_model(
            folder / "model", (message["content"] for row in rows for message in row["prompt"]), size=size
        )
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def shared_settings(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return the keys of all levels."""
    return {
        "agent.orchestra_type": "panel",
        "agent.agent_ids": list(MEMBERS),
        "env.env_name": "panel",
        "env.rollout.n": args.group,
        "actor_rollout_ref.model.path": folder / "model",
        "actor_rollout_ref.actor.optim.lr": 1e-9,
        "data.train_files": folder / "tasks.jsonl",
        "data.train_batch_size": args.tasks,
        "data.max_prompt_length": 512,
        "data.max_response_length": args.tokens,
        "trainer.controller": "local",
        "trainer.device": "cpu",
        "trainer.logger": ["jsonl"],
        "trainer.total_training_steps": args.steps + 1,
        "trainer.val_before_train": False,
        "trainer.save_freq": -1,
    }


def train(overrides: list[str]) -> None:
    """Train as `python -m verl.trainer.main_ppo` does with these overrides."""
    launch.run(compose_config(overrides))


def run_forked(call: Callable[..., object], *args: object) -> None:
    """Call a function in a fork of this process, which has imported all libraries. Raises RuntimeError when
    it fails.
    """
    process = multiprocessing.get_context("fork").Process(target=call, args=args)
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{call.__name__} ended with status {process.exitcode}; its error is above")


def run(level: str, settings: dict[str, Any], run_dir: Path, overrides: list[str]) -> list[dict[str, Any]]:
    """Train and return the metrics of every step but the first."""
    own = overrides_of(settings | LEVELS[level] | {"trainer.default_local_dir": run_dir})
    run_forked(train, [*own, *overrides])
    return [line for line in read_metrics(run_dir / "metrics.jsonl") if "actor/lr" in line][1:]


def total(line: dict[str, Any], name: str) -> float:
    """Return the sum of a metric over all worker groups."""
    return sum(value for key, value in line.items() if key.startswith("wg/") and key.endswith(f"/{name}"))


def peak_memory(line: dict[str, Any]) -> float:
    """Return the peak memory of the process up to a step, in GiB."""
    return max(value for key, value in line.items() if key.endswith(MEMORY))


def median(lines: list[dict[str, Any]], name: str) -> float:
    return statistics.median(line[name] for line in lines)


def summarise(rounds: list[dict[str, list[dict[str, Any]]]]) -> dict[str, Any]:
    """Return the JSON object of the last line of output."""
    seconds = {level: [median(lines[level], "timing_s/step") for lines in rounds] for level in LEVELS}
    updates = {level: [median(lines[level], "timing_s/update_actor") for lines in rounds] for level in LEVELS}
    ratio = [two / one for two, one in zip(seconds["l2"], seconds["single"], strict=True)]
    update_ratio = [two / one for two, one in zip(updates["l2"], updates["single"], strict=True)]
    memory = {level: [max(map(peak_memory, lines[level])) for lines in rounds] for level in LEVELS}
    first = rounds[0]
    return {
        **{f"{level}_s": round(statistics.median(found), 4) for level, found in seconds.items()},
        "l2_over_single": round(statistics.median(ratio), 3),
        "l2_update_over_single": round(statistics.median(update_ratio), 3),
        "lora_sync_bytes": round(total(first["l2"][-1], "perf/sync_mb") * 2**20),
        "full_sync_bytes": round(total(first["l3"][-1], "perf/sync_mb") * 2**20),
        "peak_gib": {level: round(statistics.median(found), 3) for level, found in memory.items()},
        "reply_tokens": {level: round(median(first[level], "perf/generated_tokens")) for level in LEVELS},
        "spread": {
            **{
                f"{level}_s": [round(min(found), 4), round(max(found), 4)] for level, found in seconds.items()
            },
            "peak_gib": {
                level: [round(min(found), 3), round(max(found), 3)] for level, found in memory.items()
            },
            "l2_over_single": [round(min(ratio), 3), round(max(ratio), 3)],
            "l2_update_over_single": [round(min(update_ratio), 3), round(max(update_ratio), 3)],
        },
    }


def main() -> None:
    """Measure rounds of all levels and report medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--group", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32, help="maximum length of a reply")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument(
        "--steps", type=int, default=4, help="measured steps of each run, after one step of warm-up"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("overrides", nargs="*", help="hydra overrides of every run")
    args = parse_args(parser, rounds=1, steps=2)
    rounds: list[dict[str, list[dict[str, Any]]]] = []
    with tempfile.TemporaryDirectory() as folder:
        run_forked(prepare, Path(folder), args)
        settings = shared_settings(Path(folder), args)
        for number in range(args.rounds):
            found = {
                level: run(level, settings, Path(folder) / f"{level}-{number}", args.overrides)
                for level in LEVELS
            }
            rounds.append(found)
            shown = "  ".join(
                f"{level} {median(lines, 'timing_s/step'):.2f} s" for level, lines in found.items()
            )
            sys.stdout.write(f"round {number + 1} of {args.rounds}: {shown}\n")
            sys.stdout.flush()
    sys.stdout.write(json.dumps(summarise(rounds)) + "\n")


if __name__ == "__main__":
    main()
