"""A folder of a run as `bash examples/run_math.sh trainer.log_tokens=16` leaves it, without a model: the
replies are those of the demonstrators, whose habits get better and whose slips get rarer with the steps.
"""

from __future__ import annotations

import json
import random
import statistics
from pathlib import Path
from typing import Any

from benchmarks.shared.report_run import (
    AGENTS,
    START,
    STEP_SECONDS,
    call_of,
    metrics_of,
    span_of,
    write_state,
)
from examples.embedded.math.demos import CAREFUL, Demonstrators, Habits, solver_reply, verdict_reply
from examples.embedded.math.tasks import Problem, generate_split

TASKS = 16
EPISODES = 8
VALIDATIONS = 4
LOGGED = 16
VERDICTS = {True: "approve", False: "reject"}
SOURCE = "verl_mas/word_problems"


class Team:
    """A Solver and a Verifier that become careful from step to step.

    Args:
        steps: of the run.
    """

    def __init__(self, steps: int) -> None:
        self.rng = random.Random(0)
        self._steps = steps
        self._demonstrators = Demonstrators()
        self.set_step(0)

    def set_step(self, step: int) -> None:
        """Change habits and slips to those of a step."""
        self.step = step
        self.care = min(1.0, step / (0.75 * self._steps)) ** 0.7
        names = ("work_short", "work_long", "recompute")
        start = Habits()
        self._habits = Habits(
            **{
                name: getattr(start, name) + self.care * (getattr(CAREFUL, name) - getattr(start, name))
                for name in names
            }
        )

    def episode(self, problem: Problem, uid: str, task_id: str, index: int) -> dict[str, Any]:
        """Return an episode: a solution, a verdict, and a second solution if it rejects the first."""
        texts = [problem.question]
        calls: list[dict[str, Any]] = []
        for number in range(3):
            is_verdict = number == 1
            draft = _answer(calls[0]["reply"]) if calls else ""
            verdict = verdict_reply(self.rng, problem, int(draft or -1), self._habits) if is_verdict else ""
            reply = self._slip(verdict or solver_reply(self.rng, problem, self._habits))
            prompt = f"<|im_start|>user\n{'Check' if is_verdict else 'Solve'}: " + "\n".join(texts)
            prompt += "<|im_end|>\n<|im_start|>assistant\n"
            calls.append(call_of(self.rng, AGENTS[is_verdict], number, prompt, reply, 0.0))
            texts.append(f"{'Verifier' if is_verdict else 'Solver'}: {reply}")
            if is_verdict and "approve" in reply:
                break
        answer = _answer(calls[0 if len(calls) == 2 else 2]["reply"])
        success = float(answer == str(problem.answer))
        began = 0.0
        for call in calls:
            is_verdict = call["agent_id"] == AGENTS[1]
            own = float(self.rng.random() < 0.4 + 0.6 * self.care) if is_verdict else 0.0
            reward = success + own
            ended = began + self.rng.expovariate(3.0)
            call |= {
                **dict.fromkeys(("act_reward", "team_reward", "step_reward"), success),
                **dict.fromkeys(("reward", "mixed_reward"), reward),
                "local_reward": own, "local_given": is_verdict, "valid": True,
                "action": _answer(call["reply"]) if not is_verdict else VERDICTS[len(calls) == 2],
                "fields": {"approved": len(calls) == 2, "parsed": True} if is_verdict else {},
                "response_tokens": max(3, len(call["reply"]) // 2), "anchor": problem.question,
                "began": round(began, 3), "ended": round(ended, 3), "waited": 0.0, "version": self.step,
            }  # fmt: skip
            began = ended
        info = {
            "loops": len(calls) // 2 + len(calls) % 2,
            "success": success,
            "solver/accuracy_loop_1": float(_answer(calls[0]["reply"]) == str(problem.answer)),
            "verifier/approvals": float(len(calls) == 2),
            "verifier/accuracy": own if len(calls) == 2 else success,
        }
        started = START + STEP_SECONDS * self.step + self.rng.random()
        return {
            "uid": uid, "traj_uid": f"{uid}#{index}", "task_id": task_id, "data_source": SOURCE,
            "index": index, "turns": 1, "team_reward": success, "turn_rewards": [success], "info": info,
            "failure": None, "left_out": 0, "answer": answer, "started": round(started, 3),
            "calls": calls,
        }  # fmt: skip

    def log_probs(self, count: int) -> list[float]:
        """Return log-probs of tokens, which come near 0 as the replies become certain."""
        return [
            -0.3 * (1 - self.care) * self.rng.expovariate(1.0) - 0.02 * self.rng.random() ** 3
            for _ in range(count)
        ]

    def _slip(self, text: str) -> str:
        share = 0.12 * (1 - self.care)
        return "".join(
            self.rng.choice("0123456789") if character.isdigit() and self.rng.random() < share else character
            for character in text
        )


def write_math_run(folder: Path, steps: int = 60) -> Path:
    """Write a run of 16 tasks x 8 episodes a step with a validation of 200 tasks x 4 episodes before and
    after it; return its folder.
    """
    team = Team(steps)
    train, test = generate_split(2000, 200, seed=0)
    for name in ("trajectories", "credit"):
        (folder / name).mkdir(parents=True)
    with (folder / "metrics.jsonl").open("w") as metrics, (folder / "timeline.jsonl").open("w") as spans:
        for step in range(steps + 1):
            team.set_step(step)
            if step in (0, steps):
                _write(folder, "val", team, list(enumerate(test)), VALIDATIONS)
            if step:
                tasks = [(number, train[number]) for number in team.rng.sample(range(len(train)), TASKS)]
                _write_credit(folder, team, _write(folder, "train", team, tasks, EPISODES))
            metrics.write(json.dumps(metrics_of(step, 0.4 + 0.6 * team.care, team.rng, 440)) + "\n")
            for at, name in enumerate(AGENTS if step else ()):
                spans.write(json.dumps(span_of(step, name, at)) + "\n")
    write_state(folder, steps)
    return folder


def _write(
    folder: Path, split: str, team: Team, tasks: list[tuple[int, Problem]], count: int
) -> list[dict[str, Any]]:
    episodes = [
        team.episode(problem, f"{split}{team.step}/{SOURCE}:{number}/0", f"{SOURCE}:{number}", index)
        for number, problem in tasks
        for index in range(count)
    ]
    file = folder / "trajectories" / f"{split}_{team.step:06d}.jsonl"
    file.write_text("".join(json.dumps(episode) + "\n" for episode in episodes))
    return episodes


def _write_credit(folder: Path, team: Team, episodes: list[dict[str, Any]]) -> None:
    """Write `credit/` of GRPO with groups by task and agent, and the log-probs of the tokens of 16 rows."""
    rewards: dict[tuple[str, str], list[float]] = {}
    for episode in episodes:
        for call in episode["calls"]:
            rewards.setdefault((episode["uid"], call["agent_id"]), []).append(call["reward"])
    groups = {key: number for number, key in enumerate(rewards)}
    rows = []
    for episode in episodes:
        for call in episode["calls"]:
            key = (episode["uid"], call["agent_id"])
            spread = statistics.pstdev(rewards[key])
            advantage = (call["reward"] - statistics.fmean(rewards[key])) / (spread + 1e-6)
            log_probs = team.log_probs(call["response_tokens"])
            rows.append(
                {
                    "traj_uid": episode["traj_uid"],
                    **{name: call[name] for name in ("turn", "call", "candidate", "agent_id", "policy_id")},
                    "group": groups[key], "tokens": call["response_tokens"], "advantage": _digits(advantage),
                    "abs": abs(_digits(advantage)), "logp": _digits(sum(log_probs)),
                    "log_prob_after": None, "log_prob_before": None, "token_advantages": None,
                }
            )  # fmt: skip
    for row in team.rng.sample(rows, LOGGED):
        before = team.log_probs(row["tokens"])
        row["log_prob_before"] = [_digits(value) for value in before]
        row["log_prob_after"] = [
            _digits(value + team.rng.gauss(0, 0.01) * (-value) ** 0.5) for value in before
        ]
        row["token_advantages"] = [row["advantage"]] * row["tokens"]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    content = {"format": 1, "step": team.step, "columns": columns, "left_out": {}}
    (folder / "credit" / f"step_{team.step:06d}.json").write_text(json.dumps(content))


def _answer(reply: str) -> str:
    return reply.partition("\\boxed{")[2].partition("}")[0]


def _digits(value: float) -> float:
    return float(f"{value:.8g}")
