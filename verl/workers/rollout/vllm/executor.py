"""vLLM's executor for an engine over several devices: a process for each, which ends with the engine's own.

Named by `distributed_executor_backend`; vLLM imports this module where the engine is configured and makes the executor in the engine's
process.
"""

from __future__ import annotations

from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from verl.workers.rollout.vllm.process import adopt_children, end_with_parent, unname_semaphores


class BlockExecutor(MultiprocExecutor):
    """Runs one worker a device of the block."""

    def _init_executor(self) -> None:
        end_with_parent()
        adopt_children()
        super()._init_executor()
        unname_semaphores()
