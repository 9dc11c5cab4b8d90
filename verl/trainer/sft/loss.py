"""The loss of supervised fine-tuning."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from verl.trainer.sft.data import IGNORED_LABEL


def assistant_loss(
    model: PreTrainedModel, input_ids: torch.Tensor, labels: torch.Tensor, *, whole: bool = False
) -> torch.Tensor:
    """Return the mean cross-entropy over labelled tokens; `input_ids` and `labels` are [bsz, len],
    padded on the right.

    The last token is left out of the input, which no logit that is read depends on, unless the
    `whole` rows are asked for: some ropes depend on the length of a row.

    Logits are computed for labelled positions only, which saves most of the head's computation for
    long prompts.
    """
    label_mask = labels[:, 1:] != IGNORED_LABEL
    read = F.pad(label_mask, (0, 1)) if whole else label_mask
    inputs_of_model = input_ids if whole else input_ids[:, :-1]
    head = model.get_output_embeddings()

    def choose(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        (hidden,) = inputs
        return (hidden[read][None],)

    # Whatever the model does with the logits after its head (scales, caps, biases) is done by the
    # model.
    hook = head.register_forward_pre_hook(choose)
    try:
        logits = model(input_ids=inputs_of_model, use_cache=False).logits[0]
    finally:
        hook.remove()
    return F.cross_entropy(logits.float(), labels[:, 1:][label_mask])
