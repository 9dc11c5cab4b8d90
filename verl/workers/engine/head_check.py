"""Whether scores can be computed in a model's head, tile by tile, found by running a miniature of
the model: what the model makes of its head's output, and whether both ways agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from verl.models.fingerprint import once_per_configuration
from verl.models.lora import LoraSpec, LoraTargetError, head_of, lora_targets
from verl.models.miniature import MiniatureError, miniature_model, one_thread
from verl.utils.names import error_line
from verl.workers.engine.forward import score_tokens
from verl.workers.engine.head_call import head_replaced, linear_head
from verl.workers.engine.head_scores import IDENTITY, LogitMap
from verl.workers.engine.layout import RowLayout
from verl.workers.engine.layout_check import FP32_BOUND, rows_to_check

# Outputs of a head that a model is given: below the smallest a cap is a scale, at the largest it is
# its own value.
SMALLEST = 1e-3
LARGEST = 1e6
# Relative; a model computes the map in fp32.
MAP_BOUND = 1e-4
# Of the rows of a check: with one length, and beyond no limit.
ROW = 1
ALONE = RowLayout("equal", "eager")


@dataclass(frozen=True)
class HeadChoice:
    """How a model's log-probs are computed.

    Attributes:
        logit_map: what the model does to its head's output, if scores are computed in the head;
            None for whole logits.
        reason: why logits are whole; empty if they are not.
    """

    logit_map: LogitMap | None
    reason: str = ""

    def note(self, key: str) -> str | None:
        """Return one line about whole logits; None if there are none.

        Args:
            key: prefix of the model's keys, such as `actor_rollout_ref.model`.
        """
        if not self.reason:
            return None
        return (
            f"{key}.use_fused_kernels: log-probs are computed from whole logits, which take memory: "
            f"{self.reason}"
        )


def choose_head(config: Any, adapters: Sequence[LoraSpec] = ()) -> HeadChoice:
    """Return how the log-probs of a language model are computed.

    Args:
        config: of the model; a miniature of it is run.
        adapters: of the model.
    """
    choice = _choose(config)
    if choice.logit_map is not None and any(_has_head(config, spec) for spec in adapters):
        return HeadChoice(None, "the head has an adapter")
    return choice


def _has_head(config: Any, spec: LoraSpec) -> bool:
    """Return whether an adapter is on the head, too."""
    model = miniature_model(config, attention="eager")
    try:
        return head_of(model) in lora_targets(model, spec).values()
    except LoraTargetError:
        # a layer that only the whole model has; the trainer looks at the head itself
        return False


@once_per_configuration
@one_thread()
def _choose(config: Any) -> HeadChoice:
    try:
        model = miniature_model(config, attention="eager")
    except MiniatureError as error:
        return HeadChoice(None, f"it cannot be checked ({error})")
    head = linear_head(model)
    if head is None:
        return HeadChoice(None, f"its head is no linear layer ({type(head_of(model)).__name__})")
    try:
        logit_map = _logit_map(model, head, set(_numbers(config.to_dict())))
        if logit_map is None:
            return HeadChoice(None, "what it makes of its head's output is neither a known scale nor a cap")
        difference = _difference(model, logit_map)
    except Exception as error:  # code of a model may raise anything
        reason = error_line(error, most=200)
        return HeadChoice(None, f"it does not run with scores in place of logits ({reason})")
    if not difference < FP32_BOUND:
        return HeadChoice(None, f"log-probs or their gradients would differ by up to {difference:.2g}")
    return HeadChoice(logit_map)


def _numbers(value: Any) -> Iterator[float]:
    """Yield all numbers of a configuration."""
    if isinstance(value, Mapping):
        for nested in value.values():
            yield from _numbers(nested)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield float(value)


def _logit_map(model: Any, head: torch.nn.Linear, numbers: set[float]) -> LogitMap | None:
    """Return the map between the outputs of a head and logits; None if it is none of the known
    forms, or has numbers that are no field of the configuration: these may depend on a size, which
    a miniature has another.
    """
    words = head.out_features
    probe = torch.logspace(-3, 6, (words + 1) // 2)
    probe = torch.cat([probe, -probe])[:words]
    probe[0] = SMALLEST
    probe[-1] = LARGEST

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        return probe.to(hidden.dtype).expand(*hidden.shape[:-1], words)

    with torch.no_grad(), head_replaced(head, forward):
        logits = model(input_ids=torch.full((1, 3), 3), use_cache=False).logits
    if logits.shape != (1, 3, words) or not bool((logits == logits[0, 0]).all()):
        return None
    values = logits[0, 0].float()
    slope = float(values[0]) / SMALLEST
    largest = float(values[-1])
    scale = _same_number(slope, {1.0} | numbers | {1 / number for number in numbers if number})
    cap = None if abs(largest) > abs(slope) * LARGEST / 2 else _same_number(largest, numbers)
    if scale is None or scale <= 0.0 or not (cap is None or cap > 0.0):
        return None
    logit_map = LogitMap(scale, cap)
    fits = torch.allclose(logit_map.apply_(probe.clone()), values, rtol=MAP_BOUND, atol=0.0)
    return (IDENTITY if logit_map == IDENTITY else logit_map) if fits else None


def _same_number(value: float, numbers: set[float]) -> float | None:
    """Return the number of `numbers` that a measured one is; None if it is none of them."""
    nearest = min(numbers, key=lambda number: abs(number - value), default=None)
    return nearest if nearest is not None and abs(nearest - value) <= MAP_BOUND * abs(value) else None


def _difference(model: Any, logit_map: LogitMap) -> float:
    """Return the largest difference between both ways: of log-probs, entropies, and gradients
    relative to the largest one.
    """
    vocabulary = min(256, int(model.config.get_text_config().vocab_size))
    rows = {name: value[[ROW]] for name, value in rows_to_check(vocabulary).items()}
    results = []
    for used_map in (None, logit_map):
        model.zero_grad()
        scores = score_tokens(model, rows, 1.0, ALONE, logit_map=used_map)
        (scores.log_probs.sum() + scores.entropy.square().sum()).backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        results.append((scores.log_probs.detach(), scores.entropy.detach(), gradients))
    (log_probs, entropy, gradients), (other_log_probs, other_entropy, other_gradients) = results
    if gradients.keys() != other_gradients.keys():
        return float("inf")
    scale = max(float(gradient.abs().max()) for gradient in gradients.values())
    values = [(log_probs - other_log_probs).abs().max(), (entropy - other_entropy).abs().max()]
    values += [(gradient - other_gradients[name]).abs().max() / scale for name, gradient in gradients.items()]
    return float(torch.stack(values).max())
