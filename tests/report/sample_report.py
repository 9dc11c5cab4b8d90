"""A report in memory, hand-made in the form that the page reads: 2 runs, 12 steps, 3 agents, every kind
of call.
"""

from __future__ import annotations

import math
import random
from typing import Any

STEPS = list(range(13))
AGENTS = [
    {"agent": "Solver Agent", "policy": "solver_agent", "group": "solver_agent", "trained": True},
    {"agent": "Verifier Agent", "policy": "verifier_agent", "group": "verifier_agent", "trained": True},
    {"agent": "Critic", "policy": "solver_agent", "group": "solver_agent", "trained": False},
]
HOSTILE = {
    "script": "<script>window.planted = 1</script><img src=x onerror='window.planted = 2'>",
    "handler": "\"><svg onload=alert(1)> ' onerror=\"alert(2)\" {{constructor.constructor('alert(3)')()}}",
    "bidi": "safe \u202eevil\u202c \u2066isolated\u2069 zero\u200bwidth \x00nul \x1b[31mred\x1b[0m \x7f",
    "surrogate": "half \ud800 of a pair \udfff, and a whole one \U0001f600",
    "long": "x" * 1_000_000,
    "end": "</script><!-- --></body></html> &lt;b&gt; &amp; \\u003cscript\\u003e",
}
EPISODE_COLUMNS = (
    "step", "split", "uid", "traj_uid", "task_id", "data_source", "index", "team_reward", "success", "turns",
    "failure", "answer", "left_out", "first_call", "calls", "chunk", "row", "file", "line",
)  # fmt: skip
SPAN_COLUMNS = ("step", "lane", "call", "start", "end")
CALL_COLUMNS = (
    "agent", "turn", "call", "candidate", "committed", "greedy", "trained", "valid", "action", "reward",
    "team_reward", "local_reward", "mixed_reward", "invalid_penalty", "overlong_penalty", "prompt_tokens",
    "response_tokens", "stop_reason", "version", "versions", "order", "final_call", "began", "ended",
    "waited", "unheard", "summary", "request", "explored", "heard", "fork_reward",
    "candidate_reward", "anchor",
)  # fmt: skip


def call(agent: int, turn: int, number: int, reply: str, **fields: Any) -> dict[str, Any]:
    """The columns of one call, with its texts under `_prompt`, `_reply` and `_more`."""
    reward = fields.get("reward", 0.0)
    values = {
        "agent": agent, "turn": turn, "call": number, "candidate": 0, "committed": True, "greedy": False,
        "trained": AGENTS[agent]["trained"], "valid": True, "action": reply[:40], "reward": reward,
        "team_reward": reward, "local_reward": 0.0, "mixed_reward": reward, "invalid_penalty": 0.0,
        "overlong_penalty": 0.0, "prompt_tokens": 40 + 20 * number, "response_tokens": len(reply.split()),
        "stop_reason": "stop", "version": 0, "versions": None, "order": number, "final_call": None,
        "began": 0.5 * number, "ended": 0.5 * number + 0.4, "waited": 0.05, "unheard": False,
        "summary": False, "request": None, "explored": False, "heard": number != 2, "fork_reward": None,
        "candidate_reward": 0.0, "anchor": 0,
        "_prompt": ["user: solve the task\n", "David has 11 toys and finds 6 more.\n", "How many toys?\n"],
        "_reply": reply, "_more": {},
    }  # fmt: skip
    return values | fields


def math_calls(
    draw: random.Random, success: bool, version: int, text: str | None = None
) -> list[dict[str, Any]]:
    """Calls of a solver and a verifier: a wrong first answer, a verdict, a second answer."""
    reward = float(success)
    first = text or f"11 + 6 = {draw.choice([16, 17, 18])}, so \\boxed{{{draw.choice([16, 17, 18])}}}."
    verdict = "verify approve" if draw.random() < 0.5 else "verify reject: add once more"
    second = f"11 + 6 = 17. \\boxed{{{17 if success else draw.choice([15, 19])}}}"
    lines = ["user: solve the task\n", "David has 11 toys and finds 6 more.\n", "How many toys?\n"]
    heard = [*lines[:1], "Check the answer.\n", *lines[1:], f"Solver: {first[:200]}\n"]
    last = [*lines, f"Solver: {first[:200]}\n", f"Verifier: {verdict}\n"]
    return [
        call(0, 1, 0, first, reward=reward, version=version, _prompt=lines),
        call(
            1,
            1,
            1,
            verdict,
            reward=reward - 0.1,
            invalid_penalty=0.1,
            version=version,
            valid=False,
            _prompt=heard,
        ),
        call(0, 1, 2, second, reward=reward, version=version, _prompt=last),
    ]


def special_episodes(draw: random.Random) -> list[tuple[str, float, list[dict[str, Any]], dict[str, Any]]]:
    """Episodes of every other kind: (task, reward, calls, texts of the episode)."""
    board = [["#", "#", "#", "#"], ["#", "a", ".", "#"], ["#", ".", "g", "#"], ["#", "#", "#", "#"]]
    moved = [["#", "#", "#", "#"], ["#", ".", "a", "#"], ["#", ".", "g", "#"], ["#", "#", "#", "#"]]
    legend = {"#": "wall", "a": "agent", "g": "goal", ".": "free"}
    states = [{"cells": cells, "legend": legend} for cells in (board, moved)]
    tree = [
        call(0, 1, 0, f"move {way}", candidate=i, committed=i == 2, reward=0.2 * i, fork_reward=0.2 * i,
             candidate_reward=0.2 * i, explored=i == 3)
        for i, way in enumerate(["up", "down", "right", "left"])
    ] + [call(1, 2, 0, "move down", reward=1.0, began=1.0, ended=1.5)]  # fmt: skip
    tools = [
        call(0, 1, 0, "calling calculator(11 + 6)", final_call=1),
        call(0, 1, 1, "The calculator says 17. \\boxed{17}", reward=1.0,
             _more={"tools": {"calls": 1, "errors": 0},
                    "rounds": [{"reply": "calculator(11 + 6)", "response_tokens": 4}]}),
    ]  # fmt: skip
    lines = ["user: plan a trip\n", "to Oslo\n"]
    requests = [
        call(0, 1, 0, "Draft one", request={"parent": None, "shared": 0, "rewritten": None}, _prompt=lines),
        call(0, 1, 1, "Draft two", request={"parent": [1, 0], "shared": 60, "rewritten": "template"},
             _prompt=[*lines, "Draft one\n", "make it shorter\n"]),
        call(1, 1, 2, "Review", request={"parent": None, "shared": 0, "rewritten": None}),
        call(0, 1, 3, "never delivered", unheard=True, trained=False,
             request={"parent": [1, 1], "shared": 90, "rewritten": None}),
    ]  # fmt: skip
    parts = [
        call(0, 1, 0, "begun by one version and ended by the next", versions=[[3, 30], [4, 12]], reward=1.0)
    ]
    hostile = [call(i % 2, 1, i, text, reward=0.0) for i, text in enumerate(HOSTILE.values())]
    return [
        ("plan/tree", 1.0, tree, {"states": states, "turn_rewards": [0.0, 1.0]}),
        ("tools/calculator", 1.0, tools, {}),
        ("gateway/trip", 0.0, requests, {}),
        ("async/partial", 1.0, parts, {"states": ["the room is dark", "the room is lit"]}),
        ("hostile/<b>task</b>\u202e", 0.0, hostile, {"info": {"note": HOSTILE["script"]}}),
    ]  # fmt: skip


class RunBuilder:
    """Collects episodes as columns, and their texts as chunks of whole steps."""

    def __init__(self, chunks: list[dict[str, Any]]) -> None:
        self.chunks = chunks
        self.episodes: dict[str, list[Any]] = {name: [] for name in EPISODE_COLUMNS}
        self.calls: dict[str, list[Any]] = {name: [] for name in CALL_COLUMNS}
        self.numbers: dict[str, int] = {}

    def open_chunk(self) -> None:
        """Begin a new chunk."""
        self.chunks.append({"strings": [], "episodes": []})
        self.numbers = {}

    def number(self, text: str) -> int:
        """Number of a text in the chunk."""
        strings = self.chunks[-1]["strings"]
        if text not in self.numbers:
            self.numbers[text] = len(strings)
            strings.append(text)
        return self.numbers[text]

    def add(self, step: int, split: str, task: str, index: int, reward: float, calls: list[dict[str, Any]],
            **fields: Any) -> None:  # fmt: skip
        """Add an episode."""
        texts = fields.pop("texts", {})
        row = {
            "step": step, "split": split, "uid": f"step{step}/{split}/{task}",
            "data_source": task.split("/")[0],
            "traj_uid": f"step{step}/{split}/{task}#{index}", "task_id": task, "index": index,
            "team_reward": reward, "success": reward, "turns": max(c["turn"] for c in calls), "failure": None,
            "answer": calls[-1]["action"], "left_out": "", "first_call": len(self.calls["agent"]),
            "calls": len(calls), "chunk": len(self.chunks) - 1, "row": len(self.chunks[-1]["episodes"]),
            "file": 0, "line": len(self.episodes["step"]) + 1,
        } | fields  # fmt: skip
        for name in EPISODE_COLUMNS:
            self.episodes[name].append(row[name])
        for entry in calls:
            for name in CALL_COLUMNS:
                self.calls[name].append(entry[name])
        if row["chunk"] >= 0:
            entries = [
                {"prompt": [self.number(line) for line in c["_prompt"]], "reply": self.number(c["_reply"]),
                 **c["_more"]}
                for c in calls
            ]  # fmt: skip
            self.chunks[-1]["episodes"].append({"calls": entries, **texts})


def metrics(draw: random.Random, shift: float) -> dict[str, list[float | None]]:
    """Curves of a run that learns."""
    rate = [1 / (1 + math.exp(-(s - 6) / 2)) * 0.9 + shift for s in STEPS]
    columns: dict[str, list[float | None]] = {
        "episode/success_rate": [None, *(min(1.0, max(0.0, r + draw.gauss(0, 0.04))) for r in rate[1:])],
        "timing_s/step": [None, *(11 + draw.random() for _ in STEPS[1:])],
        "timing_s/gen": [None, *(4 + draw.random() for _ in STEPS[1:])],
        "timing_s/update_actor": [None, *(5 + draw.random() for _ in STEPS[1:])],
    }
    for agent in AGENTS[:2]:
        name = agent["policy"]
        columns[f"agent/{name}/reward/mean"] = [None, *(r + draw.gauss(0, 0.03) for r in rate[1:])]
        columns[f"agent/{name}/advantage_abs"] = [None, *(0.8 - 0.05 * s for s in STEPS[1:])]
        columns[f"agent/{name}/zero_signal_groups"] = [None, *(0.05 * s for s in STEPS[1:])]
        columns[f"agent/{name}/response_length/mean"] = [None, *(20 + 2 * s for s in STEPS[1:])]
        columns[f"agent/{name}/valid_rate"] = [None, *(0.9 + 0.005 * s for s in STEPS[1:])]
        columns[f"agent/{name}/staleness/max"] = [None, *(float(s % 2) for s in STEPS[1:])]
        columns[f"wg/{name}/actor/entropy"] = [None, *(5.2 - 0.3 * s for s in STEPS[1:])]
        columns[f"wg/{name}/idle"] = [None, *(0.4 + 0.02 * s for s in STEPS[1:])]
    columns["gateway/rewritten/template"] = [None, *(0.1 for _ in STEPS[1:])]
    return columns


def point(step: int, rate: float) -> dict[str, Any]:
    """One validation with its interval."""
    return {"step": step, "n": 200, "rate": rate, "low": max(0.0, rate - 0.06), "high": min(1.0, rate + 0.06)}


def make_run(name: str, seed: int, chunks: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    """One run of 12 steps."""
    draw = random.Random(seed)
    builder = RunBuilder(chunks)
    for step in STEPS:
        builder.open_chunk()
        if step in (0, 12):
            for task in range(20):
                success = draw.random() < (0.3 if step == 0 else 0.95)
                calls = math_calls(draw, success, step)
                builder.add(step, "val", f"word_problems:{task}", 0, float(success), calls)
        if step == 0:
            continue
        for task in range(2):
            for index in range(4):
                success = draw.random() < 0.3 + 0.05 * step
                kind = {"left_out": "no signal"} if step == 11 else {}
                if step == 3 and task == 0 and index == 1:
                    kind = {"failure": "TimeoutError: the sandbox did not answer", "left_out": "failed"}
                builder.add(step, "train", f"word_problems:{100 + 2 * step + task}", index, float(success),
                            math_calls(draw, success, step - 1), **kind)  # fmt: skip
        if step == 4:
            for number, (task_id, reward, calls, texts) in enumerate(special_episodes(draw)):
                builder.add(step, "train", task_id, number, reward, calls, texts=texts)
        if step == 5:
            builder.add(step, "train", "not/here", 0, 1.0, math_calls(draw, True, 4), chunk=-1)
    spans = [
        (step, agent["group"], work, 1000.0 + 12 * step + begin, 1000.0 + 12 * step + end)
        for step in STEPS[1:]
        for agent in AGENTS[:2]
        for work, begin, end in (("generate", 0, 4), ("compute_log_prob", 4.2, 5), ("update_actor", 5.1, 11))
    ]
    return {
        "name": name, "folder": f"outputs/{name}", "agents": AGENTS, "steps": STEPS,
        "state": {"format": 1, "state": "done", "step": 12, "total_steps": 12, "heartbeat": 1200.0,
                  "error": None,
                  "commit": "f4de58b", "versions": {"torch": "2.11", "transformers": "5.17"},
                  "machine": {"cpus": 2, "memory_bytes": 8 << 30, "gpus": []}, "open_spans": [],
                  "episodes_in_progress": 0, "exactness": ["The engine agrees with the trainer to 1e-6."]},
        "config": {"algorithm.adv_estimator": "grpo", "trainer.seed": seed,
                   "actor_rollout_ref.actor.optim.lr": 3e-4},
        "metrics": metrics(draw, 0.02 * seed), "solved": False,
        "accuracy": {"measure": "success", "before": point(0, 0.368), "after": point(12, 0.94),
                     "points": [point(0, 0.368), point(6, 0.61), point(12, 0.94)], "files": {}},
        "alarms": [
            {"number": 8, "name": "always yes", "level": "worse", "raised": 10, "cleared": None,
             "text": "Verifier Agent approves 97 % of the replies, wrong ones as well.",
             "try": ["env.params.verdict_reward=0.2"], "episodes": [20, 21],
             "series": ["agent/verifier_agent/reward/mean"]},
            {"number": 13, "name": "silent groups", "level": "stuck", "raised": 4, "cleared": 9,
             "text": "All fail.", "try": [], "episodes": [], "series": []},
        ],
        "episodes": builder.episodes | {"length": len(builder.episodes["step"])},
        "calls": builder.calls | {"length": len(builder.calls["agent"])},
        "files": ["trajectories/train_000001.jsonl"], "credit": {},
        "spans": {name: [span[i] for span in spans] for i, name in enumerate(SPAN_COLUMNS)}
        | {"length": len(spans)},
        "audit": [audit()], "damaged": [{"file": "timeline.jsonl", "line": 7, "why": "not JSON"}],
        "notes": ["2 files of an earlier run are left out."], "left_out_texts": 1,
    } | changes  # fmt: skip


def audit() -> dict[str, Any]:
    """A replay of step 8: the solver matters, the verifier hardly."""
    rows = [("Solver Agent", None, 0.34, 0.31, 0.38), ("Verifier Agent", None, 0.03, 0.0, 0.07),
            ("Solver Agent", 1, 0.34, 0.31, 0.38)]  # fmt: skip
    table = [
        {"agent": agent, "turn": turn, "decisions": 100, "effect": effect, "low": low, "high": high,
         "share": effect / 2, "share_low": low / 2, "share_high": high / 2, "no_other_action": 0.12}
        for agent, turn, effect, low, high in rows
    ]  # fmt: skip
    estimators = [
        {"name": name, "agent": None, "spearman": value, "shuffled_low": -0.2, "shuffled_high": 0.2,
         "reliability": 0.7, "zero_advantages": 0.25, "verdict": verdict, "tokens": 20000}
        for name, value, verdict in (
            ("grpo", 0.58, "agrees"), ("rloo", 0.1, "does not"), ("opo", 0.3, "inconclusive"))
    ]  # fmt: skip
    return {
        "format": 1, "step": 8, "tasks": 16, "decisions": 200, "alternatives": 4, "continuations": 4,
        "replies": 3459, "restored": {"yes": 193, "no": {"another prompt": 7}}, "table": table,
        "estimators": estimators,
    }  # fmt: skip


def sample_index(live: bool = False, runs: int = 2) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the index of the report and its chunks."""
    chunks: list[dict[str, Any]] = []
    made = [make_run(f"math_seed{seed}", seed, chunks) for seed in range(runs)]
    tasks = [
        {"task_id": f"word_problems:{n}", "rates": [n % 3 / 2, 1 - n % 3 / 2], "episodes": [[n], [n]]}
        for n in range(6)
    ]
    compare = {"keys": [{"key": "trainer.seed", "values": [0, 1]}], "tasks": tasks} if runs > 1 else None
    index = {
        "format": 1,
        "built": 1_796_034_122.0,
        "live": live,
        "runs": made,
        "compare": compare,
        "max_mb": 8,
    }
    return index, chunks
