"""Models that a run loads again when it resumes: their files must not change between."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import torch

from verl.models.fingerprint import model_fingerprint
from verl.models.loader import CAUSAL_LM, DTYPES, ModelLoader
from verl.trainer.config import FSDPConfig, TrainedModelConfig
from verl.trainer.plan.placement import Placement, WorkerGroupSpec
from verl.trainer.plan.run import RunPlan
from verl.utils.checkpoint import CheckpointError, read_meta


def fingerprints(specs: Iterable[WorkerGroupSpec]) -> dict[str, str]:
    """Return `model_fingerprint` of the models on this machine, by `wg_id`."""
    fingerprint_by_group = {spec.wg_id: model_fingerprint(spec.model_path) for spec in specs}
    return {wg: fingerprint for wg, fingerprint in fingerprint_by_group.items() if fingerprint is not None}


def groups_with_fixed_models(placement: Placement, references: Collection[str] = ()) -> list[WorkerGroupSpec]:
    """Return the worker groups whose given models are needed throughout: bases of adapters, models
    of frozen agents and, of a run that trains, the `references` of a KL divergence, by policy.
    """
    return [
        spec
        for spec in placement.groups
        # a whole model is its policy
        if spec.adapters or not spec.trained or spec.wg_id in references
    ]


def check_saved_models(folder: Path, plan: RunPlan) -> None:
    """Raise CheckpointError if model or dtype of a policy or critic in the checkpoint `folder`
    differ from those of the run.

    Models are built on the meta device; `read_state` checks adapters.
    """
    with_critic = plan.critics
    for spec in plan.groups:
        if spec.trained and not spec.adapters:
            key = plan.agent(spec.agent_ids[0]).key("actor.fsdp_config.model_dtype")
            _check_saved(
                folder / "actor" / spec.wg_id,
                spec.config.model,
                spec.config.actor.fsdp_config,
                CAUSAL_LM,
                key,
            )
        if spec.wg_id in with_critic:
            from verl.models.value_model import VALUE_MODEL  # of critics

            _check_saved(
                folder / "critic" / spec.wg_id,
                spec.critic.model,
                spec.critic.fsdp,
                VALUE_MODEL,
                "critic.fsdp.model_dtype",
            )


def _check_saved(
    saved: Path, model: TrainedModelConfig, fsdp: FSDPConfig, loader: ModelLoader, key: str
) -> None:
    try:
        parameters = dict(read_meta(saved)["model"])
    except CheckpointError:
        return  # reported by the worker that reads it
    dtype = DTYPES[fsdp.model_dtype]
    parts_by_name = {name: text.rpartition(" ") for name, text in parameters.items()}
    anew = "or start anew with trainer.resume_mode=disable"
    dtypes = {there for *_, there in parts_by_name.values()}
    if str(dtype) not in dtypes:
        raise CheckpointError(
            f"{saved} holds parameters in {', '.join(dtypes)}, this run has "
            f"{key}={fsdp.model_dtype}; use one, {anew}"
        )
    with torch.device("meta"):
        built = loader.build(
            model.path, dtype=dtype, attn_implementation="eager", trust_remote_code=model.trust_remote_code
        )
    shapes = {name: str(tuple(parameter.shape)) for name, parameter in built.named_parameters()}
    if odd := sorted({name: shape for name, (shape, *_) in parts_by_name.items()}.items() ^ shapes.items()):
        raise CheckpointError(
            f"{saved} is of another model than {model.path!r}; first differing parameters: "
            f"{dict(odd[:2])}; use the same model, {anew}"
        )
