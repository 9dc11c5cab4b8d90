"""The part of a checkpoint of `async_training.mode=fully_async` with the groups that no step has
trained on.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl.trainer.config import AsyncTrainingConfig, DataConfig
from verl.trainer.plan.learners import pace_of
from verl.utils.checkpoint import CheckpointError

FOLDER = "groups"
STATE = "queue.json"


def check_checkpoint(
    folder: Path, state: Mapping[str, Any], async_training: AsyncTrainingConfig, data: DataConfig
) -> None:
    """Raise CheckpointError if a run cannot go on with the samples of a checkpoint, whose trainer
    state is `state`.
    """
    mode = async_training.mode
    saved_mode = state.get("async_training", "sync")
    if saved_mode != mode:
        raise CheckpointError(
            f"{folder} was written with async_training.mode={saved_mode}, this run has {mode}, "
            f"whose next step would differ; set async_training.mode={saved_mode}, or start anew "
            "with trainer.resume_mode=disable"
        )
    if not (folder / FOLDER).is_dir():
        return
    groups = json.loads((folder / FOLDER / STATE).read_text())
    if "groups" not in groups["queue"]:
        raise CheckpointError(
            f"{folder} was written by an earlier version, which stored groups in another way; "
            "finish the run with that version, or start anew with trainer.resume_mode=disable"
        )
    batch = data.train_batch_size
    if groups["batch"] != batch:
        raise CheckpointError(
            f"{folder} was written with data.train_batch_size={groups['batch']}, this run has "
            f"{batch}, which its groups do not fill; use the same, or start anew with "
            "trainer.resume_mode=disable"
        )
    if async_training.fresh and not groups["fresh"]:
        raise CheckpointError(
            f"{folder} holds groups of older weights, but this run has "
            "async_training.staleness_threshold=0; use the staleness of the run that wrote it, or "
            "start anew with trainer.resume_mode=disable"
        )
    # of checkpoints of fully asynchronous training, which alone hold groups
    from verl.trainer.ppo.asynchronous.group_queue import fits

    for policy, before in groups["bounds"].items():
        pace = pace_of(async_training, policy)
        if pace.bound < before and not async_training.fresh:
            raise CheckpointError(
                f"{folder} holds groups that may become {before} steps old, but this run has "
                f"async_training.max_off_policy_threshold={pace.bound} for {policy}; keep {before} "
                "and lower async_training.staleness_threshold, or start anew with "
                "trainer.resume_mode=disable"
            )
    # Without staleness dynamic sampling may have more groups than a step trains on: it rejects the
    # surplus.
    queue = groups["queue"]
    waits = async_training.max_off_policy_strategy == "wait" and not async_training.fresh
    left = [group["deadline"] for group in queue["groups"] if group["state"] in ("complete", "running")]
    if waits and not fits(Counter(left), queue["taken"], batch):
        raise CheckpointError(
            f"{folder} holds groups that become too old before a step trains on them, as "
            "async_training.max_off_policy_strategy=drop allows, and dynamic sampling without "
            "staleness; keep the keys of the run that wrote it, or start anew with "
            "trainer.resume_mode=disable"
        )
