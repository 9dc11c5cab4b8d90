"""Runs of a fixed seed give the metrics, replies, rewards and weights that are recorded in `fixed_seed.json`,
to the bit.

A change that is meant to change them records them anew, and its commit says why:

    RECORD_FIXED_SEED=1 python -m pytest tests/e2e/test_fixed_seed.py -n 0
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.conftest import Run, read_metrics
from tests.e2e.teams import KL, LEVELS

RECORDED = Path(__file__).with_name("fixed_seed.json")
MACHINE = ("timing", "time_per", "throughput", "memory", "/idle")
MATH: Mapping[str, Any] = {
    "agent.orchestra_type": "math",
    "agent.orchestra.math.prompt_style": "short",
    "agent.agent_ids": "[Solver Agent,Verifier Agent]",
    "env.env_name": "math",
    "data.max_prompt_length": 512,
    "actor_rollout_ref.actor.entropy_coeff": 0.01,
}
TREE: Mapping[str, Any] = {
    "env.env_name": "my_forkable_world",
    "rollout.sampling": "tree",
    "rollout.tree.k": 3,
    "env.rollout.n": 1,
    "reward.team_scope": "call",
    "algorithm.group_by": "[traj_uid,agent_id,turn,call]",
}
RUNS: Mapping[str, Mapping[str, Any]] = {
    "math_seed_1": MATH | KL | {"data.seed": 1},
    "math_seed_2": MATH | KL | {"data.seed": 2},
    "tree": TREE,
    "adapters": LEVELS["L2"].changes,
    "critics": {"algorithm.adv_estimator": "gae", "critic.optim.lr": 0.01},
}


def arithmetic() -> str:
    """Digest of a small calculation, which differs where another processor or another torch rounds in another
    way.
    """
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 67, 96, generator=generator)
    scores = torch.nn.functional.scaled_dot_product_attention(x[None], y[None], y[None])[0]
    return digest(
        (torch.nn.functional.rms_norm(scores @ y.T, (67,)).log_softmax(-1).exp() @ x).numpy().tobytes()
    )


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def outcome(run_dir: Path) -> dict[str, Any]:
    """What a run leaves that a seed determines."""
    lines = [
        {k: v for k, v in line.items() if not any(word in k for word in MACHINE)}
        for line in read_metrics(run_dir)
    ]
    episodes = [
        [[call[k] for k in ("prompt", "reply", "reward")] for call in json.loads(line)["calls"]]
        for file in sorted((run_dir / "trajectories").glob("train_*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    checkpoint = run_dir / "checkpoints" / "global_step_2"
    weights = {
        str(p.relative_to(checkpoint)): digest(p.read_bytes())
        for p in sorted(checkpoint.rglob("*.safetensors"))
    }
    return {"metrics": lines, "episodes": digest(json.dumps(episodes).encode()), "weights": weights}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_a_fixed_seed_is_the_recorded_one(train: Run, tmp_path: Path, name: str) -> None:
    train(RUNS[name])
    found = json.loads(json.dumps(outcome(tmp_path / "run")))
    assert len(found["weights"]) >= 2 and len(found["metrics"]) == 3
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    if os.environ.get("RECORD_FIXED_SEED"):
        recorded |= {name: found, "arithmetic": arithmetic()}
        RECORDED.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
    expected = recorded[name]
    assert [set(line) for line in found["metrics"]] == [set(line) for line in expected["metrics"]]
    if arithmetic() != recorded["arithmetic"]:
        pytest.skip(
            "this machine rounds in another way than the one that recorded the runs: only the metrics' names "
            "were compared"
        )
    assert found == expected
