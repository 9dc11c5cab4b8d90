"""Cost of tree sampling: prompt tokens computed per committed call with one candidate and with K, and
microseconds of a fork.

    python benchmarks/tree.py [--tasks 32] [--k 8] [--select first] [--repeats 3]

Prompts: a Tool and an Executor with one random tiny model play Plan-Path on the `hf` engine, one episode per
task, by parallel sampling (one reply per call) and as a tree (K replies per call). With `--select first` the
tree continues with the reply of parallel sampling, so both make the same calls; `greedy` continues with the
best. Four episodes share a slot, so replies wait for slots and no slot keeps a prompt of an earlier turn. The
limit is the mean length of the prompts: each is computed once. Without sharing it would be K times as much. A
random model writes no `<moves>`; the agents take every U, D, L and R of a reply as a move, so that candidates
differ and the team moves.

Forks: an environment in the middle of an episode and of a turn (after the Tool's call); the peer is
`copy.deepcopy` of the same object.

The last line is one JSON object: `prompt_tokens_k1` and `prompt_tokens_k<K>` (medians of the repeats, each
with other maps), `prompt_limit_*` (mean prompt lengths), `fork_us` (Plan-Path), `fork_us_<world>`,
`deepcopy_us_<world>` (medians), and `spread`, the lowest and highest repeat of each.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import logging
import os
import random
import statistics
import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

from verl.trainer.config.reward import RewardConfig
from verl.trainer.config.run import TreeConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from agent_system import BaseEnv, Projection, Task
from agent_system.rollout import AgentBinding, Collector, CollectorSettings, EnvFactory
from agent_system.workflows import plan_path, sokoban, sudoku
from agent_system.workflows.plan_path.team import PlanPathOrchestra
from agent_system.workflows.plan_path.world.generate import generate
from agent_system.workflows.sokoban.world.generate import generate as generate_rooms
from agent_system.workflows.sudoku.world.action import cells_text
from agent_system.workflows.sudoku.world.generate import Kind
from agent_system.workflows.sudoku.world.generate import generate as generate_puzzles
from agent_system.workflows.sudoku.world.puzzle import to_text
from benchmarks.shared.short import parse_args
from examples.embedded.plan_path.demos import PlanPathCourse, make_demos
from examples.embedded.plan_path.walkers import careful_moves
from verl.models.loader import load_causal_lm, load_tokenizer, without_progress_bars
from verl.models.tiny import make_tiny_model
from verl.protocol.generate import SamplingParams
from verl.workers.rollout.hf_engine import HFEngine

logger = logging.getLogger("tree")
EPISODES_PER_SLOT = 4
SHORT = plan_path.PlanPathOptions(prompt_style="short")


def letters(text: str) -> Projection:
    """Return every letter of a move in the text as a move; the other agent reads the moves only."""
    moves = "".join(letter for letter in text.upper() if letter in "UDLR")[:4]
    return Projection(moves, bool(moves), text=f"<moves>{' '.join(moves) or '-'}</moves>")


class Tool(plan_path.PlanPathProposerAgent):
    """A Tool whose proposal is the letters of moves in a random model's reply."""

    def project(self, text: str) -> Projection:
        return letters(text)


class Executor(plan_path.PlanPathExecutorAgent):
    """An Executor whose moves are the letters of moves in a random model's reply."""

    def project(self, text: str) -> Projection:
        return letters(text)


class Prompts:
    """Numbers of prompt tokens that the engine computes for the same tasks with one candidate and with
    several.
    """

    def __init__(self, folder: str, args: argparse.Namespace) -> None:
        corpus = [
            message["content"] for demo in make_demos(PlanPathCourse(count=200), seed=0) for message in demo
        ]
        with without_progress_bars():
            make_tiny_model(folder, corpus)
            self.tokenizer, self.args = load_tokenizer(folder), args
            self.model = load_causal_lm(folder, dtype=torch.float32, attn_implementation="sdpa")

    def per_call(self, k: int, seed: int) -> tuple[float, float]:
        """Return the prompt tokens computed and the mean length of a prompt, per committed call."""
        maps = generate(self.args.tasks, seed)
        tasks = [
            Task(f"{seed}-{i}", grid.text, "plan_path", None, {"map": grid.text})
            for i, grid in enumerate(maps)
        ]
        engine = HFEngine(
            self.model, max_num_seqs=max(1, self.args.tasks // EPISODES_PER_SLOT), max_model_len=512
        )
        result = asyncio.run(self._collector(engine, k).collect(tasks, 1, step=seed))
        committed = [sample for episode in result.episodes for sample in episode.committed]
        assert not any(episode.failed for episode in result.episodes)
        assert result.batch is not None and len(result.batch) == k * len(committed)
        lengths = [len(sample.request.prompt_ids) for sample in committed]
        return engine.stats()["prompt_tokens_computed"] / len(committed), statistics.mean(lengths)

    def _collector(self, engine: HFEngine, k: int) -> Collector:
        sampling = SamplingParams(self.args.tokens, stop_token_ids=(self.tokenizer.eos_token_id,))
        agents = {plan_path.TOOL: Tool(config=SHORT), plan_path.EXECUTOR: Executor(config=SHORT)}
        bindings = {
            name: AgentBinding(name, "policy", "wg", engine, self.tokenizer, sampling, sampling, 384)
            for name in agents
        }
        tree = TreeConfig(k=k, select=self.args.select) if k > 1 else None
        settings = CollectorSettings(
            max_steps=self.args.turns, max_failure_rate=0.0, reward=RewardConfig(team_scope="call"), tree=tree
        )
        world = EnvFactory(plan_path.PlanPathEnv, plan_path.PlanPathEnvOptions(view="compact"))
        return Collector(PlanPathOrchestra(SHORT), agents, world, bindings, settings)


def walking(seed: int) -> BaseEnv:
    """Return a Plan-Path environment after two turns of four moves and the Tool's next proposal."""
    (grid,) = generate(1, seed, plan_path.PlanPathDifficulty(min_path=12))
    env = plan_path.PlanPathEnv()
    env.reset(Task("t", grid.text, extra={"map": grid.text}))
    for _ in range(2):
        moves = careful_moves(grid, env.state, 3, 4)
        env.act(plan_path.TOOL, moves), env.act(plan_path.EXECUTOR, moves)
        assert not env.step(moves).done
    env.act(plan_path.TOOL, careful_moves(grid, env.state, 3, 4))
    return env


def half_filled(seed: int) -> BaseEnv:
    """Return a 9x9 Sudoku environment with half of its cells written."""
    (puzzle,) = generate_puzzles(1, seed, Kind(9, "easy"))
    env = sudoku.SudokuEnv()
    env.reset(Task("t", "", extra={"puzzle": to_text(puzzle.clues)}))
    cells = [(cell, puzzle.solution[cell]) for cell in puzzle.empty]
    half = cells_text(cells[: len(cells) // 2], 9)
    env.act(sudoku.TOOL, half), env.act(sudoku.EXECUTOR, half)
    assert not env.step(half).done
    env.act(sudoku.TOOL, cells_text(cells, 9))
    return env


def pushing(seed: int) -> BaseEnv:
    """Return a Sokoban environment in the middle of its solution."""
    (puzzle,) = generate_rooms(1, seed, sokoban.SokobanDifficulty(min_pushes=3))
    moves = puzzle.solution.moves
    half, rest = moves[: len(moves) // 2], moves[len(moves) // 2 :]
    env = sokoban.SokobanEnv(sokoban.SokobanEnvOptions(max_moves=len(moves)))
    env.reset(Task("t", puzzle.text))
    env.act(sokoban.TOOL, half), env.act(sokoban.EXECUTOR, half)
    assert not env.step(half).done
    env.act(sokoban.TOOL, rest)
    return env


WORLDS: dict[str, Callable[[int], BaseEnv]] = {
    "plan_path": walking,
    "sudoku": half_filled,
    "sokoban": pushing,
}


def microseconds(call: Callable[[], object], number: int) -> float:
    """Return the mean time of `number` calls in microseconds, with the garbage collector disabled."""
    return timeit.timeit(call, number=number) / number * 1e6


def measure(args: argparse.Namespace) -> dict[str, list[float]]:
    """Return all numbers by name, one per repeat."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        prompts = Prompts(folder, args)
        for repeat in range(args.repeats):
            for k in (1, args.k):
                computed, limit = prompts.per_call(k, repeat)
                found.setdefault(f"prompt_tokens_k{k}", []).append(computed)
                found.setdefault(f"prompt_limit_k{k}", []).append(limit)
                peer = f"; without sharing {k * limit:.1f}" if k > 1 else ""
                logger.info(
                    "maps %d, K=%d: %.1f prompt tokens computed per committed call of %.1f%s",
                    repeat,
                    k,
                    computed,
                    limit,
                    peer,
                )
    for repeat in range(args.repeats):
        for name, make in random.Random(repeat).sample(list(WORLDS.items()), len(WORLDS)):
            env = make(repeat)
            key = "fork_us" if name == "plan_path" else f"fork_us_{name}"
            found.setdefault(key, []).append(microseconds(env.fork, args.forks))
            found.setdefault(f"deepcopy_us_{name}", []).append(
                microseconds(lambda env=env: copy.deepcopy(env), max(1, args.forks // 20))
            )
    return found


def main() -> None:
    """Measure and write one line per number, then all of them as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=32)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=8, help="maximum length of a reply")
    parser.add_argument("--k", type=int, default=8, help="candidates per call of the tree, 2 or more")
    parser.add_argument(
        "--select",
        choices=("first", "greedy"),
        default="first",
        help="candidate with which the tree continues",
    )
    parser.add_argument("--forks", type=int, default=2000, help="forks per repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parse_args(parser, repeats=1)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    torch.set_num_threads(args.threads)
    found = measure(args)
    result: dict[str, Any] = {name: round(statistics.median(values), 2) for name, values in found.items()}
    for name, values in found.items():
        logger.info("%s: median %.2f [%.2f, %.2f]", name, statistics.median(values), min(values), max(values))
    spread = {name: [round(min(values), 2), round(max(values), 2)] for name, values in found.items()}
    logger.info(json.dumps(result | {"spread": spread, "load": round(os.getloadavg()[0], 1)}))


if __name__ == "__main__":
    main()
