"""What `import agent_system.launch.train` loads: the kernel of a run. Optional parts are loaded where a key or
a user's code, asks for them.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.house.source import PACKAGES, ROOT

# Numbers of the import after which a command line is read; they may only become smaller.
MOST_MODULES = 176
MOST_LINES = 24_700
# Optional parts, and the key or the name that asks for them.
OPTIONAL = {
    "agent_system.evolve": "verl-mas evolve",
    "agent_system.replay": "verl-mas audit",
    "agent_system.gateway": "agent.orchestra_type=gateway",
    "agent_system.workflows": "agent.orchestra_type, env.env_name",
    "agent_system.workflows.graph": "agent.orchestra_type=graph",
    "agent_system.children": "spawn",
    "agent_system.waves": "spawn, a team file",
    "agent_system.tools.agent": "a ToolAgent",
    "agent_system.tools.formats": "the chat template of a policy",
    "agent_system.tools.formats.derive": "a chat template that shows tool calls",
    "agent_system.tools.mcp": "McpServer among an agent's tools",
    "agent_system.tools.shipped": "python, search or calculator among an agent's tools",
    "agent_system.tools.delegation": "delegate among an agent's tools",
    "agent_system.sandbox.local": "programs of agents or environments",
    "agent_system.sandbox.jail": "programs of agents or environments",
    "agent_system.env_workers.pool": "env.workers.num",
    "agent_system.reward.model": "reward.model.kind",
    "agent_system.rollout.chat_template": "an agent with a policy here, not behind agent.api",
    "agent_system.rollout.endpoint": "agent.api, reward.model.kind=api",
    "agent_system.rollout.program_call": "agent.orchestra_type=gateway",
    "agent_system.rollout.states": "an environment with render()",
    "agent_system.rollout.tied_candidates": "rollout.sampling=tree",
    "agent_system.rollout.tool_agents": "a ToolAgent",
    "agent_system.rollout.tree_call": "rollout.sampling=tree",
    "verl.compat": "verl's names",
    "verl.models.adapter_folder": "actor_rollout_ref.model.lora_rank or lora_adapter_path",
    "verl.report": "verl-mas report, verl-mas watch; its alarms: the first episodes of a run",
    "verl.trainer.ppo.alarm_lines": "the first episodes of a run",
    "verl.trainer.sft": "verl-mas sft",
    "verl.trainer.plan.presets": "algorithm.preset",
    "verl.trainer.plan.role_policies": "agent.role_policies",
    "verl.trainer.plan.reward_model": "reward.model.kind",
    "verl.trainer.ppo.correction_bounds": "algorithm.rollout_correction",
    "verl.utils.dataset.tail_loader": "data.tail_window",
    "verl.trainer.run_state": "a run that trains",
    "verl.trainer.ppo.asynchronous.check_keys": "a key of async_training",
    "verl.trainer.ppo.asynchronous.lanes": "async_training.mode=fully_async",
    "verl.trainer.ppo.asynchronous.stream": "async_training.mode=fully_async",
    "verl.trainer.ppo.engine_check": "trainer.checks",
    "verl.trainer.ppo.asynchronous.saved_groups": "async_training.mode=fully_async, a checkpoint",
    "verl.trainer.ppo.collect.next_step": "async_training.mode=one_step_off",
    "verl.trainer.ppo.collect.dynamic_sampling": "algorithm.filter_groups.metric",
    "verl.trainer.ppo.collect.greedy_baseline": "algorithm.adv_estimator=remax",
    "verl.trainer.ppo.credit.record": "the first step",
    "verl.trainer.ppo.credit.token_log": "trainer.log_tokens",
    "verl.trainer.ppo.traces": "global_profiler.steps",
    "verl.trainer.ppo.core_algos.estimators.gae": "algorithm.adv_estimator=gae",
    "verl.trainer.ppo.core_algos.kl": "algorithm.kl_ctrl.kl_coef, actor.kl_loss_coef",
    "verl.trainer.ppo.core_algos.aggregation": "a policy that is trained",
    "verl.trainer.ppo.core_algos.rollout_correction": "algorithm.rollout_correction, a pass of old log-probs",
    "verl.trainer.ppo.validation": "data.val_files",
    "verl.trainer.ppo.validation_metrics": "data.val_files",
    "verl.utils.accuracy": "data.val_files",
    "verl.trainer.ppo.core_algos.policy_losses": "a policy that is trained",
    "verl.workers.critic_worker": "an estimator that needs values",
    "verl.workers.engine.attention": "a policy that is trained",
    "verl.workers.engine.trie": "a policy that is trained",
    "verl.workers.policy_worker": "a policy that is trained",
    "verl.workers.rollout.hf_engine": "actor_rollout_ref.rollout.name=hf",
    "verl.workers.rollout.vllm": "actor_rollout_ref.rollout.name=vllm",
    "verl.workers.weight_transfer.broadcast": "actor_rollout_ref.rollout.weight_transfer=collective",
}
COUNT = f"""
import json, sys
import agent_system.launch.train
loaded = {{
    name: module.__file__
    for name, module in sys.modules.items()
    if name.split(".")[0] in {PACKAGES!r} and getattr(module, "__file__", None)
}}
print(json.dumps({{name: len(open(file, encoding="utf-8").readlines()) for name, file in loaded.items()}}))
"""


@pytest.fixture(scope="module")
def lines() -> dict[str, int]:
    """Modules of ours that the import loads, with their numbers of lines."""
    done = subprocess.run(
        [sys.executable, "-c", COUNT],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    counted: dict[str, int] = json.loads(done.stdout)
    return counted


def test_the_kernel_of_a_run_is_small(lines: dict[str, int]) -> None:
    assert len(lines) <= MOST_MODULES and sum(lines.values()) <= MOST_LINES, (
        f"{len(lines)} modules with {sum(lines.values())} lines; import an optional part where its key asks"
    )


@pytest.mark.parametrize("part", OPTIONAL)
def test_an_optional_part_is_not_loaded_before_it_is_asked_for(part: str, lines: dict[str, int]) -> None:
    loaded = [name for name in lines if name == part or name.startswith(f"{part}.")]
    assert not loaded, f"only {OPTIONAL[part]} asks for it"


def test_the_parts_are_there() -> None:
    for part in OPTIONAL:
        path = ROOT / part.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").is_file(), part
