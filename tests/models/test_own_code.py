"""Models whose code is shipped with them: the code that runs is the code that is checked."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
import torch

from tests.models.families import FAMILIES, make_model
from tests.workers.engine.builders import make_engine, make_rows
from verl.models.export_check import export_difference
from verl.models.files import check_files
from verl.models.loader import ModelPathError, NoTokenizer, load_causal_lm, load_config
from verl.trainer.config import FSDPConfig
from verl.trainer.sft.exactness import rows_run
from verl.workers.engine import MicroBatchRule
from verl.workers.engine.layout_check import LayoutError, choose_layout
from verl.workers.engine.state import write_hugging_face
from verl.workers.rollout.serving import serving_of

ROWS = make_rows(6, prompt=20, response=16, seed=2)
CONFIG = """
    from transformers import LlamaConfig
    class OwnConfig(LlamaConfig):
        model_type = "own_llama"
"""
# Logits that are scaled; logits of the next but one token, which no mask of transformers' class shows.
MODELS = {
    "scaled": """
        import torch
        from transformers import LlamaForCausalLM
        class OwnModel(LlamaForCausalLM):
            CONFIG_CLASS
            def forward(self, *args, **kwargs):
                output = super().forward(*args, **kwargs)
                output.logits = 0.5 * output.logits
                return output
    """,
    "reads ahead": """
        import torch
        from transformers import LlamaForCausalLM
        class OwnModel(LlamaForCausalLM):
            CONFIG_CLASS
            def forward(self, *args, **kwargs):
                output = super().forward(*args, **kwargs)
                output.logits = output.logits + output.logits.roll(-1, dims=1)
                return output
    """,
}


def own_model(folder: Path, name: str, own_config: bool) -> Path:
    """Write a Llama with a class of its own, and with a configuration of its own or transformers'."""
    make_model(FAMILIES["llama"].config()).save_pretrained(folder)
    fields = json.loads((folder / "config.json").read_text())
    auto_map = {"AutoModelForCausalLM": "own.OwnModel"}
    text = textwrap.dedent(MODELS[name]).replace(
        "CONFIG_CLASS", "config_class = OwnConfig" if own_config else "pass"
    )
    if own_config:
        auto_map["AutoConfig"] = "own.OwnConfig"
        fields["model_type"] = "own_llama"
        text = textwrap.dedent(CONFIG) + text
    fields |= {"auto_map": auto_map, "architectures": ["OwnModel"]}
    (folder / "own.py").write_text(text)
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


@pytest.mark.parametrize("own_config", [True, False])
def test_a_model_of_its_own_code_is_trained_and_written_exactly(own_config: bool, tmp_path: Path) -> None:
    folder = own_model(tmp_path / f"scaled_{own_config}", "scaled", own_config)
    check_files(str(folder), trust_remote_code=True)
    config = load_config(str(folder), trust_remote_code=True)
    for dtype in (torch.float32, torch.bfloat16):
        choose_layout(config, dtype=dtype)
    assert export_difference(config) < 1e-5
    serving_of(config, max_model_len=64)
    engine = make_engine(folder, trust_remote_code=True)
    scores = engine.score_all(ROWS, 1.0, MicroBatchRule(1_000_000, 1, packed=True)).log_probs
    plain = load_causal_lm(
        str(folder), dtype=torch.float32, attn_implementation="eager", trust_remote_code=True
    )
    assert type(plain).__name__ == "OwnModel"
    for row in range(len(ROWS["input_ids"]) - 1):
        ids = ROWS["input_ids"][row][ROWS["attention_mask"][row].bool()][None]
        with torch.no_grad():
            expected = plain(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        count = int(ROWS["attention_mask"][row, 20:].sum())
        mask = ROWS["response_mask"][row, :count]
        assert ((scores[row, :count] - expected[-count:]) * mask).abs().max() < 1e-4
    write_hugging_face(engine, tmp_path / "export", NoTokenizer())
    again = load_causal_lm(
        str(tmp_path / "export"), dtype=torch.float32, attn_implementation="eager", trust_remote_code=True
    )
    assert type(again).__name__ == "OwnModel"
    make_engine(folder, trust_remote_code=True, fsdp=FSDPConfig(dtype="bf16"))


@pytest.mark.parametrize("own_config", [True, False])
def test_it_is_its_own_code_that_is_checked(own_config: bool, tmp_path: Path) -> None:
    folder = own_model(tmp_path / f"ahead_{own_config}", "reads ahead", own_config)
    config = load_config(str(folder), trust_remote_code=True)
    with pytest.raises(LayoutError, match="is no causal language model as configured"):
        choose_layout(config)
    with pytest.raises(ModelPathError, match="is no causal language model as configured"):
        rows_run(config)
    if own_config:
        with pytest.raises(ModelPathError, match="trust_remote_code=true runs it"):
            load_config(str(folder))
