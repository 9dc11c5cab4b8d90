"""Write docs/algorithms.md from the docstrings of the algorithms: `python scripts/gen_algorithm_docs.py [--check]`."""

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOC = ROOT / "docs" / "algorithms.md"
# What every entry says beside its idea and formula; a docstring holds each as a paragraph `<name>: ...`.
FACTS = ("Keys", "Use when", "Fails when")
# What it says in its own words: where it comes from, and how it is computed (in a code span or an indented block).
IN_THE_TEXT = {
    "a source": r"arXiv \d{4}\.\d{5}|https?://|No paper: ",
    "a formula": r"`[^`\n]*[-+*/<>=(][^`\n]*`|^ {4}.*[-+*/<>=]",
}
HEADER = """# Algorithms

Written by `python scripts/gen_algorithm_docs.py` from the docstrings of the functions; change those, not this file.

Every entry gives the idea and formula, the paper, the keys that it reads, when to use it and when it fails. `algorithm.adv_estimator` picks
an estimator for the team and `algorithm.per_agent.<agent>.adv_estimator` for one agent;
`actor_rollout_ref.actor.policy_loss.loss_mode` picks the loss. [docs/upstream_map.md](upstream_map.md) says where results differ from
verl's on purpose. A function of your own joins under a name given to `@register_adv_est` or `@register_policy_loss`
([docs/workflows.md](workflows.md)). One that joins the package is a file in `verl/trainer/ppo/core_algos/estimators/` or `policy_losses/`
with its test, and a run of this script and of `scripts/gen_config_docs.py`: the decorator says which keys it reads and what else
the trainer must know of it (`EstimatorTraits` and `LossTraits` in `verl/trainer/ppo/registry.py`). A method without a paper says
`No paper: ` and whose it is.

Common to all estimators that compare a reply with its group: a group of one has advantage 0 (`algorithm.singleton=raw`: its score), a
group of equal scores exactly 0. Common to all: rows without an unmasked token are in no statistic; the order of rows changes nothing;
whitening never crosses policies.
"""
REWARDS = """Mixing, team scope, shaping, propagation and penalties happen before a batch exists, in `agent_system/reward/`:
[docs/training.md](training.md#rewards) has their formulas and keys.
"""


def before_arguments(documented: Any) -> str:
    """The docstring of a function, class or module, before `Args:`."""
    text = inspect.cleandoc(documented.__doc__ or "")
    return re.split(r"^(?:Args|Returns|Raises|Attributes):$", text, flags=re.MULTILINE)[0].strip("\n").rstrip()


def facts(text: str, where: str) -> tuple[list[str], dict[str, str]]:
    """(what the entry is about, its `FACTS`).

    Raises ValueError naming where a source, a formula or a fact is missing.
    """
    told, about = {}, []
    for paragraph in re.split(r"\n[ \t]*\n", text):
        starts = re.split(rf"^({'|'.join(FACTS)}): ", paragraph.strip("\n"), flags=re.MULTILINE)
        if starts[0].strip():
            about.append(starts[0].rstrip())
        told |= {name: " ".join(text.split()) for name, text in zip(starts[1::2], starts[2::2], strict=True)}
    missing = [name for name in FACTS if name not in told]
    missing += [name for name, pattern in IN_THE_TEXT.items() if not re.search(pattern, "\n\n".join(about), re.MULTILINE)]
    if missing:
        raise ValueError(f"{where}: the docstring says nothing under {missing}")
    return about, told


def entry(title: str, where: str, text: str) -> str:
    """One section: its heading, where it is written, and what its docstring says."""
    about, told = facts(text, where)
    return f"### {title}\n\n`{where}`\n\n" + "\n\n".join(about) + "\n\n" + "".join(f"- **{name}**: {told[name]}\n" for name in FACTS)


def entries(registry: Mapping[str, Callable[..., Any]]) -> str:
    """One section a function, under all names that it is registered by."""
    names: dict[Callable[..., Any], list[str]] = {}
    for name, fn in registry.items():
        if fn.__module__.startswith("verl."):
            names.setdefault(fn, []).append(name)
    ordered = sorted(names.items(), key=lambda item: item[1][0])
    return "\n".join(
        entry(", ".join(f"`{n}`" for n in known_as), f"{fn.__module__}.{fn.__name__}", before_arguments(fn)) for fn, known_as in ordered
    )


def described(titled: Mapping[str, Any]) -> str:
    """One section a function, class or module that nobody picks by name."""
    return "\n".join(
        entry(title, what.__name__ if inspect.ismodule(what) else f"{what.__module__}.{what.__qualname__}", before_arguments(what))
        for title, what in titled.items()
    )


def in_parts(module: ModuleType) -> str:
    """A module's docstring and a section for each of its underlined titles."""
    preface, *parts = re.split(r"^(\w+)\n-{3,}\n", inspect.cleandoc(module.__doc__ or ""), flags=re.MULTILINE)
    sections = zip(parts[::2], parts[1::2], strict=True)
    return "\n".join([preface.rstrip() + "\n", *(entry(f"`{title}`", module.__name__, text) for title, text in sections)])


def render() -> str:
    """The whole page."""
    from agent_system.reward import mixing, penalties, propagation, shaping
    from verl.trainer.config import presets
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.collect import dynamic_sampling
    from verl.trainer.ppo.core_algos import rollout_correction
    from verl.trainer.ppo.credit import estimator_inputs

    losses = {
        "Aggregation": core_algos.agg_loss,
        "KL estimators": core_algos.kl_penalty,
        "KL in the reward": core_algos.compute_rewards,
        "Fixed KL coefficient": core_algos.FixedKLController,
        "Adaptive KL coefficient": core_algos.AdaptiveKLController,
        "Value loss": core_algos.compute_value_loss,
        "Entropy": core_algos.compute_entropy_loss,
    }
    samples = {"Dynamic sampling": dynamic_sampling, "Call weighting": estimator_inputs.call_weights}
    rewards = {
        "Mixing": mixing.mix,
        "Shaping": shaping,
        "Propagation": propagation,
        "Invalid-action penalty": penalties.invalid_action,
        "Over-long penalty": penalties.overlong,
    }
    pages = [HEADER]
    pages += ["## Advantage estimators\n", entries(core_algos.ADV_ESTIMATOR_REGISTRY)]
    pages += ["## Policy losses\n", entries(core_algos.POLICY_LOSS_REGISTRY)]
    pages += ["## Aggregation, KL and values\n", described(losses)]
    pages += ["## Which samples count, and how much\n", described(samples)]
    pages += ["## Rewards\n", REWARDS, described(rewards)]
    pages += ["## Off-policy correction\n", in_parts(rollout_correction)]
    pages += ["## Presets\n", in_parts(presets), presets_table(presets.PRESETS)]
    return "\n".join(pages)


def presets_table(known: Mapping[str, Any]) -> str:
    """Name and expansion of every preset."""
    rows = [f"| `{name}` | {' '.join(f'`{k}={v}`' for k, v in preset.items())} |" for name, preset in known.items()]
    return "| `algorithm.preset` | stands for |\n|---|---|\n" + "\n".join(rows) + "\n"


def main(arguments: list[str]) -> int:
    """Write the page, or with `--check` return 1 when it is not what would be written."""
    page = render()
    if "--check" in arguments:
        if DOC.exists() and DOC.read_text() == page:
            return 0
        sys.stderr.write("docs/algorithms.md is out of date; run: python scripts/gen_algorithm_docs.py\n")
        return 1
    DOC.write_text(page)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
