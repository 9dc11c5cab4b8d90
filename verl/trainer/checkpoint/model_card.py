"""Model cards (README.md) of exported policies: agents, base model, step and metrics."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from verl.trainer.plan.placement import WorkerGroupSpec, slug

if TYPE_CHECKING:
    from verl.trainer.checkpoint.saved_run import SavedRun

TEAM_METRICS = ("val-core/*", "val/episode/success_rate", "episode/success_rate", "episode/team_reward/mean")
AGENT_METRICS = ("reward/mean", "valid_rate", "response_length/mean")
POLICY_METRICS = ("actor/entropy", "actor/kl_loss", "actor/lr")


def policy_card(saved: SavedRun, spec: WorkerGroupSpec, policy: str, metrics: Mapping[str, float]) -> str:
    """Return the card of one policy, in Markdown with the front matter of the Hugging Face hub."""
    policy_config = spec.policies[policy]
    agents = [row.agent_id for row in saved.placement.agents if row.policy_id == policy]
    lora = policy in spec.adapters
    kind = (
        f"LoRA adapter of rank {policy_config.model.lora_rank}, alpha {policy_config.model.lora_alpha}"
        if lora
        else "whole model"
    )
    facts = {
        "agents": ", ".join(agents),
        "kind": kind,
        "base": f"`{spec.model_path}`",
        "step": str(saved.step),
        "run": f"{saved.config.trainer.project_name}/{saved.config.trainer.experiment_name}",
        "team": _team(saved),
        "estimator": f"`{saved.config.algorithm.adv_estimator}`, loss "
        f"`{policy_config.actor.policy_loss.loss_mode}`, peak learning rate {policy_config.actor.optim.lr:g}",
    }
    names = [
        *TEAM_METRICS,
        *(f"agent/{slug(a)}/{m}" for a in agents for m in AGENT_METRICS),
        *(f"wg/{policy}/{m}" for m in POLICY_METRICS),
    ]
    lines = [
        *_front_matter("peft" if lora else "transformers", spec.model_path),
        f"# {policy}",
        "",
        f"Policy of {_listed(agents)} in a team of {len(saved.config.agent.agent_ids)}, trained "
        "with verl-mas.",
        "",
        *_table(facts),
        *_metrics(metrics, names, saved.step),
        "## Load",
        "",
        "```python",
        *(_LOAD_ADAPTER if lora else _LOAD_MODEL),
        "```",
        "",
    ]
    return "\n".join(lines)


_LOAD_MODEL = (
    "from transformers import AutoModelForCausalLM, AutoTokenizer",
    "",
    'model = AutoModelForCausalLM.from_pretrained("this folder")',
    'tokenizer = AutoTokenizer.from_pretrained("this folder")',
)
_LOAD_ADAPTER = (
    "from peft import AutoPeftModelForCausalLM",
    "from transformers import AutoTokenizer",
    "",
    'model = AutoPeftModelForCausalLM.from_pretrained("this folder")  # loads the base that '
    "adapter_config.json names",
    'tokenizer = AutoTokenizer.from_pretrained("this folder")',
)


def team_card(saved: SavedRun, metrics: Mapping[str, float]) -> str:
    """Return the page of the team: each agent and its policy."""
    rows = {
        row.agent_id: f"`{row.config.model.path}`, frozen: not exported"
        for row in saved.placement.agents
        if row.frozen
    }
    rows |= {row.agent_id: f"[{row.policy_id}]({row.policy_id}/README.md)" for row in saved.placement.trained}
    rows |= {row.agent_id: f"`{row.api.model}` behind an API" for row in saved.placement.api}
    table = {agent: rows[agent] for agent in saved.config.agent.agent_ids}
    lines = [f"# {saved.config.trainer.experiment_name}, step {saved.step}", "", f"A {_team(saved)}.", ""]
    return "\n".join(
        [*lines, *_table(table, ("agent", "policy")), *_metrics(metrics, TEAM_METRICS, saved.step)]
    )


def _team(saved: SavedRun) -> str:
    agent = saved.config.agent
    return f"team of {_listed(agent.agent_ids)}, orchestra `{agent.orchestra_type}`, environment `{saved.config.env.env_name}`"


def _listed(agents: Sequence[str]) -> str:
    return " and ".join([", ".join(agents[:-1]), agents[-1]] if len(agents) > 1 else agents)


def _front_matter(library: str, base: str) -> list[str]:
    return [
        "---",
        f"library_name: {library}",
        f"base_model: {json.dumps(base)}",
        "tags: [verl-mas, reinforcement-learning]",
        "---",
        "",
    ]


def _table(rows: Mapping[str, str], heading: tuple[str, str] = ("", "")) -> list[str]:
    return [
        f"| {heading[0]} | {heading[1]} |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in rows.items()),
        "",
    ]


def _metrics(metrics: Mapping[str, float], names: Sequence[str], step: int) -> list[str]:
    rows = {
        f"`{name}`": f"{metrics[name]:.4g}"
        for pattern in names
        for name in metrics
        if fnmatchcase(name, pattern)
    }
    if not rows:
        return [f"No metrics of step {step} were found beside the checkpoint.", ""]
    return [f"## Metrics of step {step}", "", *_table(rows, ("metric", "value"))]
