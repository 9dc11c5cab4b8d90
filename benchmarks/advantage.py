"""Time of the advantages of a whole batch with every group key, including the grouping by columns of text.

    python benchmarks/advantage.py [--quick] [--repeats 15] [--threads 2]

The batch is 1,024 tasks x 8 episodes x 2 agents, replies of up to 256 tokens; a call is `compute_advantage`
from token rewards to advantages. The peer is a plain implementation: a dict of lists filled row by row, then
one tensor operation per group, as in verl and Dr. MAS. The last line is one JSON object: `ms_16k` (median of
the slowest key), `ms_16k_own` (the same with separate string objects in every row), `ms_1m` (1,000,000 rows
of 8 tokens, so that they fit into memory), `ms_16k_8` (16,384 such rows, for the growth of time),
`gigpo_50k_ms` (grouping and advantages of 50,000 calls by GiGPO), all in wall-clock time; `pass_ms` is the
limit, one pass over the 16,384 rows that writes one number per token into new memory; `spread` has the lowest
and highest repeat of each, `cpu` the median CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.shared.short import parse_args
from verl.protocol import DataProto
from verl.trainer.config import AlgorithmConfig
from verl.trainer.ppo.credit.advantage import compute_advantage

EPISODES, AGENTS = 8, 2
KEYS: dict[str, list[str]] = {
    "GRPO": ["uid"],
    "Dr. MAS": ["uid", "agent_id"],
    "AT-GRPO tree": ["traj_uid", "agent_id", "turn", "call"],
    "AT-GRPO parallel": ["uid", "agent_id", "turn"],
    "per policy": ["policy_id"],
    "global": [],
}


class Spread(NamedTuple):
    """Milliseconds: median, lowest and highest repeat in wall-clock time, and median CPU time, which depends
    less on the load.
    """

    median: float
    low: float
    high: float
    cpu: float


def objects(values: list[Any]) -> np.ndarray:
    """Return a column `[bsz]` of Python objects."""
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def make_batch(rows: int, width: int, own: bool = False) -> DataProto:
    """Return rows in the order of the collector, with scores of 0 or 1 plus noise and lengths from an eighth
    of `width` up to `width`.

    Rows of one task, episode or agent share string objects, as in the collector's batch; with `own` each row
    has its own copy.
    """
    rng = np.random.default_rng(0)
    number = np.arange(rows)
    task, episode, agent = number // (EPISODES * AGENTS), number // AGENTS, number % AGENTS
    lengths = torch.as_tensor(rng.integers(max(width // 8, 1), width + 1, rows))
    rewards = torch.zeros(rows, width)
    scores = (rng.random(rows) < 0.5) + np.round(rng.normal(size=rows), 2)
    rewards[torch.arange(rows), lengths - 1] = torch.as_tensor(scores, dtype=torch.float32)
    tensors = {
        "token_level_rewards": rewards,
        "response_mask": (torch.arange(width) < lengths.unsqueeze(1)).long(),
    }
    uids = [f"train/1/task-{t}/0" for t in range(task[-1] + 1)]
    episodes = [f"{uids[e // EPISODES]}#{e % EPISODES}" for e in range(episode[-1] + 1)]
    columns: dict[str, list[Any]] = {
        "uid": [uids[t] for t in task],
        "traj_uid": [episodes[e] for e in episode],
        "agent_id": [("Solver Agent", "Verifier Agent")[a] for a in agent],
        "policy_id": [("solver_agent", "verifier_agent")[a] for a in agent],
        "turn": [1] * rows,
        "call": [int(a) for a in agent],
    }
    if own:
        columns = {k: ["".join(list(x)) if isinstance(x, str) else x for x in v] for k, v in columns.items()}
    return DataProto.from_dict(tensors=tensors, non_tensors={k: objects(v) for k, v in columns.items()})


def by_hand(batch: DataProto, fields: list[str]) -> torch.Tensor:
    """Return GRPO advantages computed with a dict that is filled row by row."""
    rewards, mask = batch.batch["token_level_rewards"], batch.batch["response_mask"]
    scores = rewards.sum(dim=-1)
    columns = [batch.non_tensor_batch[f] for f in fields]
    keys = ["|".join(str(c[i]) for c in columns) for i in range(len(scores))]
    groups = defaultdict(list)
    for i, key in enumerate(keys):
        groups[key].append(scores[i])
    mean, std = {}, {}
    for key, members in groups.items():
        stacked = torch.stack(members)
        mean[key], std[key] = stacked.mean(), stacked.std() if len(members) > 1 else torch.tensor(1.0)
    for i, key in enumerate(keys):
        scores[i] = (scores[i] - mean[key]) / (std[key] + 1e-6)
    return scores.unsqueeze(-1) * mask


def times(repeats: int, call: Callable[[], object]) -> Spread:
    """Return the milliseconds of a call, after two calls of warm-up."""
    call(), call()
    wall, cpu = [], []
    for _ in range(repeats):
        start, start_cpu = time.perf_counter(), time.process_time()
        call()
        wall.append((time.perf_counter() - start) * 1e3)
        cpu.append((time.process_time() - start_cpu) * 1e3)
    return Spread(sorted(wall)[repeats // 2], min(wall), max(wall), sorted(cpu)[repeats // 2])


def ours(batch: DataProto, fields: list[str]) -> Callable[[], object]:
    """Return a call with this group key; a sample is a row or, when grouped by task only, a trajectory."""
    config = AlgorithmConfig(group_by=fields)
    return lambda: compute_advantage(batch, "grpo", config=config)


def table(rows: int, width: int, repeats: int, with_peer: bool = False, own: bool = False) -> Spread:
    """Measure every key and return the spread of the slowest."""
    batch, worst = make_batch(rows, width, own), Spread(0.0, 0.0, 0.0, 0.0)
    write(
        f"{rows:,} rows x {width} tokens, {'with separate strings, ' if own else ''}load "
        f"{os.getloadavg()[0]:.1f}"
    )
    for name, fields in KEYS.items():
        mine = times(repeats, ours(batch, fields))
        worst = max(worst, mine)
        line = f"  {name:<18}{','.join(fields):<32}{mine.median:8.2f} ms [{mine.low:.2f}, {mine.high:.2f}], cpu {mine.cpu:.2f}"
        if with_peer:
            peer = times(3, lambda fields=fields: by_hand(batch, fields))
            line += f"   by hand {peer.median:8.1f} ms, {peer.median / mine.median:.0f} times as long"
        write(line)
    return worst


def gigpo(rows: int, repeats: int) -> Spread:
    """Measure GiGPO on calls of which about one in seven of a task has the same observation, a text of 360
    characters.
    """
    batch = make_batch(rows, 8)
    uid = batch.non_tensor_batch["uid"]
    filler = "a room with doors " * 20
    batch.non_tensor_batch["anchor"] = objects([f"{filler}{u} {i % 7}" for i, u in enumerate(uid)])
    batch.non_tensor_batch["step_reward"] = objects([float(i % 3) for i in range(rows)])
    config = AlgorithmConfig(adv_estimator="gigpo", gamma=0.95)
    measured = times(repeats, lambda: compute_advantage(batch, "gigpo", gamma=0.95, config=config))
    write(
        f"GiGPO, {rows:,} rows: {measured.median:.1f} ms [{measured.low:.1f}, {measured.high:.1f}], cpu "
        f"{measured.cpu:.1f}"
    )
    return measured


def one_pass(rows: int, width: int, repeats: int) -> Spread:
    """Measure the minimum work of any call: broadcast one number per row over the tokens of the mask, into
    new memory.
    """
    mask, number, kept = make_batch(rows, width).batch["response_mask"], torch.rand(rows, 1), {}

    def call() -> None:
        kept["advantages"] = torch.mul(mask, number)

    measured = times(repeats, call)
    write(
        f"one pass over {rows:,} rows: {measured.median:.2f} ms [{measured.low:.2f}, {measured.high:.2f}], "
        f"cpu {measured.cpu:.2f}"
    )
    return measured


def write(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a 64th of the rows, to test the script")
    args = parse_args(parser, repeats=5)
    torch.set_num_threads(args.threads)
    cut = 64 if args.quick else 1
    measured = {
        "ms_16k": table(16_384 // cut, 256, args.repeats, with_peer=True),
        "ms_16k_own": table(16_384 // cut, 256, args.repeats, own=True),
        "ms_16k_8": table(16_384 // cut, 8, args.repeats),
        "ms_1m": table(1_000_000 // cut, 8, max(args.repeats // 3, 1)),
        "gigpo_50k_ms": gigpo(50_000 // cut, args.repeats),
        "pass_ms": one_pass(16_384 // cut, 256, args.repeats),
    }
    result: dict[str, Any] = {name: round(spread.median, 2) for name, spread in measured.items()}
    result["spread"] = {
        name: [round(spread.low, 2), round(spread.high, 2)] for name, spread in measured.items()
    }
    result["cpu"] = {name: round(spread.cpu, 2) for name, spread in measured.items()}
    write(json.dumps(result))


if __name__ == "__main__":
    main()
