"""Write docs/algorithms.md from the docstrings of the algorithms: `python scripts/gen_algorithm_docs.py [--check]`."""

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOC = ROOT / "docs" / "algorithms.md"
# What every entry says beside its idea and formula; a docstring holds each as a paragraph `<name>: ...`.
FACTS = ("Keys", "Use when", "Fails when")
HEADER = """# Algorithms

Written by `python scripts/gen_algorithm_docs.py` from the docstrings of the functions; change those, not this file.

Every entry gives the idea and formula, the paper, the keys that it reads, when to use it and when it fails. `algorithm.adv_estimator` picks
an estimator for the team and `algorithm.per_agent.<agent>.adv_estimator` for one agent;
`actor_rollout_ref.actor.policy_loss.loss_mode` picks the loss. [docs/upstream_map.md](upstream_map.md) says where results differ from
verl's on purpose. A function of your own joins under a name given to `@register_adv_est` or `@register_policy_loss`
([docs/workflows.md](workflows.md)).

Common to all estimators: a group of one has advantage 0 (`algorithm.singleton=raw`: its score), a group of equal scores exactly 0; rows
without an unmasked token are in no statistic; the order of rows changes nothing; whitening never crosses policies.
"""
REWARDS = """Mixing, team scope, shaping, propagation and penalties happen before a batch exists, in `agent_system/reward/`:
[docs/training.md](training.md#rewards) has their formulas and keys.
"""


def paragraphs(fn: Callable[..., Any]) -> list[str]:
    """The docstring before `Args:`, cut at empty lines."""
    text = inspect.cleandoc(fn.__doc__ or "")
    text = re.split(r"^(?:Args|Returns|Raises|Attributes):$", text, flags=re.MULTILINE)[0]
    return [p.strip("\n").rstrip() for p in re.split(r"\n[ \t]*\n", text) if p.strip()]


def facts(fn: Callable[..., Any]) -> tuple[list[str], dict[str, str]]:
    """(what the entry is about, its `FACTS`). Raises ValueError naming a function that lacks one."""
    told, about = {}, []
    for paragraph in paragraphs(fn):
        starts = re.split(rf"^({'|'.join(FACTS)}): ", paragraph, flags=re.MULTILINE)
        if starts[0].strip():
            about.append(starts[0].rstrip())
        told |= {name: " ".join(text.split()) for name, text in zip(starts[1::2], starts[2::2], strict=True)}
    missing = [name for name in FACTS if name not in told]
    if missing or not about:
        raise ValueError(f"{fn.__module__}.{fn.__qualname__}: the docstring says nothing under {missing or 'its first lines'}")
    return about, told


def entries(registry: Mapping[str, Callable[..., Any]]) -> str:
    """One section a function, under all names that it is registered by."""
    names: dict[Callable[..., Any], list[str]] = {}
    for name, fn in registry.items():
        if fn.__module__.startswith("verl."):
            names.setdefault(fn, []).append(name)
    out = []
    for fn, known_as in sorted(names.items(), key=lambda item: item[1][0]):
        about, told = facts(fn)
        out.append(f"### {', '.join(f'`{n}`' for n in known_as)}\n\n`{fn.__module__}.{fn.__name__}`\n\n" + "\n\n".join(about) + "\n")
        out.append("".join(f"- **{name}**: {told[name]}\n" for name in FACTS))
    return "\n".join(out)


def described(*functions: Callable[..., Any]) -> str:
    """One section a function that nobody picks by name: what its docstring says before its arguments."""
    return "\n".join(f"### `{fn.__module__}.{fn.__qualname__}`\n\n" + "\n\n".join(paragraphs(fn)) + "\n" for fn in functions)


def render() -> str:
    """The whole page."""
    from verl.trainer.config import presets
    from verl.trainer.ppo import core_algos

    pages = [HEADER]
    pages += ["## Advantage estimators\n", entries(core_algos.ADV_ESTIMATOR_REGISTRY)]
    pages += ["## Policy losses\n", entries(core_algos.POLICY_LOSS_REGISTRY)]
    pages += ["## Aggregation, KL and values\n", described(core_algos.agg_loss, core_algos.kl_penalty, core_algos.kl_penalty_forward)]
    pages += [described(core_algos.AdaptiveKLController.update, core_algos.compute_value_loss)]
    pages += ["## Rewards\n", REWARDS]
    pages += ["## Off-policy correction\n", inspect.cleandoc(core_algos.rollout_correction.__doc__ or "") + "\n"]
    pages += ["## Presets\n", inspect.cleandoc(presets.__doc__ or "") + "\n", presets_table(presets.PRESETS)]
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
