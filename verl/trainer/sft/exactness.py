"""How supervised fine-tuning runs a model so that the loss of a row is that of the row alone, found
by running a miniature of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from verl.models.fingerprint import once_per_configuration
from verl.models.loader import ModelPathError
from verl.models.miniature import MiniatureError, miniature_model, one_thread
from verl.trainer.sft.data import IGNORED_LABEL
from verl.trainer.sft.loss import assistant_loss
from verl.utils.names import error_line
from verl.workers.engine.layout import RopeState

# In tokens; miniatures have windows of 8 and position limits of 32.
ROWS = (45, 5, 29, 70, 40)
TOLERANCE = 1e-4  # of a row's mean loss, in nats; rounding of fp32 is a tenth of it


@dataclass(frozen=True)
class RowsRun:
    """How the rows of a batch are run.

    Attributes:
        attention: name of transformers' implementation; None for its own choice.
        together: rows padded on the right in one pass, else one after the other.
    """

    attention: str | None = None
    together: bool = True


@once_per_configuration
@one_thread()
def rows_run(config: Any) -> RowsRun:
    """Return how the rows of a batch are run; a miniature is run once per configuration and process.

    A model of which no miniature can be made is run as transformers loads it, rows together.

    Raises:
        ModelPathError: what the model gives for a token depends on later ones, or its loss is that
            of rows alone in no way.
    """
    try:
        eager = miniature_model(config, attention="eager")
    except MiniatureError:
        return RowsRun()
    generator = torch.Generator().manual_seed(0)
    vocabulary = int(eager.config.get_text_config().vocab_size)
    rows = [torch.randint(3, vocabulary, (length,), generator=generator) for length in ROWS]
    with torch.no_grad():
        ropes = RopeState(eager)
        expected = _plain_losses(eager, ropes, rows, 0)
        later = torch.tensor(_plain_losses(eager, ropes, rows, 1)) - torch.tensor(expected)
        if not bool((later.abs() < TOLERANCE).all()):
            raise ModelPathError(
                f"{config.model_type} is no causal language model as configured: the loss of a token "
                f"changes by up to {float(later.abs().max()):.2g} with later tokens; a field of config.json "
                "may say so (is_decoder, is_causal, use_bidirectional_attention)"
            )
        reasons = []
        for way in (RowsRun("sdpa"), RowsRun("eager"), RowsRun("sdpa", False), RowsRun("eager", False)):
            if not (reason := _fault(config, way, rows, expected)):
                return way
            reasons.append(f"{way.attention}, {'together' if way.together else 'one by one'}: {reason}")
    raise ModelPathError(f"rows of {config.model_type} cannot be trained exactly ({'; '.join(reasons)})")


def _plain_losses(model: Any, ropes: RopeState, rows: Sequence[torch.Tensor], later: int) -> list[float]:
    """Return the mean loss of each row alone. Of the input its last token, which no loss may depend on,
    is another one, by `later`.
    """
    losses = []
    for row in rows:
        ropes.reset()
        ids = row.clone()
        ids[-1] = 3 + later
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
        losses.append(float(F.cross_entropy(logits, row[1:])))
    return losses


def _fault(config: Any, way: RowsRun, rows: Sequence[torch.Tensor], expected: Sequence[float]) -> str:
    """Return why rows are not run in a way; empty if their losses are the expected ones."""
    assert way.attention is not None, "every way of the check has one"
    try:
        model = miniature_model(config, attention=way.attention)
        losses = []
        ropes = RopeState(model)
        for number, row in enumerate(rows):
            ropes.reset()
            batch = list(rows) if way.together else [row]
            ids = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
            labels = torch.full_like(ids, IGNORED_LABEL)
            labels[number if way.together else 0, : len(row)] = row
            losses.append(float(assistant_loss(model, ids, labels, whole=not way.together)))
    except Exception as error:  # code of a model may raise anything
        return error_line(error, most=200)
    difference = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
    return "" if difference < TOLERANCE else f"losses differ by up to {difference:.2g}"
