"""Write docs/algorithms.md from the docstrings of the algorithms:
`python scripts/gen_algorithm_docs.py [--check]`.
"""

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOC = ROOT / "docs" / "algorithms.md"
# Required paragraphs of every docstring in addition to idea and formula, in the form `<name>: ...`.
FACTS = ("Keys", "Use when", "Fails when")
# Required content of the remaining text: a source, and a formula (in a code span or an indented block).
IN_THE_TEXT = {
    "a source": r"arXiv \d{4}\.\d{5}|https?://|No paper: ",
    "a formula": r"`[^`\n]*[-+*/<>=(][^`\n]*`|^ {4}.*[-+*/<>=]",
}
HEADER = """# Algorithms

Written by `python scripts/gen_algorithm_docs.py` from the docstrings of the functions; change those, not this file.

Every entry gives the idea and formula, the paper, the keys that it reads, when to use it and when it fails.
`algorithm.adv_estimator` selects an estimator for the team and `algorithm.per_agent.<agent>.adv_estimator` for one
agent; `actor_rollout_ref.actor.policy_loss.loss_mode` selects the loss. [docs/upstream_map.md](upstream_map.md) lists
intended differences from verl's results. A user's function is registered by `@register_adv_est` or
`@register_policy_loss` ([docs/workflows.md](workflows.md)). To add a function to the package, write a file in
`verl/trainer/ppo/core_algos/estimators/` or `policy_losses/` with its test, and run this script and
`scripts/gen_config_docs.py`: the decorator states the keys that it reads and its other properties for the trainer
(`EstimatorTraits` and `LossTraits` in `verl/trainer/plan/registry.py`). A method without a paper has `No paper: ` and its
origin.

Common to all estimators that compare a reply with its group: a group of one has advantage 0
(`algorithm.singleton=raw`: its score), a group of equal scores exactly 0. Common to all estimators: rows without an
unmasked token are excluded from all statistics; the order of rows has no effect; whitening never mixes policies.
Agents of one policy are whitened apart if they have different estimators, or different `gdpo_reward_keys` or weights;
other differences of an estimator that whitens are refused.
"""
REWARDS = """Mixing, team scope, shaping, propagation and penalties are applied before a batch exists, in
`agent_system/reward/`: [docs/rewards.md](rewards.md) has their formulas and keys.
"""


def before_arguments(documented: Any) -> str:
    """Return the docstring of a function, class or module up to `Args:`."""
    text = inspect.cleandoc(documented.__doc__ or "")
    return (
        re.split(r"^(?:Args|Returns|Raises|Attributes):$", text, flags=re.MULTILINE)[0].strip("\n").rstrip()
    )


def facts(text: str, where: str) -> tuple[list[str], dict[str, str]]:
    """Return the descriptive paragraphs of a docstring and its `FACTS`.

    Raises:
        ValueError: a source, a formula or a fact is missing; the message names `where`.
    """
    found, about = {}, []
    for paragraph in re.split(r"\n[ \t]*\n", text):
        starts = re.split(rf"^({'|'.join(FACTS)}): ", paragraph.strip("\n"), flags=re.MULTILINE)
        if starts[0].strip():
            about.append(starts[0].rstrip())
        found |= {name: " ".join(text.split()) for name, text in zip(starts[1::2], starts[2::2], strict=True)}
    missing = [name for name in FACTS if name not in found]
    missing += [
        name
        for name, pattern in IN_THE_TEXT.items()
        if not re.search(pattern, "\n\n".join(about), re.MULTILINE)
    ]
    if missing:
        raise ValueError(f"{where}: the docstring lacks {missing}")
    return about, found


def entry(title: str, where: str, text: str) -> str:
    """Return one section: heading, location in the code, content of the docstring."""
    about, found = facts(text, where)
    return (
        f"### {title}\n\n`{where}`\n\n"
        + "\n\n".join(about)
        + "\n\n"
        + "".join(f"- **{name}**: {found[name]}\n" for name in FACTS)
    )


def entries(registry: Mapping[str, Callable[..., Any]]) -> str:
    """Return one section per function, with all names under which it is registered."""
    names: dict[Callable[..., Any], list[str]] = {}
    for name, fn in registry.items():
        if fn.__module__.startswith("verl."):
            names.setdefault(fn, []).append(name)
    ordered = sorted(names.items(), key=lambda item: item[1][0])
    return "\n".join(
        entry(", ".join(f"`{n}`" for n in known_as), f"{fn.__module__}.{fn.__name__}", before_arguments(fn))
        for fn, known_as in ordered
    )


def described(titled: Mapping[str, Any]) -> str:
    """Return one section per function, class or module that is not selected by a name."""
    return "\n".join(
        entry(
            title,
            what.__name__ if inspect.ismodule(what) else f"{what.__module__}.{what.__qualname__}",
            before_arguments(what),
        )
        for title, what in titled.items()
    )


def in_parts(module: ModuleType) -> str:
    """Return a module's docstring with one section for each of its underlined titles."""
    preface, *parts = re.split(r"^(\w+)\n-{3,}\n", inspect.cleandoc(module.__doc__ or ""), flags=re.MULTILINE)
    sections = zip(parts[::2], parts[1::2], strict=True)
    return "\n".join(
        [preface.rstrip() + "\n", *(entry(f"`{title}`", module.__name__, text) for title, text in sections)]
    )


def render() -> str:
    """Return the whole page."""
    from agent_system.reward import mixing, penalties, propagation, shaping
    from verl.trainer.plan import presets
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.collect import dynamic_sampling
    from verl.trainer.ppo.core_algos import rollout_correction
    from verl.trainer.ppo.credit import candidates, estimator_inputs

    losses = {
        "Aggregation": core_algos.agg_loss,
        "KL estimators": core_algos.kl_penalty,
        "KL in the reward": core_algos.compute_rewards,
        "Fixed KL coefficient": core_algos.FixedKLController,
        "Adaptive KL coefficient": core_algos.AdaptiveKLController,
        "Value loss": core_algos.compute_value_loss,
        "Entropy": core_algos.compute_entropy_loss,
    }
    samples = {
        "Dynamic sampling": dynamic_sampling,
        "Call weighting": estimator_inputs.call_weights,
        "Committed replies of trees": candidates,
    }
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
    """Return a table with the name and expansion of every preset."""
    rows = [
        f"| `{name}` | {' '.join(f'`{k}={v}`' for k, v in preset.items())} |"
        for name, preset in known.items()
    ]
    return "| `algorithm.preset` | stands for |\n|---|---|\n" + "\n".join(rows) + "\n"


def main(arguments: list[str]) -> int:
    """Write the page; with `--check`, return 1 if the existing page is out of date."""
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
