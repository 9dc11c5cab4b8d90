"""vLLM's executor for an engine over several devices: one process per device, which ends with the
engine's own.

Set as `distributed_executor_backend`; vLLM imports this module where the engine is configured and
makes the executor in the engine's process.
"""

from __future__ import annotations

from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from verl.workers.rollout.vllm.process import adopt_children, end_with_parent, environment, unlink_semaphores


class MultiDeviceExecutor(MultiprocExecutor):
    """Runs one worker per device of the engine.

    The workers are forked, as vLLM does by default: the engine's process has no threads of Ray or
    gRPC, and they share what it has imported, which takes each of them seconds otherwise. vLLM
    itself spawns them where CUDA is in use already.
    """

    def _init_executor(self) -> None:
        end_with_parent()
        adopt_children()
        with environment({"VLLM_WORKER_MULTIPROC_METHOD": "fork"}):
            super()._init_executor()
        unlink_semaphores()
