"""Load a Hugging Face reward model: a sequence classifier with one output."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from verl.models.fingerprint import once_per_configuration
from verl.models.loader import ModelPathError, check_model_path, reading_model
from verl.models.miniature import MiniatureError, draw_weights, miniature, one_thread
from verl.workers.engine.layout import RopeState

# of the check, in tokens; miniatures have windows of 8 and position limits of 32
ROWS = (45, 5, 29, 70, 40)
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Scoring:
    """How a reward model is run so that a row's score depends on that row alone.

    Attributes:
        attention: the implementation to load it with.
        padded: whether rows are padded and scored together; otherwise each is scored alone, with
            the frequencies of a fresh model.
        checked: whether a miniature has shown this; otherwise the loaded model has to.
    """

    attention: str
    padded: bool
    checked: bool = True


def scoring_of(config: Any) -> Scoring:
    """Return how reward models of a configuration are run; a miniature is scored once per
    configuration and process.

    A model of which no miniature can be made, such as an encoder or one of remote code, is padded,
    with its eager attention, unless `depends_on_padding` finds otherwise once it is loaded.

    Raises:
        ModelPathError: transformers has no sequence classifier of this type, or its scores depend
            on other rows in any case.
    """
    return _check_scoring(config)


@once_per_configuration
@one_thread()
@torch.inference_mode()
def _check_scoring(config: Any) -> Scoring:
    from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        if type(config).__module__.startswith("transformers_modules"):
            return Scoring("eager", padded=True, checked=False)
        raise ModelPathError(f"transformers has no sequence classifier of the type {config.model_type}")
    try:
        small = miniature(config)
    except MiniatureError:
        return Scoring("eager", padded=True, checked=False)
    small.num_labels = 1
    # By it transformers finds the last token of a row, so no row has it.
    small.get_text_config().pad_token_id = 0
    generator = torch.Generator().manual_seed(0)
    rows = [
        torch.randint(1, small.get_text_config().vocab_size, (n,), generator=generator).tolist() for n in ROWS
    ]
    eager = _classifier(small, "eager")
    # By copies: ropes of some models keep what a long row has changed.
    expected = torch.tensor([_scores(copy.deepcopy(eager), [row])[0] for row in rows])
    for attention in ("sdpa", "eager"):
        try:
            model = _classifier(small, attention)
        except (ValueError, ImportError):  # without this attention
            continue
        padded = torch.tensor(_scores(model, rows, width=2 * max(ROWS)))
        if torch.allclose(padded, expected, atol=TOLERANCE, rtol=0):
            return Scoring(attention, padded=True)
    ropes = RopeState(eager)
    alone = []
    for row in rows:
        ropes.reset()
        alone += _scores(eager, [row])
    if torch.allclose(torch.tensor(alone), expected, atol=TOLERANCE, rtol=0):
        return Scoring("eager", padded=False)
    raise ModelPathError(
        f"reward models of the type {config.model_type} give a row other scores after other rows"
    )


def _classifier(config: Any, attention: str) -> Any:
    from transformers import AutoModelForSequenceClassification

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_config(
            copy.deepcopy(config), attn_implementation=attention
        )
    model = model.float().eval()
    draw_weights(model)
    return model


def _scores(model: Any, rows: Sequence[Sequence[int]], width: int = 0) -> list[float]:
    """Return the scores of rows that are padded to `width`, or to the longest."""
    width = max(width, *(len(row) for row in rows), 0)
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return model(input_ids=ids, attention_mask=mask).logits[:, 0].tolist()


@torch.inference_mode()
def depends_on_padding(model: Any) -> bool:
    """Return whether a loaded sequence classifier with one output gives rows other scores where they
    are padded.
    """
    config = model.config.get_text_config()
    pad = config.pad_token_id
    generator = torch.Generator().manual_seed(0)
    low = 5 if config.vocab_size > 10 else 0
    rows = [torch.randint(low, config.vocab_size, (n,), generator=generator) for n in ROWS[:3]]
    rows = [torch.where(row == pad, row - 1, row) for row in rows] if pad is not None else rows
    config.pad_token_id = 0 if pad is None else pad
    try:
        alone = [model(input_ids=row[None].to(model.device)).logits.flatten() for row in rows]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=config.pad_token_id)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        padded = model(input_ids=ids.to(model.device), attention_mask=mask.to(model.device)).logits
    finally:
        config.pad_token_id = pad
    scores = torch.cat(alone).float()
    # 16 bits round more than fp32, and a row of other tokens moves a score by its own size
    tolerance = TOLERANCE if model.dtype == torch.float32 else 0.05
    return not torch.allclose(
        padded.flatten().float(), scores, atol=tolerance * float(scores.abs().max()), rtol=0
    )


def check_sequence_classifier(path: str, max_length: int, *, trust_remote_code: bool = False) -> None:
    """Check by its configuration alone that a model gives one score for inputs of `max_length`
    tokens.

    Raises:
        ModelPathError: the path is no model, the model is no sequence classifier, has several
            outputs, or reads fewer tokens; and as `scoring_of` does.
    """
    path = check_model_path(path)
    from transformers import AutoConfig

    with reading_model(path):
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    named = getattr(config, "architectures", None) or []
    custom = "AutoModelForSequenceClassification" in (getattr(config, "auto_map", None) or {})
    if named and not custom and not any(name.endswith("ForSequenceClassification") for name in named):
        raise ModelPathError(
            f"model {path!r} is {', '.join(named)}, whose checkpoint has no head for scores; "
            "expected a ...ForSequenceClassification (a reward model), or reward.model.kind=judge "
            "for a language model"
        )
    if config.num_labels != 1:
        raise ModelPathError(
            f"model {path!r} has {config.num_labels} outputs; expected a reward model with one (num_labels=1)"
        )
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and max_length > longest:
        raise ModelPathError(
            f"model {path!r} reads at most {longest} tokens, fewer than reward.model.max_length={max_length}"
        )
    scoring_of(config)


def load_sequence_classifier(path: str, *, dtype: torch.dtype, trust_remote_code: bool = False) -> Any:
    """Load the model on the CPU, in `eval` mode, with the attention of `scoring_of`.

    Raises ModelPathError if its checkpoint lacks weights, such as those of the head, and as
    `scoring_of` does.
    """
    path = check_model_path(path)
    from transformers import AutoConfig, AutoModelForSequenceClassification

    with reading_model(path):
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        attention = scoring_of(config).attention
        model, loading_info = AutoModelForSequenceClassification.from_pretrained(
            path,
            dtype=dtype,
            attn_implementation=attention,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
        )
    # transformers draws them at random, and warns alone.
    if loading_info["missing_keys"]:
        raise ModelPathError(
            f"model {path!r} is no reward model: its checkpoint lacks "
            f"{sorted(loading_info['missing_keys'])[:4]}"
        )
    return model.eval()
