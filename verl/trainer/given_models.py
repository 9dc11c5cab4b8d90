"""Models that a run reads as they were given, more than once: their files must not change meanwhile."""

from __future__ import annotations

from collections.abc import Iterable

from verl.models.fingerprint import model_fingerprint
from verl.trainer.config import RunConfig
from verl.trainer.placement import Placement, WorkerGroupSpec


def fingerprints(specs: Iterable[WorkerGroupSpec]) -> dict[str, str]:
    """`model_fingerprint`, by `wg_id`, of the models that are on this machine."""
    found = {spec.wg_id: model_fingerprint(spec.model_path) for spec in specs}
    return {wg: fingerprint for wg, fingerprint in found.items() if fingerprint is not None}


def stay_as_given(placement: Placement, training: RunConfig | None = None) -> list[WorkerGroupSpec]:
    """The worker groups whose models are read again as they were given: the bases of adapters, the models of frozen agents and, of a run
    that is `training`, those that a KL is measured from."""
    in_reward = training is not None and training.algorithm.use_kl_in_reward

    def refers(spec: WorkerGroupSpec) -> bool:
        return in_reward or (training is not None and spec.config.actor.use_kl_loss)

    return [spec for spec in placement.groups if spec.adapters or not spec.trained or refers(spec)]
