"""How the `hf` engine serves a model, decided by serving a miniature of it beside the model's own
full forward pass.

Two prompts of different lengths are computed and continued beside each other, across every window
and every original position limit of the miniature, with fixed tokens. Log-probs after every token
are compared with those of an eager forward pass over each row alone, and with those of the same row
when the other one is not there.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch

from verl.models.fingerprint import once_per_configuration
from verl.models.miniature import MiniatureError, miniature_model, one_thread
from verl.protocol.generate import RolloutError
from verl.utils.names import error_line
from verl.workers.rollout.chunks import compute_texts
from verl.workers.rollout.forward import SlotModel
from verl.workers.rollout.rows import RowModel

Mode = Literal["slots", "rows"]
Served = SlotModel | RowModel

MODELS: dict[Mode, type[SlotModel] | type[RowModel]] = {"slots": SlotModel, "rows": RowModel}

# fp32 rounding of sharp attention is below; a lost window, bias or state is above 0.1
TOLERANCE = 1e-3
# by which a model's own decode step may differ from its own full pass, as where only one of them
# clamps
OWN_DECODE = 0.2
# prompts, in tokens; with the tokens after them below the position limit of a miniature
BELOW_LIMIT = (
    5,
    17,
)
# the first crosses the limit while it is continued, the second has two chunks
BEYOND_LIMIT = (28, 70)
_LIMITS = re.compile(r"original_max_position_embeddings|n_ctx_original|floor_scale|log_scaling_floor")
_MODES: tuple[tuple[Mode, float], ...] = (("slots", TOLERANCE), ("rows", OWN_DECODE))
TOKENS = 8
TOKENS_ALONE = 4
SLOTS = 8


@dataclass(frozen=True)
class Serving:
    """How the engine serves a model.

    Attributes:
        mode: `slots`, all replies in one batch, or `rows`, one forward pass per reply.
        reason: why not in slots; empty for `slots`.
        same_bits: whether a reply has the same bits alone and beside others.
        same_keys: whether the keys of a reply have the bits that they have as a prompt's.
        limit: number of tokens of prompt and reply up to which this holds; None without a limit.
    """

    mode: Mode
    reason: str = ""
    same_bits: bool = True
    limit: int | None = None
    same_keys: bool = False

    def notes(self) -> list[str]:
        """Return what a user has to know, one line each."""
        lines = []
        if self.mode == "rows":
            lines.append(
                "replies are decoded one by one, each with transformers' own cache, because "
                f"{self.reason}: the time of a step grows with the number of replies; "
                "actor_rollout_ref.rollout.name=vllm is faster where it serves this model"
            )
        if not self.same_bits:
            lines.append(
                "the last bits of a reply depend on the replies beside it; its log-probs are exact "
                "to rounding"
            )
        return lines


def serving_of(config: Any, *, max_model_len: int) -> Serving:
    """Return how the `hf` engine serves models of a configuration; the check runs once per
    configuration and process.

    Args:
        config: of a causal language model, also one with a `text_config`.
        max_model_len: maximum number of tokens of prompt and reply together.

    Raises:
        RolloutError: neither way is exact, or only below a shorter length; one line that names the
            keys.
    """
    results = _check(config)
    for serving in results:
        if serving.limit is None or max_model_len <= serving.limit:
            return serving
    limit = max(serving.limit or 0 for serving in results)
    raise RolloutError(
        f"the hf engine serves {_name(config)} up to {limit} tokens, prompt and reply may have "
        f"{max_model_len}: beyond {limit} positions the model computes earlier tokens anew, which "
        "sampled tokens cannot follow; set data.max_prompt_length + data.max_response_length (and "
        f"those of the agents) to at most {limit}"
    )


@dataclass
class _Case:
    """Prompts, their continuations, and the log-probs after the prompt and after every token but
    the last, [tokens, vocab].
    """

    prompts: list[list[int]]
    replies: list[list[int]]
    expected: list[torch.Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class _Outcome:
    """Largest differences of log-probs, and the error of a mode that fails."""

    below: float = 0.0
    beyond: float = 0.0
    company: float = 0.0
    same_bits: bool = True
    error: str = ""
    same_keys: bool = False


@once_per_configuration
@one_thread()
def _check(config: Any) -> list[Serving]:
    """Return the exact ways to serve a model, the faster first; only the last one may be without a
    limit.
    """
    name = _name(config)
    try:
        model = miniature_model(config, attention="eager")
    except MiniatureError as error:
        raise RolloutError(
            f"the hf engine cannot check {name}: {error}; use actor_rollout_ref.rollout.name=vllm"
        ) from error
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        below = _case(model, BELOW_LIMIT)
        beyond = _case(model, BEYOND_LIMIT)
        _full_passes(model, below, beyond)
        limit = position_limit(config, model.config)
        exact: list[Serving] = []
        reasons: list[str] = []
        for mode, allowed in _MODES:
            outcome = _outcome(partial(_serving_model, model, mode), below, beyond)
            reason = _fault(outcome, allowed, limit)
            if not reason and outcome.beyond <= allowed:
                same_keys = outcome.same_keys
                return [*exact, Serving(mode, "; ".join(reasons), outcome.same_bits, same_keys=same_keys)]
            if not reason:
                exact.append(Serving(mode, "; ".join(reasons), outcome.same_bits, limit))
                reason = f"log-probs beyond {limit} tokens are {outcome.beyond:.2g} off those of a full forward pass"
            reasons.append(reason)
    if exact:
        return exact[:1]
    raise RolloutError(
        f"the hf engine serves {name} neither in slots ({reasons[0]}) nor row by row "
        f"({reasons[1]}); use actor_rollout_ref.rollout.name=vllm"
    )


def _fault(outcome: _Outcome, allowed: float, limit: int | None) -> str:
    """Return why a mode is not used, or nothing; a difference beyond the position limit is none
    below it.
    """
    if outcome.error:
        return outcome.error
    if max(outcome.below, 0.0 if limit is not None else outcome.beyond) > allowed:
        return f"log-probs are {max(outcome.below, outcome.beyond):.2g} off those of a full forward pass"
    if outcome.company > TOLERANCE:
        return f"log-probs change by {outcome.company:.2g} with the other replies"
    return ""


def _case(model: Any, lengths: Sequence[int]) -> _Case:
    generator = torch.Generator().manual_seed(len(lengths) + sum(lengths))
    vocabulary = int(model.config.get_text_config().vocab_size)

    def draw(count: int) -> list[int]:
        return torch.randint(min(8, vocabulary - 1), vocabulary, (count,), generator=generator).tolist()

    return _Case([draw(length) for length in lengths], [draw(TOKENS) for _ in lengths])


def _full_passes(model: Any, *cases: _Case) -> None:
    """Compute the expected log-probs of every row alone, the shortest first: longer ones may leave
    their frequencies in the model.
    """
    model = copy.deepcopy(model)
    rows = [
        (case, prompt, reply)
        for case in cases
        for prompt, reply in zip(case.prompts, case.replies, strict=True)
    ]
    for case, prompt, reply in sorted(rows, key=lambda row: len(row[1])):
        logits = model(input_ids=torch.tensor([prompt + reply]), use_cache=False).logits[
            0, len(prompt) - 1 : -1
        ]
        case.expected.append(logits.float().log_softmax(-1))


def _serving_model(model: Any, mode: Mode) -> Served:
    longest = max(BEYOND_LIMIT) + TOKENS
    return MODELS[mode](copy.deepcopy(model), SLOTS, longest)


def _outcome(make: Any, below: _Case, beyond: _Case) -> _Outcome:
    """Serve the rows of both cases, then the longer one of the first case again and alone."""
    try:
        serving_model: Served = make()
        first = _serve(serving_model, below, range(len(below.prompts)))
        second = _serve(serving_model, beyond, range(len(beyond.prompts)))
        same_keys = _has_same_keys(serving_model, beyond)
        last = len(below.prompts) - 1
        (alone,) = _serve(serving_model, below, [last], TOKENS_ALONE, SLOTS)
    except Exception as error:  # the code of any model may raise anything
        if isinstance(error, RolloutError):
            return _Outcome(error=error_line(error))
        return _Outcome(error=f"its forward pass fails: {error_line(error, typed=True)}")
    return _Outcome(
        max(_gap(a, b) for a, b in zip(first, below.expected, strict=True)),
        max(_gap(a, b) for a, b in zip(second, beyond.expected, strict=True)),
        _gap(alone, first[last][:TOKENS_ALONE]),
        torch.equal(alone, first[last][:TOKENS_ALONE]),
        same_keys=same_keys,
    )


def _has_same_keys(serving_model: Served, case: _Case) -> bool:
    """Return whether the slots of a case, which was served just now, hold what the same texts leave
    in other slots if they are computed as prompts.
    """
    texts = [prompt + reply for prompt, reply in zip(case.prompts, case.replies, strict=True)]
    others = {len(texts) + i: text for i, text in enumerate(texts)}
    if not serving_model.is_shapeless:
        return False
    compute_texts(serving_model, others)
    same = [serving_model.holds_same(i, len(texts) + i, len(text)) for i, text in enumerate(texts)]
    serving_model.end(list(others))
    return all(same)


def _gap(a: torch.Tensor, b: torch.Tensor) -> float:
    gap = float((a - b).abs().max())
    # NaN is no small difference.
    return gap if gap == gap else float("inf")


def _serve(
    serving_model: Served, case: _Case, row_indices: Sequence[int], count: int = TOKENS, used: int = 0
) -> list[torch.Tensor]:
    """Return the log-probs of `count` tokens of the chosen rows, each in the slot of its place in
    the case, in steps of at least `used` slots.
    """
    compute_texts(serving_model, {i: case.prompts[i] for i in row_indices})
    tokens = torch.zeros(serving_model.slots, dtype=torch.long)
    positions = torch.zeros(serving_model.slots, dtype=torch.long)
    steps = []
    for step in range(count):
        steps.append(serving_model.logits[list(row_indices)].float().log_softmax(-1))
        for i in row_indices:
            tokens[i] = case.replies[i][step]
            positions[i] = len(case.prompts[i]) + step
        serving_model.decode(tokens, positions, int(positions.max()) + 1, max(used, max(row_indices) + 1))
    serving_model.end(list(row_indices))
    return list(torch.stack(steps, 1))


def position_limit(config: Any, small: Any) -> int | None:
    """Return the number of positions beyond which a configuration may compute tokens otherwise;
    None if it names none.

    Args:
        config: the configuration.
        small: its miniature, whose own limit is below the longest rows of the check.
    """
    text = config.get_text_config()
    parameters = getattr(text, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    entries = [vars(text), parameters, *nested]
    named = [
        value
        for entry in entries
        for name, value in entry.items()
        if _LIMITS.fullmatch(name) and isinstance(value, int)
    ]
    if named:
        return min(named)
    longest = getattr(small.get_text_config(), "max_position_embeddings", None)
    return text.max_position_embeddings if longest is not None and longest < max(BEYOND_LIMIT) else None


def _name(config: Any) -> str:
    architectures = getattr(config, "architectures", None)
    return architectures[0] if architectures else f"a model of the type {config.model_type}"
