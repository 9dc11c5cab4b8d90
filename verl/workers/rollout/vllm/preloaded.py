"""What the fork server of engines imports before it forks (`fork_server.py`); imported there alone.

Not `extension.py`: each process of an engine imports it, which is where the process is tied to its
parent.
"""

import gc

import vllm.entrypoints.llm
import vllm.v1.engine.core
import vllm.v1.executor.uniproc_executor
import vllm.v1.worker.cpu_worker  # noqa: F401
from vllm.utils.system_utils import set_process_title

import verl.workers.rollout.vllm.checkpoint_format
import verl.workers.rollout.vllm.executor
import verl.workers.weight_transfer.base  # noqa: F401

# The title of an engine takes the place of the server's: setproctitle looks for it once, beside the
# environment with which the process was started.
set_process_title("ForkServer", prefix="verl-mas")
gc.collect()
# else every engine searches all modules for what it may free, and gets a copy of them
gc.freeze()
