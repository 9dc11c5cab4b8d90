"""Extension of vLLM's worker class (`worker_extension_cls`): weight updates in place, and log-probs
of the whole distribution.

vLLM imports this module in the engine's process, before it loads the model; the methods are called
by `collective_rpc`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from verl.protocol.generate import EngineGoneError
from verl.workers.rollout.vllm.checkpoint_format import CheckpointFormat
from verl.workers.rollout.vllm.process import end_with_parent, unlink_semaphores, unlink_shared_memory
from verl.workers.weight_transfer.base import build_transfer

end_with_parent()
receiver = cache(build_transfer)


class EngineExtension:
    """Mixed into vLLM's worker; `self` is that worker."""

    model_runner: Any
    vllm_config: Any
    verl_format: CheckpointFormat

    def verl_prepare(self, path: str, trust_remote_code: bool) -> None:
        """Patch vLLM, and unlink shared memory and semaphores that all processes of the model have
        opened.

        Args are those of `CheckpointFormat`. Raises `PatchError` for an unsupported version of
        vLLM.
        """
        from patches import vllm_cpu_experts, vllm_full_log_probs

        vllm_cpu_experts.apply()
        vllm_full_log_probs.apply(self.model_runner.sampler)
        self.verl_format = CheckpointFormat(path, trust_remote_code)
        unlink_shared_memory()
        unlink_semaphores()

    def verl_start_update(self) -> None:
        """Prepare the model for new weights of all layers; it cannot be run until
        `verl_finish_update`.
        """
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        with set_current_vllm_config(self.vllm_config):
            initialize_layerwise_reload(self.model_runner.get_model())

    def verl_load_bucket(self, transfer: str, handle: Any, names: Mapping[str, str]) -> str:
        """Receive one bucket and load it under the model's names; vLLM fuses and shards the tensors
        like those of a checkpoint.

        Return why it could not be received, so that the engine has to be restarted, or an empty
        string: vLLM does not pass on error types.
        """
        try:
            received = receiver(transfer).receive(handle)
        except EngineGoneError as error:
            return str(error)
        self.verl_load(self.verl_format.add({names[name]: tensor for name, tensor in received.items()}))
        return ""

    def verl_load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load tensors in the form of a checkpoint."""
        from vllm.config import set_current_vllm_config

        from patches import vllm_direct_writes

        model = self.model_runner.get_model()
        with set_current_vllm_config(self.vllm_config), vllm_direct_writes.redirected(model):
            model.load_weights(list(tensors.items()))

    def verl_finish_update(self) -> None:
        """Activate the new weights, and drop the derived state of adapters, whose files are then
        read again.
        """
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        from patches import vllm_cpu_tied_head

        if rest := self.verl_format.rest():
            self.verl_load(rest)
        with set_current_vllm_config(self.vllm_config):
            finalize_layerwise_reload(self.model_runner.get_model(), self.vllm_config.model_config)
            vllm_cpu_tied_head.apply(self.model_runner.get_model())
        self.model_runner.reset_lora_state()
