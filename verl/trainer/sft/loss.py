"""The loss of supervised fine-tuning."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from verl.trainer.sft.data import IGNORED_LABEL


def assistant_loss(model: PreTrainedModel, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy over labelled tokens; `input_ids` and `labels` are [bsz, len],
    padded on the right.

    Logits are computed for labelled positions only, which saves most of the head's computation for
    long prompts.
    """
    label_mask = labels[:, 1:] != IGNORED_LABEL
    head = model.get_output_embeddings()

    def choose(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        (hidden,) = inputs
        return (hidden[label_mask][None],)

    # Whatever the model does with the logits after its head (scales, caps, biases) is done by the
    # model.
    hook = head.register_forward_pre_hook(choose)
    try:
        logits = model(input_ids=input_ids[:, :-1], use_cache=False).logits[0]
    finally:
        hook.remove()
    return F.cross_entropy(logits.float(), labels[:, 1:][label_mask])
