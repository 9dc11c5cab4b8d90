"""A language model becomes a value model."""

from pathlib import Path

import pytest
import torch

from verl.models.loader import ModelPathError
from verl.models.value_model import build_value_model, check_value_model, load_value_model

OPTIONS = {"dtype": torch.float32, "attn_implementation": "sdpa"}
IDS = torch.arange(12).view(2, 6)


def test_values_of_a_language_model_begin_at_zero_and_its_layers_are_kept(tiny_model_dir: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = load_value_model(str(tiny_model_dir), **OPTIONS)
    assert model(IDS).logits.shape == (2, 6, 1) and not model(IDS).logits.any() and not model.training
    layers = dict(
        AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32).model.named_parameters()
    )
    assert all(torch.equal(value, layers[name]) for name, value in model.model.named_parameters())


def test_the_same_model_is_built_without_weights(tiny_model_dir: Path) -> None:
    loaded, built = (
        load_value_model(str(tiny_model_dir), **OPTIONS),
        build_value_model(str(tiny_model_dir), **OPTIONS),
    )
    shapes = [{name: p.shape for name, p in model.named_parameters()} for model in (loaded, built)]
    assert shapes[0] == shapes[1]
    assert torch.equal(built.model.rotary_emb.inv_freq, loaded.model.rotary_emb.inv_freq)


def test_values_do_not_change_from_pass_to_pass_in_training(tiny_model_dir: Path) -> None:
    model = load_value_model(str(tiny_model_dir), **OPTIONS).train()
    torch.nn.init.normal_(model.score.weight)
    assert torch.equal(model(IDS).logits, model(IDS).logits), "no dropout"


def test_a_classifier_of_several_labels_is_refused(tiny_model_dir: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForTokenClassification

    AutoModelForTokenClassification.from_pretrained(tiny_model_dir, num_labels=3).save_pretrained(tmp_path)
    with pytest.raises(ModelPathError, match=r"cannot initialise a critic.*score"):
        load_value_model(str(tmp_path), **OPTIONS)


def test_an_architecture_without_a_value_model_is_found_before_loading(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "olmo2"}')
    with pytest.raises(ModelPathError, match=r"model type 'olmo2'; set critic\.model\.path"):
        check_value_model(str(tmp_path))
