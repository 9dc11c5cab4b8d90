"""Runs of a math team made of figures, in which single series can be replaced."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from verl.report.alarms import RunFacts

SOLVER, VERIFIER = "Solver Agent", "Verifier Agent"
IDS = "solver_agent", "verifier_agent"
AGENTS = [
    {"agent": SOLVER, "policy": "solver_agent", "group": "solver_agent", "trained": True},
    {"agent": VERIFIER, "policy": "verifier_agent", "group": "verifier_agent", "trained": True},
]
CONFIG = {
    "rollout.max_failure_rate": 0.1,
    "data.train_batch_size": 8,
    "env.rollout.n": 8,
    "trainer.device": "cpu",
    "async_training.mode": "sync",
    "trainer.total_training_steps": 60,
}
Values = Callable[[int], float]  # of a step, from 1


def between(first: float, last: float, steps: int) -> Values:
    """A series that goes from one value to another and stays there."""
    return lambda step: first + (last - first) * min((step - 1) / max(steps - 1, 1), 1.0)


def wobble(values: Values, share: float, seed: int) -> Values:
    """The series with noise, the same in every call."""
    return lambda step: values(step) * (1 + share * (random.Random(f"{seed} {step}").random() - 0.5))


def success_of_healthy(step: int) -> float:
    return 0.37 + 0.615 * (1 - math.exp(-step / 12))


@dataclass
class MadeRun:
    """A run of `steps` steps, by default as a healthy one goes.

    Attributes:
        success: of each step.
        series: metric -> its value at each step, beside or instead of those of a healthy run; None for
            a metric that is not there.
        approve: share of approvals among the verdicts on right and on wrong solutions.
        same: share of replies that are the commonest one.
        change: changes an episode before it is read.
        episodes: tasks of a step and episodes of a task; no records with (0, 0).
        log_prob: of the commonest reply, in place of the log of `same`.
    """

    steps: int = 60
    success: Values = success_of_healthy
    series: dict[str, Values | None] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    approve: Callable[[int], tuple[float, float]] = lambda step: (0.97, max(0.78 - step / 100, 0.25))
    same: Values = field(default_factory=lambda: between(0.55, 0.87, 60))
    change: Callable[[dict[str, Any], int], None] | None = None
    episodes: tuple[int, int] = (8, 8)
    log_prob: Values | None = None
    credit: bool = True
    state: dict[str, Any] | None = None
    validations: Mapping[int, Callable[[int], float]] = field(default_factory=dict)

    def healthy_series(self) -> dict[str, Values | None]:
        """Metrics as those of a run of examples/run_math.sh."""
        count = self.episodes[0] * self.episodes[1] or 64
        series: dict[str, Values | None] = {
            "episode/success_rate": self.success,
            "episode/team_reward/mean": self.success,
            "episode/count": lambda step: float(count),
            "episode/failed": lambda step: 0.0,
            "episode/failure_rate": lambda step: 0.0,
            "critic/score/min": lambda step: 0.0,
            "critic/score/max": lambda step: 1.0,
            "training/engine_restarts": lambda step: 0.0,
            "rollout_corr/rollout_is_ratio_fraction_high": lambda step: 0.0,
            "rollout_corr/rollout_is_ratio_fraction_low": lambda step: 0.0,
            "rollout_corr/k3_kl": wobble(lambda step: 1e-9, 1.0, 1),
            "rollout_corr/log_prob_diff_max": lambda step: 1e-5,
            "env/verifier/approvals": lambda step: 0.9,
        }
        for number, name in enumerate(IDS):
            series |= {
                f"agent/{name}/calls": lambda step: float(count),
                f"agent/{name}/staleness/max": lambda step: 0.0,
                f"agent/{name}/staleness/mean": lambda step: 0.0,
                f"agent/{name}/reward/mean": self.success,
                f"agent/{name}/valid_rate": wobble(between(0.97, 0.999, 20), 0.002, number),
                f"agent/{name}/truncated_replies": lambda step: 0.0,
                f"agent/{name}/response_length/mean": wobble(between(14, 29, 50), 0.05, number),
                f"agent/{name}/advantage_abs": lambda step: 0.5,
                f"agent/{name}/zero_signal_groups": wobble(between(0.3, 1.0, 55), 0.02, number),
                f"wg/{name}/actor/entropy": wobble(between(0.5, 0.05, 55), 0.05, number),
                f"wg/{name}/actor/grad_norm": wobble(between(0.8, 0.2, 55), 0.3, number),
                f"wg/{name}/actor/lr": lambda step: 3e-4,
                f"wg/{name}/actor/skipped_steps": lambda step: 0.0,
                f"wg/{name}/actor/ppo_kl": wobble(lambda step: 1e-4, 0.5, number),
            }
        return series

    def build(self) -> dict[str, Any]:
        """The run as the report's index has it, with the facts of its episodes."""
        facts = RunFacts()
        credit: dict[str, Any] = {}
        number = 0
        for step in range(1, self.steps + 1):
            columns: dict[str, list[Any]] = {
                name: []
                for name in (
                    "traj_uid",
                    "turn",
                    "call",
                    "candidate",
                    "policy_id",
                    "tokens",
                    "advantage",
                    "logp",
                )
            }
            played = self.played(step)
            means = {
                uid: mean([e["team_reward"] for e in played if e["uid"] == uid])
                for uid in {e["uid"] for e in played}
            }
            for episode in played:
                facts.add(step, "train", number, episode)
                number += 1
                self._credit(step, episode, episode["team_reward"] - means[episode["uid"]], columns)
            if self.credit and columns["turn"]:
                credit[str(step)] = columns
        for step, rate in self.validations.items():
            for task in range(50):
                facts.add(step, "val", number, validation_episode(task, rate(task)))
                number += 1
        steps = list(range(self.steps + 1))
        series = {name: values for name, values in (self.healthy_series() | self.series).items() if values}
        return {
            "steps": steps,
            "metrics": {
                name: [None, *(values(step) for step in steps[1:])] for name, values in series.items()
            },
            "config": CONFIG | self.config,
            "agents": AGENTS,
            "credit": credit,
            "facts": facts if self.episodes[0] else None,
            "state": self.state,
        }

    def played(self, step: int) -> list[dict[str, Any]]:
        """The episodes of a step."""
        draw = random.Random(step)
        played = []
        for task in range(self.episodes[0]):
            for index in range(self.episodes[1]):
                right = draw.random() < self.success(step)
                approve = self.approve(step)[0 if right else 1]
                episode = math_episode(
                    draw, step, task, index, right, draw.random() < approve, self.same(step)
                )
                if self.change is not None:
                    self.change(episode, step)
                played.append(episode)
        return played

    def _credit(
        self, step: int, episode: Mapping[str, Any], advantage: float, columns: dict[str, list[Any]]
    ) -> None:
        likely = self.log_prob(step) if self.log_prob else math.log(self.same(step))
        for call in episode["calls"]:
            columns["traj_uid"].append(episode["traj_uid"])
            for name in ("turn", "call", "candidate"):
                columns[name].append(call[name])
            columns["policy_id"].append(call["policy_id"])
            columns["tokens"].append(call["response_tokens"])
            columns["advantage"].append(advantage)
            columns["logp"].append(likely if "usual" in call["reply"] else -20.0)


def math_episode(
    draw: random.Random, step: int, task: int, index: int, right: bool, approves: bool, same: float
) -> dict[str, Any]:
    """An episode of a Solver and a Verifier, and of the Solver again if the Verifier rejects."""
    uid = f"step{step}/words:{step * 100 + task}/0"
    problem = f"Problem {step * 100 + task}: how many are left?"
    calls: list[dict[str, Any]] = []

    def call(agent: str, reply: str, action: str, prompt: str) -> None:
        calls.append(
            {
                "agent_id": agent,
                "policy_id": agent.lower().replace(" ", "_"),
                "turn": 1,
                "call": len(calls),
                "candidate": 0,
                "committed": True,
                "greedy": False,
                "prompt": prompt,
                "reply": reply,
                "action": action,
                "valid": True,
                "trained": True,
                "stop_reason": "stop",
                "response_tokens": 20,
                "seed": draw.getrandbits(63) | 1,
                "anchor": problem,
            }
        )

    def solve() -> tuple[str, str]:
        usual = draw.random() < same
        answer = str(task) if right else str(task + draw.randint(1, 3))
        way = "the usual way" if usual else f"way {draw.getrandbits(40)}"
        return f"First {way} then \\boxed{{{answer}}}", answer

    reply, answer = solve()
    call(SOLVER, reply, answer, f"Solve: {problem}")
    verdict = "approve" if approves else "reject"
    doubt = "as usual" if draw.random() < same else f"note {draw.getrandbits(40)}"
    judgement = f"I get it {doubt} <verify>{verdict}</verify>"
    call(VERIFIER, judgement, verdict, f"Check: {problem}\nSolver: {reply}")
    info: dict[str, Any] = {"success": float(right)}
    if not right:
        info["verifier/specificity"] = float(not approves)
    if not approves:
        again, answer = solve()
        call(SOLVER, again, answer, f"Solve: {problem}\nSolver: {reply}\nVerifier: {judgement}")
    return {
        "uid": uid,
        "traj_uid": f"{uid}#{index}",
        "task_id": f"words:{step * 100 + task}",
        "data_source": "words",
        "index": index,
        "turns": 1,
        "team_reward": float(right),
        "info": info,
        "failure": None,
        "answer": answer,
        "calls": calls,
    }


def validation_episode(task: int, rate: float) -> dict[str, Any]:
    """An episode of a validation with a success between 0 and 1."""
    return {
        "uid": f"val/{task}",
        "traj_uid": f"val/{task}#0",
        "task_id": f"words:{task}",
        "data_source": "words",
        "team_reward": rate,
        "info": {"success": rate},
        "failure": None,
        "calls": [{"agent_id": SOLVER, "prompt": f"Solve: Validation problem {task}", "reply": "\\boxed{1}"}],
    }
