"""A rollout worker that is killed takes all processes of its engine along, with real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.workers.rollout.conftest import tiny_model
from verl.workers.rollout.vllm.process import named_shared_memory

WORKER = """
import sys, time
from verl.trainer.config import ActorRolloutRefConfig, ModelConfig, RolloutConfig
from verl.workers.rollout.vllm.engine import VLLMEngine

if __name__ == "__main__":
    rollout = RolloutConfig(name="vllm", max_num_seqs=2, tensor_model_parallel_size=2)
    config = ActorRolloutRefConfig(model=ModelConfig(path=sys.argv[1]), rollout=rollout)
    engine = VLLMEngine(config, max_model_len=64, device="cpu", num_threads=1, seed=0)
    print("up", flush=True)
    time.sleep(1000)
"""


@pytest.mark.timeout(1500)
def test_all_processes_of_an_engine_over_two_devices_end_with_a_killed_worker(tmp_path: Path) -> None:
    tiny_model(0, 32).save_pretrained(tmp_path)
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, script, tmp_path], stdout=subprocess.PIPE, text=True, env=environment
    ) as worker:
        try:
            assert worker.stdout is not None and worker.stdout.readline() == "up\n"
            below = psutil.Process(worker.pid).children(recursive=True)
            assert sum("VLLM::" in " ".join(process.cmdline()) for process in below) == 3
            named = named_shared_memory([process.pid for process in below])
            assert named, "the processes of the model share memory"
        finally:
            worker.kill()
        assert not psutil.wait_procs(below, timeout=240)[1]
        assert not any(file.exists() for file in named), "a name is left behind"
