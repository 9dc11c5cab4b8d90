"""What the checks of a model's numbers cost at the start of a run."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = """
import sys, time
from functools import partial
import agent_system.launch.train
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.trainer.config import RunConfig
from verl.trainer.exactness_checks import check_exactness
from verl.trainer.plan.placement import build_placement
from verl.trainer.plan.run import RunPlan

AutoTokenizer.from_pretrained(sys.argv[1])
config = RunConfig()
config.actor_rollout_ref.model.path = sys.argv[1]
config.agent.specialization = sys.argv[2]
plan = RunPlan.of(config, build_placement(config.agent, config.actor_rollout_ref))
began = time.perf_counter()
check_exactness(plan, "cpu")
print(time.perf_counter() - began)
"""


@pytest.mark.timing
@pytest.mark.parametrize("specialization", ["full", "lora"])
def test_the_numbers_of_a_small_model_are_checked_in_two_seconds(
    tiny_model_dir: Path, specialization: str
) -> None:
    """Beside what a run imports and reads in any case: transformers, the configuration and the tokenizer."""
    command = [sys.executable, "-c", CHECK, str(tiny_model_dir), specialization]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert float(ended.stdout.split()[-1]) < 2
