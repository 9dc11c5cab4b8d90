"""A folder of a run as training writes it, with random words, for benchmarks and tests."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

AGENTS = ("Solver Agent", "Verifier Agent")
WORDS = tuple(
    "".join(random.Random(i).choices("abcdefghijklmnopqrstuvwxyz", k=2 + i % 8)) for i in range(3000)
)
START = 1_796_000_000.0
STEP_SECONDS = 40.0


def words(rng: random.Random, characters: int) -> str:
    """Return random words, about 20 a line."""
    choice = rng.choices(WORDS, k=characters // 6)
    return "\n".join(" ".join(choice[at : at + 20]) for at in range(0, len(choice), 20))


def write_run(
    folder: Path,
    *,
    steps: int = 60,
    tasks: int = 32,
    episodes: int = 8,
    calls: int = 4,
    characters: int = 2000,
    val_every: int = 20,
    keys: int = 440,
) -> Path:
    """Write a run that learns and return its folder.

    Args:
        folder: is created.
        steps: training steps.
        tasks, episodes: groups of a step, and episodes of a group.
        calls: of an episode.
        characters: of prompt and reply of a call together.
        val_every: steps between two validations.
        keys: of a line of metrics.
    """
    rng = random.Random(0)
    (folder / "trajectories").mkdir(parents=True)
    (folder / "credit").mkdir()
    metrics = (folder / "metrics.jsonl").open("w")
    spans = (folder / "timeline.jsonl").open("w")
    with metrics, spans:
        for step in range(steps + 1):
            rate = 0.3 + 0.65 * step / max(steps, 1)
            if step % val_every == 0 or step == steps:
                write_episodes(folder, "val", step, rng, tasks, 1, calls, characters, rate)
            if step:
                rows = write_episodes(folder, "train", step, rng, tasks, episodes, calls, characters, rate)
                write_credit(folder, step, rows)
            metrics.write(json.dumps(metrics_of(step, rate, rng, keys)) + "\n")
            for at, name in enumerate(AGENTS if step else ()):
                spans.write(json.dumps(span_of(step, name, at)) + "\n")
    write_state(folder, steps)
    return folder


def write_episodes(
    folder: Path,
    split: str,
    step: int,
    rng: random.Random,
    tasks: int,
    episodes: int,
    calls: int,
    characters: int,
    rate: float,
) -> list[dict[str, Any]]:
    """Write a file of trajectories and return its episodes without their texts."""
    rows = []
    with (folder / "trajectories" / f"{split}_{step:06d}.jsonl").open("w") as file:
        for task in range(tasks):
            question = words(rng, characters // 4)
            number = task if split == "val" else rng.randrange(2000)
            uid = f"step{step}/toy:{number}/{task}"
            for index in range(episodes):
                row = episode_of(rng, uid, f"toy:{number}", index, question, calls, characters, rate)
                file.write(json.dumps(row) + "\n")
                row["calls"] = [call | {"prompt": "", "reply": ""} for call in row["calls"]]
                rows.append(row)
    return rows


def episode_of(
    rng: random.Random,
    uid: str,
    task_id: str,
    index: int,
    question: str,
    calls: int,
    characters: int,
    rate: float,
) -> dict[str, Any]:
    """Return an episode as a line of a trajectory file holds it."""
    reward = float(rng.random() < rate)
    context = ""
    entries = []
    for number in range(calls):
        reply = words(rng, characters // 4)
        agent = AGENTS[number % len(AGENTS)]
        prompt = f"<|im_start|>user\nSolve: {question}{context[-characters // 2 :]}<|im_end|>\n"
        entries.append(call_of(rng, agent, number, prompt, reply, reward))
        context += f"\n{agent}: {reply}"
    return {
        "uid": uid,
        "traj_uid": f"{uid}#{index}",
        "task_id": task_id,
        "data_source": "toy",
        "index": index,
        "turns": 1,
        "team_reward": reward,
        "turn_rewards": [reward],
        "info": {"success": reward, "loops": calls // 2},
        "failure": None,
        "left_out": 0,
        "answer": str(rng.randrange(100)),
        "started": START + rng.random() * STEP_SECONDS,
        "calls": entries,
    }


def call_of(
    rng: random.Random, agent: str, number: int, prompt: str, reply: str, reward: float
) -> dict[str, Any]:
    """Return the entry of a call."""
    began = number + rng.random()
    return {
        "agent_id": agent,
        "policy_id": agent.lower().replace(" ", "_"),
        "turn": 1,
        "call": number,
        "candidate": 0,
        "committed": True,
        "greedy": False,
        "prompt": prompt,
        "reply": reply,
        "action": str(rng.randrange(100)),
        "valid": rng.random() < 0.97,
        "fields": {},
        "act_reward": reward,
        "fork_reward": None,
        "candidate_reward": 0.0,
        "local_reward": 0.0,
        "local_given": False,
        "team_reward": reward,
        "step_reward": reward,
        "mixed_reward": reward,
        "invalid_penalty": 0.0,
        "overlong_penalty": 0.0,
        "reward": reward,
        "prompt_tokens": len(prompt) // 4,
        "response_tokens": len(reply) // 4,
        "trained": True,
        "stop_reason": "stop",
        "dropped_context": 0,
        "version": 0,
        "seed": rng.getrandbits(62),
        "anchor": prompt[:200],
        "order": number,
        "prior_replies": number,
        "began": began,
        "ended": began + rng.random(),
        "waited": 0.1 * rng.random(),
    }


def write_credit(folder: Path, step: int, episodes: Sequence[dict[str, Any]]) -> None:
    """Write `credit/step_N.json` of episodes: group means as baselines, no normalisation."""
    rewards: dict[str, list[float]] = {}
    for episode in episodes:
        rewards.setdefault(episode["uid"], []).append(episode["team_reward"])
    groups = {uid: number for number, uid in enumerate(rewards)}
    columns: dict[str, list[Any]] = {}
    rng = random.Random(step)
    for episode in episodes:
        own = rewards[episode["uid"]]
        advantage = episode["team_reward"] - sum(own) / len(own)
        for call in episode["calls"]:
            row = {
                "traj_uid": episode["traj_uid"],
                **{name: call[name] for name in ("turn", "call", "candidate", "agent_id", "policy_id")},
                "group": groups[episode["uid"]],
                "tokens": call["response_tokens"],
                "advantage": advantage,
                "abs": abs(advantage),
                "logp": -call["response_tokens"] * rng.random(),
                "entropy": rng.random(),
            }
            for name, value in row.items():
                columns.setdefault(name, []).append(value)
    content = {"format": 1, "step": step, "columns": columns, "left_out": {}}
    (folder / "credit" / f"step_{step:06d}.json").write_text(json.dumps(content))


def write_state(folder: Path, steps: int, **changes: Any) -> None:
    """Write run.json and config.yaml of a run that has ended, with changes of the former."""
    state = {
        "format": 1,
        "attempt": {"started": 0.0, "from_step": 0},
        "commit": "0" * 8,
        "versions": {"torch": "2.11"},
        "machine": {"cpus": 2, "memory_bytes": 8 << 30, "gpus": []},
        "agents": [
            {"agent": name, "policy": policy, "group": policy, "trained": True}
            for name in AGENTS
            for policy in [name.lower().replace(" ", "_")]
        ],
        "state": "done",
        "error": None,
        "step": steps,
        "total_steps": steps,
        "heartbeat": START + steps * STEP_SECONDS,
        "open_spans": [],
        "episodes_in_progress": 0,
        "exactness": [],
    }
    (folder / "run.json").write_text(json.dumps(state | changes))
    (folder / "config.yaml").write_text(
        "algorithm:\n  adv_estimator: grpo\ntrainer:\n  total_training_steps: " + f"{steps}\n"
    )


def metrics_of(step: int, rate: float, rng: random.Random, keys: int) -> dict[str, Any]:
    """Return a line of metrics with this number of keys."""
    row: dict[str, Any] = {"step": step, "episode/success": rate, "episode/team_reward/mean": rate}
    for policy in ("solver_agent", "verifier_agent"):
        row[f"agent/{policy}/entropy"] = 2.0 - rate + 0.1 * rng.random()
        row[f"agent/{policy}/zero_signal_groups"] = rate / 2
    return row | {f"other/metric_{number}": rng.random() for number in range(keys - len(row))}


def span_of(step: int, name: str, at: int) -> dict[str, Any]:
    """Return the update of the policy of an agent, the first or the second of a step."""
    start = START + step * STEP_SECONDS + 10.0 * at
    policy = name.lower().replace(" ", "_")
    return {"step": step, "wg_id": policy, "call": "update_actor", "start": start, "end": start + 9.0}
