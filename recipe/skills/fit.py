"""What each level can store: the answers of both roles, fitted by supervised learning from the warm start of
`measure.py`.

    python recipe/skills/fit.py --seeds 0 1 2

fits the right replies with the models or adapters of each level of `config.yaml` and its learning rate, 400
steps on all products, and writes `fit.json`: rows
`{"level", "seed", "coder_100", "filer_100", "coder", "filer"}`, the mean probability of the right letter
after 100 steps and at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from examples.embedded.course import conversation
from recipe.runs import ROOT, Row, folder, run_module
from recipe.skills.measure import HERE, PREPARE
from recipe.skills.prepare import Product, products
from recipe.skills.team import CODER, FILER, Coder, Filer
from verl.models.lora import LoraSpec, add_adapters, select_adapter
from verl.trainer.sft.chats import Chat
from verl.trainer.sft.encoding import encode

AGENTS = {"coder": Coder(CODER), "filer": Filer(FILER)}


def fit(base: Path, level: str, settings: Mapping[str, Any], seed: int, steps: int) -> Row:
    """Fit both roles to the products of a seed, from the model in the folder `base`; return the row of
    `fit.json`.

    Args:
        base: folder of the warm-started model.
        level, settings: level of `config.yaml` and its keys.
        seed: seed of the products and of the adapters.
        steps: optimizer steps.
    """
    together = settings["agent.specialization"] == "prompt"
    row: Row = {"level": level, "seed": seed}
    for roles in [tuple(AGENTS)] if together else [(role,) for role in AGENTS]:
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        if settings["agent.specialization"] == "lora":
            spec = LoraSpec(
                settings["actor_rollout_ref.model.lora_rank"], settings["actor_rollout_ref.model.lora_alpha"]
            )
            select_adapter(add_adapters(model, {roles[0]: spec}, str(base), seed), roles[0])
        data = {role: replies(role, products(seed), AutoTokenizer.from_pretrained(base)) for role in roles}
        optimizer = torch.optim.AdamW(
            [p for p in model.parameters() if p.requires_grad], settings["actor_rollout_ref.actor.optim.lr"]
        )
        for step in range(steps + 1):
            chances = {role: letters(model, data[role]) for role in roles}
            if step in (100, steps):
                row |= {
                    role + ("" if step == steps else "_100"): round(c.exp().mean().item(), 4)
                    for role, c in chances.items()
                }
            optimizer.zero_grad()
            (-torch.stack([c.mean() for c in chances.values()]).sum()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return row


def replies(role: str, items: list[Product], tokenizer: Any) -> torch.Tensor:
    """Return prompts and right replies of a role as token ids, [products, len]; all have the same length."""
    agent = AGENTS[role]
    chats = [
        conversation(agent, item.name, f"{agent.word} {item.code if role == 'coder' else item.shelf}")
        for item in items
    ]
    return torch.tensor([row.input_ids for chat in chats for row in encode(Chat(chat), tokenizer)])


def letters(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the log-probability of the letter of each reply, [products]; `ids` [products, len] end with it
    and the end token.
    """
    logits = model(input_ids=ids[:, :-1]).logits[:, -2]
    return logits.log_softmax(-1).gather(1, ids[:, -2:-1])[:, 0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument(
        "--base", type=Path, help="folder of the warm-started model; default: prepared for each seed"
    )
    parser.add_argument("--out", type=folder, default=HERE, help="folder of the result")
    args = parser.parse_args()
    torch.set_num_threads(1)
    levels = yaml.safe_load((HERE / "config.yaml").read_text())["levels"]
    rows = []
    for seed in args.seeds:
        base = (
            args.base
            or ROOT / run_module(*PREPARE, "--out", "outputs/embedded", "--seed", str(seed))[-1] / "model"
        )
        rows += [fit(base, level, settings, seed, args.steps) for level, settings in levels.items()]
    (args.out / "fit.json").write_text(
        json.dumps(sorted(rows, key=lambda row: row["level"]), indent=1) + "\n"
    )
