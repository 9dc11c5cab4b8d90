"""Supervised fine-tuning on every family: the loss and the gradient of a batch are those of its rows alone in
eager attention, and the folder of any model can be written.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tests.conftest import save_tokenizer
from tests.models.families import FAMILIES, make_model, save_model
from verl.trainer.sft.config import SFTConfig
from verl.trainer.sft.data import TokenizedConversation
from verl.trainer.sft.exactness import rows_run
from verl.trainer.sft.loop import _backward, run_sft
from verl.workers.engine.layout import RopeState

LENGTHS = (45, 7, 33, 20)
SOME = ("qwen3", "gemma2", "llama-dynamic", "phi3-longrope", "gpt_oss", "lfm2")
ALONE = {"llama-dynamic", "phi3-longrope"}  # the longest row of a batch decides the rope of all


def conversations() -> list[TokenizedConversation]:
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(3, 500, (length,), generator=generator).tolist() for length in LENGTHS]
    return [
        TokenizedConversation(tuple(ids), tuple(place % 3 > 0 for place in range(len(ids)))) for ids in rows
    ]


@pytest.mark.parametrize("name", FAMILIES)
def test_loss_and_gradient_of_a_batch_are_those_of_its_rows_alone(
    name: str, request: pytest.FixtureRequest
) -> None:
    if name not in SOME and not request.config.getoption("--all-levels"):
        pytest.skip("one family more: needs --all-levels")
    run = rows_run(FAMILIES[name].config())
    assert run.together is (name not in ALONE)
    plain = make_model(FAMILIES[name].config())
    ropes = RopeState(plain)
    losses = []
    for row in conversations():
        ropes.reset()
        ids = torch.tensor([row.input_ids])
        wanted = torch.tensor(row.loss_mask)[1:]
        logits = plain(input_ids=ids, use_cache=False).logits[0, :-1].float()
        losses.append(F.cross_entropy(logits[wanted], ids[0, 1:][wanted], reduction="sum"))
    count = sum(sum(row.loss_mask[1:]) for row in conversations())
    expected = torch.stack(losses).sum() / count
    expected.backward()
    model = make_model(FAMILIES[name].config(), attention=str(run.attention))
    loss = _backward(model, conversations(), 0, None if run.together else RopeState(model))
    assert abs(float(loss) - float(expected)) < 1e-4
    grads = {key: value.grad for key, value in plain.named_parameters() if value.grad is not None}
    largest = max(float(grad.abs().max()) for grad in grads.values())
    for key, value in model.named_parameters():
        if key in grads:
            assert value.grad is not None, key
            assert (value.grad - grads[key]).abs().max() < 2e-4 * largest, key


def sft_of(model: Path, tmp_path: Path) -> SFTConfig:
    data = tmp_path / "demos.jsonl"
    messages = [{"role": "user", "content": "say ab"}, {"role": "assistant", "content": "abab"}]
    data.write_text(json.dumps({"messages": messages}) + "\n")
    config = SFTConfig()
    config.model.path = str(model)
    config.data.train_files = [str(data)]
    config.data.train_batch_size = 1
    config.trainer.default_local_dir = str(tmp_path / "out")
    config.trainer.device = "cpu"
    config.trainer.total_training_steps = 1
    return config


def test_settings_that_transformers_refuses_to_write_are_kept(tmp_path: Path) -> None:
    model = save_model("qwen3", tmp_path / "model", save_tokenizer)
    settings = {"do_sample": False, "temperature": 0.6, "eos_token_id": 2}
    (model / "generation_config.json").write_text(json.dumps(settings))
    run_sft(sft_of(model, tmp_path))
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert (written["do_sample"], written["temperature"]) == (False, 0.6)


def test_weights_that_the_files_lack_are_not_drawn_at_random(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = save_model("qwen3", tmp_path / "model", save_tokenizer)
    tensors = load_file(model / "model.safetensors")
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(FileNotFoundError, match=r"lack 1 tensor .*layers\.1\.mlp\.down_proj"):
        run_sft(sft_of(model, tmp_path))
    assert not (tmp_path / "out").exists()
