"""Check a model for training: `verl-mas check-model PATH`, or
`python -m verl.trainer.check_model PATH`.

Two ways must agree in each part: rows laid out as the trainer runs them and rows alone, the engine
and a full pass, a model and its export. Exit status 0 means that the model can be trained and
served exactly; 1, that a part needed for that cannot.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from verl.models.adapter_checks import adapter_report
from verl.models.export_check import export_difference
from verl.models.files import check_files
from verl.models.loader import ModelPathError, build_causal_lm, check_causal_lm, load_causal_lm, resolve_dtype
from verl.models.lora import LoraSpec
from verl.models.miniature import MiniatureError
from verl.models.path import absolute_model_path
from verl.models.reward_model import scoring_of
from verl.models.value_model import check_value_model
from verl.protocol.generate import RolloutError
from verl.utils.names import error_line
from verl.workers.engine.head_check import choose_head
from verl.workers.engine.head_scores import LogitMap
from verl.workers.engine.layout import RowLayout
from verl.workers.engine.layout_check import (
    FP32_BOUND,
    LayoutError,
    choose_layout,
    layout_difference,
    training_randomness,
)
from verl.workers.rollout.serving import serving_of

GIB = 2**30
EXACT = "exact"
SLOWER = "exact, slower"
NOTE = "note"
REFUSED = "not possible"


@dataclass(frozen=True)
class CheckRow:
    """One row of the table.

    Attributes:
        name: what was checked.
        verdict: in a word or two.
        text: what was seen.
        needed: whether the model cannot be trained if this is refused.
    """

    name: str
    verdict: str
    text: str
    needed: bool = True


def check_model(
    path: str, *, dtype: str, max_model_len: int, rank: int, trust_remote_code: bool, weights: bool
) -> list[CheckRow]:
    """Return the rows of the table.

    Args:
        path: folder, GGUF file or hub id.
        dtype: of the trainer's computations.
        max_model_len: tokens of prompt and reply together.
        rank: of the adapters.
        trust_remote_code: run code that is shipped with the model.
        weights: also load the model's own weights.

    Raises:
        ModelPathError: the files are not those of a causal language model.
    """
    path = absolute_model_path(path)
    check_files(path, trust_remote_code=trust_remote_code)
    config = check_causal_lm(path, trust_remote_code=trust_remote_code)
    rows = [CheckRow("files", EXACT, f"{type(config).__name__}, complete")]
    torch_dtype = resolve_dtype(dtype, "cpu")
    layout: RowLayout | None = None
    try:
        choice = choose_layout(config, dtype=torch_dtype)
        layout = choice.layout
        reasons = "; ".join(f"{other.describe()}: {reason}" for other, reason in choice.rejected[:1])
        text = f"{layout.describe()}, differs by {choice.difference:.1e}" + (
            f" ({reasons})" if reasons else ""
        )
        rows.append(CheckRow("trainer", SLOWER if choice.rejected else EXACT, text))
    except LayoutError as error:
        rows.append(CheckRow("trainer", REFUSED, str(error)))
    head = choose_head(config)
    way = (
        "from whole logits" if head.logit_map is None else "in the head, one part of the vocabulary at a time"
    )
    rows.append(
        CheckRow(
            "log-probs",
            SLOWER if head.logit_map is None else EXACT,
            f"{way}: {head.reason}" if head.reason else way,
            needed=False,
        )
    )
    if randomness := training_randomness(config):
        rows.append(CheckRow("randomness", NOTE, randomness, needed=False))
    if layout is not None and weights:
        rows.append(own_weights(path, layout, trust_remote_code, head.logit_map))
    rows.append(_row("export", lambda: _export(config)))
    rows.append(_row("engine hf", lambda: _engine(config, max_model_len), needed=False))
    rows += adapters(path, rank, trust_remote_code)
    rows.append(_row("critic", lambda: _critic(path, config, trust_remote_code), needed=False))
    rows.append(_row("reward model", lambda: _reward_model(config), needed=False))
    return rows


def _row(name: str, check: Callable[[], tuple[str, str]], needed: bool = True) -> CheckRow:
    try:
        verdict, text = check()
    except (LayoutError, ModelPathError, RolloutError) as error:
        return CheckRow(name, REFUSED, str(error), needed)
    return CheckRow(name, verdict, text, needed)


def _export(config: Any) -> tuple[str, str]:
    difference = export_difference(config)
    return EXACT, f"reloaded by transformers, all tensors equal, log-probs differ by {difference:.1e}"


def _engine(config: Any, max_model_len: int) -> tuple[str, str]:
    serving = serving_of(config, max_model_len=max_model_len)
    notes = "; ".join(serving.notes())
    return (EXACT if serving.mode == "slots" else SLOWER), f"served in {serving.mode}" + (
        f": {notes}" if notes else ""
    )


def _critic(path: str, config: Any, trust_remote_code: bool) -> tuple[str, str]:
    check_value_model(path, trust_remote_code)
    choice = choose_layout(config, values=True)
    return (SLOWER if choice.rejected else EXACT), f"can be made from this model: {choice.layout.describe()}"


def _reward_model(config: Any) -> tuple[str, str]:
    scoring = scoring_of(config)
    rows = "rows padded" if scoring.padded else "rows one by one"
    return (
        EXACT if scoring.padded else SLOWER
    ), f"a sequence classifier of this type is exact: {rows}, attention by {scoring.attention}"


def adapters(path: str, rank: int, trust_remote_code: bool) -> list[CheckRow]:
    """Return the rows about an adapter on all linear layers."""
    with torch.device("meta"):
        base = build_causal_lm(
            path, dtype=torch.float32, attn_implementation="eager", trust_remote_code=trust_remote_code
        )
    try:
        report = adapter_report(base, {"all-linear": LoraSpec(rank, rank)})
    except MiniatureError as error:
        return [CheckRow("adapters", NOTE, f"not checked: {error}", needed=False)]
    if report.problems:
        return [CheckRow("adapters", REFUSED, "; ".join(report.problems), needed=False)]
    coverage = report.coverage["all-linear"]
    return [CheckRow("adapters", EXACT if coverage.share == 1 else NOTE, coverage.describe(), needed=False)]


def own_weights(
    path: str, layout: RowLayout, trust_remote_code: bool, logit_map: LogitMap | None
) -> CheckRow:
    """Return the row about the model with its own weights, loaded in fp32 if it fits into the
    memory that is free.
    """
    with torch.device("meta"):
        empty = build_causal_lm(
            path, dtype=torch.float32, attn_implementation="eager", trust_remote_code=trust_remote_code
        )
    size = sum(parameter.numel() for parameter in empty.parameters()) * 4
    free = psutil.virtual_memory().available
    if size * 1.2 > free:
        return CheckRow(
            "own weights",
            NOTE,
            f"not loaded: {size / GIB:.1f} GiB in fp32, {free / GIB:.1f} GiB are free",
            needed=False,
        )

    def load(attention: str) -> Any:
        return load_causal_lm(
            path, dtype=torch.float32, attn_implementation=attention, trust_remote_code=trust_remote_code
        )

    try:
        difference = layout_difference(load, layout, logit_map)
    except (MemoryError, RuntimeError) as error:
        return CheckRow(
            "own weights", REFUSED, f"the model cannot be run on this machine: {error_line(error)}"
        )
    # Published weights give sharper distributions than drawn ones; rounding grows with their
    # logits.
    verdict = EXACT if difference <= 10 * FP32_BOUND else REFUSED
    return CheckRow(
        "own weights",
        verdict,
        f"{size / 4 / 1e6:.0f} M parameters, differs by {difference:.1e} from rows run alone",
    )


def table(rows: Sequence[CheckRow], columns: int = 100) -> str:
    """Return the rows as text, the last column wrapped."""
    import textwrap

    names = max(len(row.name) for row in rows)
    verdicts = max(len(row.verdict) for row in rows)
    lines = []
    for row in rows:
        indent = names + verdicts + 4
        text = textwrap.wrap(row.text, max(40, columns - indent)) or [""]
        lines.append(f"{row.name:{names}}  {row.verdict:{verdicts}}  {text[0]}")
        lines += [" " * indent + line for line in text[1:]]
    return "\n".join(lines)


def main(more: Callable[[str, bool], list[CheckRow]] = lambda path, trust_remote_code: []) -> None:
    """Print the table and the verdict.

    Args:
        more: returns further rows of a model, from its path and whether its own code may run.
    """
    parser = argparse.ArgumentParser(
        prog="verl-mas check-model", epilog="See docs/models.md.", description=__doc__.splitlines()[0]
    )
    parser.add_argument("path", help="model folder, GGUF file or hub id")
    parser.add_argument(
        "--dtype", choices=("fp32", "bf16"), default="fp32", help="in which the trainer will compute"
    )
    parser.add_argument("--max-len", type=int, default=2048, help="tokens of prompt and reply together")
    parser.add_argument("--lora-rank", type=int, default=32)
    parser.add_argument("--trust-remote-code", action="store_true")
    parser.add_argument("--no-weights", action="store_true", help="check the architecture alone")
    args = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    started = time.perf_counter()
    try:
        rows = check_model(
            args.path,
            dtype=args.dtype,
            max_model_len=args.max_len,
            rank=args.lora_rank,
            trust_remote_code=args.trust_remote_code,
            weights=not args.no_weights,
        )
        rows += more(args.path, args.trust_remote_code)
    except ModelPathError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    refused = [row.name for row in rows if row.verdict == REFUSED and row.needed]
    limited = [row.name for row in rows if row.verdict == REFUSED and not row.needed]
    print(table(rows))
    seconds = time.perf_counter() - started
    if refused:
        print(f"verdict: cannot be trained exactly ({', '.join(refused)}); {seconds:.1f} s")
        sys.exit(1)
    print(
        f"verdict: can be trained exactly{f', without: {chr(44).join(limited)}' if limited else ''}; "
        f"{seconds:.1f} s"
    )


if __name__ == "__main__":
    main()
