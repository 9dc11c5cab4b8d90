import json
import random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl.models.tiny import TinyModelSize, make_tiny_model
from verl.trainer.sft.config import SFTConfig
from verl.trainer.sft.chats import Chat, read_chats
from verl.trainer.sft.data import IGNORED_LABEL, Conversation, batches, collate
from verl.trainer.sft.encoding import encode
from verl.trainer.sft.loop import assistant_loss, run_sft
from verl.trainer.sft.muon import Muon, orthogonal
from verl.trainer.sft.optim import build_optimizers
from verl.trainer.sft_trainer import load_config, main

SMALL = TinyModelSize(hidden_size=32, intermediate_size=64, num_layers=1, num_heads=2, num_kv_heads=1)
CONVERSATIONS = [
    [{"role": "user", "content": f"say {word}"}, {"role": "assistant", "content": word * 2}] for word in ("ab", "cd", "ef", "gh")
]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    torch.set_num_threads(1)
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "m", ["say ab cd ef gh"], size=SMALL, vocab_size=300)


@pytest.fixture
def demo_file(tmp_path):
    path = tmp_path / "demos.jsonl"
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in CONVERSATIONS))
    return path


def sft_config(model_folder, demo_file, out, **trainer):
    config = SFTConfig()
    config.model.path = str(model_folder)
    config.data.train_files = [str(demo_file)]
    config.data.train_batch_size = 2
    config.optim.lr = 1e-2
    config.trainer.default_local_dir = str(out)
    config.trainer.device = "cpu"
    for name, value in trainer.items():
        setattr(config.trainer, name, value)
    return config


def test_a_line_of_metrics_holds_the_mean_loss_since_the_last_one(model_folder, demo_file, tmp_path):
    def losses(log_freq):
        out = tmp_path / f"every_{log_freq}"
        run_sft(sft_config(model_folder, demo_file, out, total_training_steps=7, log_freq=log_freq))
        return [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]

    each = losses(1)
    assert losses(3) == pytest.approx([sum(each[:3]) / 3, sum(each[3:6]) / 3, each[6]], rel=1e-5)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_training_learns_the_replies_and_leaves_a_folder_that_loads(model_folder, demo_file, tmp_path, name):
    config = sft_config(model_folder, demo_file, tmp_path / "out", total_training_steps=60, log_freq=1)
    config.optim.name = name
    metrics = run_sft(config)
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 61))
    assert metrics["loss"] < 0.2 * lines[0]["loss"]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    prompt = tokenizer.apply_chat_template(CONVERSATIONS[1][:1], add_generation_prompt=True, return_tensors="pt", return_dict=True)
    reply = model.generate(**prompt, max_new_tokens=8, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(reply, skip_special_tokens=True) == "cdcd"


def test_folders_may_be_named_from_the_users_home(model_folder, demo_file, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m").symlink_to(model_folder)
    run_sft(sft_config("~/m", "~/demos.jsonl", "~/out", total_training_steps=1))
    assert (tmp_path / "out" / "config.json").is_file()


def test_a_run_is_a_function_of_its_seed(model_folder, demo_file, tmp_path):
    losses = [
        run_sft(sft_config(model_folder, demo_file, tmp_path / str(i), total_training_steps=4, seed=seed))["loss"]
        for i, seed in enumerate((0, 0, 1))
    ]
    assert losses[0] == losses[1] != losses[2]


def test_loss_covers_every_assistant_reply_and_nothing_else(model_folder):
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    messages = [*CONVERSATIONS[0], *CONVERSATIONS[1]]
    (row,) = encode(Chat(messages), tokenizer)
    kept = [token for token, wanted in zip(row.input_ids, row.loss_mask, strict=True) if wanted]
    assert tokenizer.decode(kept) == "abab<|im_end|>cdcd<|im_end|>"
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert tokenizer.decode(row.input_ids) + "\n" == text


def test_padding_does_not_change_the_loss(model_folder):
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    rows = [row for messages in CONVERSATIONS[:2] for row in encode(Chat(messages), tokenizer)]
    input_ids, labels = collate(rows, tokenizer.pad_token_id)
    padded_ids = torch.nn.functional.pad(input_ids, (0, 5), value=tokenizer.pad_token_id)
    padded_labels = torch.nn.functional.pad(labels, (0, 5), value=IGNORED_LABEL)
    expected = model(input_ids=input_ids, labels=labels).loss
    assert torch.allclose(assistant_loss(model, padded_ids, padded_labels), expected, atol=1e-6)


def rows_of_lengths(lengths):
    return [Conversation((i,) * length, (True,) * length) for i, length in enumerate(lengths)]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("bucket_batches", [1, 3])
def test_an_epoch_holds_every_row_once(shuffle, bucket_batches):
    rows = rows_of_lengths([5, 1, 4, 2, 3, 9, 8, 7, 6, 2, 1])
    cuts = list(batches(rows, 2, shuffle=shuffle, bucket_batches=bucket_batches, rng=random.Random(0)))
    assert sorted(row.input_ids[0] for cut in cuts for row in cut) == list(range(len(rows)))
    assert all(len(cut) <= 2 for cut in cuts)


def test_unshuffled_windows_keep_the_order_of_a_curriculum():
    rows = rows_of_lengths([3, 1, 2, 4, 9, 7, 8, 6])
    seen = [row.input_ids[0] for cut in batches(rows, 2, shuffle=False, bucket_batches=2, rng=random.Random(0)) for row in cut]
    assert set(seen[:4]) == {0, 1, 2, 3}


def test_muon_leaves_embeddings_and_vectors_to_adamw(model_folder):
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    config = SFTConfig().optim
    config.name = "muon"
    adamw, muon = build_optimizers(model, config, total_steps=10).optimizers
    embedding = model.get_input_embeddings().weight
    assert any(p is embedding for p in adamw.param_groups[0]["params"])
    assert all(p.ndim == 2 and p is not embedding for p in muon.param_groups[0]["params"])
    assert len(adamw.param_groups[0]["params"]) + len(muon.param_groups[0]["params"]) == len(list(model.parameters()))


def test_parquet_and_jsonl_hold_the_same_conversations(demo_file, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    parquet = tmp_path / "demos.parquet"
    pq.write_table(pa.Table.from_pylist([{"messages": messages} for messages in CONVERSATIONS]), parquet)
    found = [read_chats([str(file)], "messages", "tools") for file in (parquet, demo_file)]
    assert found[0] == found[1] == [Chat(messages) for messages in CONVERSATIONS]


def test_a_failed_run_leaves_no_output_folder(model_folder, demo_file, tmp_path):
    config = sft_config(model_folder, demo_file, tmp_path / "out")
    config.optim.name = "sgd"
    with pytest.raises(ValueError, match="expected one of adamw, muon"):
        run_sft(config)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.pth=x"], "unknown key model.pth; did you mean 'model.path'"),
        (["optim.lr=fast"], "optim.lr=fast: expected float, at least 0"),
        (["data.train_batch_size=0"], "data.train_batch_size=0: expected at least 1"),
        (["trainer.log_freq=0"], "trainer.log_freq=0: expected at least 1"),
        (["optim.betas=[0.9]"], r"optim.betas=\[0.9\]: expected two numbers"),
        (["trainer.total_training_steps=0"], "trainer.total_training_steps=0: expected -1 or at least 1"),
        (["optim.name=adam"], "optim.name='adam': expected one of adamw, muon"),
        ([], "default_local_dir"),
        (["trainer.default_local_dir={tmp}/o"], "train_files is empty"),
        (["trainer.default_local_dir={tmp}/o", "data.train_files=[{tmp}/none.jsonl]"], "no such data file"),
        (["trainer.default_local_dir={tmp}/o", "data.train_files=[{tmp}/demos.jsonl]", "model.path={tmp}/none"], "no such folder"),
        (["trainer.default_local_dir={tmp}/o", "data.train_files=[{tmp}/demos.jsonl]", "data.messages_key=chat"], "no assistant message"),
        (["trainer.default_local_dir={tmp}"], "exists"),
    ],
)
def test_bad_input_is_one_clear_error(demo_file, tmp_path, overrides, message):
    with pytest.raises(SystemExit, match=message):
        main([override.format(tmp=tmp_path) for override in overrides])


def test_overrides_reach_the_typed_configuration():
    config = load_config(["optim.lr=3e-4", "data.train_files=[a.jsonl,b.parquet]"])
    assert isinstance(config, SFTConfig)
    assert config.optim.lr == 3e-4
    assert config.data.train_files == ["a.jsonl", "b.parquet"]


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
def test_muon_steps_as_torch_does(shape):
    torch.manual_seed(0)
    ours, theirs = (torch.nn.Parameter(w.clone()) for w in [torch.randn(shape)] * 2)
    optimizers = Muon([ours], lr=0.02, weight_decay=0.1, ns_steps=4), torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, ns_steps=4)
    for _ in range(4):
        gradient = torch.randn(shape)
        for parameter, optimizer in zip((ours, theirs), optimizers, strict=True):
            parameter.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=0.0)  # torch iterates in bf16
    assert (ours - theirs).abs().max() > 0


def test_orthogonal_matrices_have_singular_values_near_one():
    found = torch.linalg.svdvals(orthogonal(torch.randn(3, 16, 40), 5))
    assert found.shape == (3, 16)
    assert found.min() > 0.5
    assert found.max() < 1.3


def test_muon_refuses_what_is_no_matrix():
    with pytest.raises(ValueError, match=r"matrices, found parameters of shape \[\(3,\)\]"):
        Muon([torch.nn.Parameter(torch.zeros(3))])
