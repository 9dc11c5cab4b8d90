import json
import random
from itertools import pairwise

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tests.published_templates import tokenizer_for
from verl.models.tiny import TinyModelSize, make_tiny_model, train_tokenizer
from verl.trainer.sft.chats import Chat, read_chats
from verl.trainer.sft.config import SFTConfig
from verl.trainer.sft.data import IGNORED_LABEL, TokenizedConversation, batches, collate
from verl.trainer.sft.encoding import MARKS, ChatEncoder, encode
from verl.trainer.sft.loop import assistant_loss, run_sft
from verl.trainer.sft.muon import Muon, orthogonal
from verl.trainer.sft.optim import build_optimizers
from verl.trainer.sft_trainer import load_config, main
from verl.utils.dataset import DatasetError, write_rows
from verl.utils.dataset.messages import read_messages

SMALL = TinyModelSize(hidden_size=32, intermediate_size=64, num_layers=1, num_heads=2, num_kv_heads=1)
CONVERSATIONS = [
    [{"role": "user", "content": f"say {word}"}, {"role": "assistant", "content": word * 2}]
    for word in ("ab", "cd", "ef", "gh")
]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    torch.set_num_threads(1)
    return make_tiny_model(
        tmp_path_factory.mktemp("tiny") / "m", ["say ab cd ef gh"], size=SMALL, vocab_size=300
    )


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
    prompt = tokenizer.apply_chat_template(
        CONVERSATIONS[1][:1], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    reply = model.generate(**prompt, max_new_tokens=8, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(reply, skip_special_tokens=True) == "cdcd"


def test_folders_may_be_named_from_the_users_home(model_folder, demo_file, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m").symlink_to(model_folder)
    run_sft(sft_config("~/m", "~/demos.jsonl", "~/out", total_training_steps=1))
    assert (tmp_path / "out" / "config.json").is_file()


def test_a_run_is_a_function_of_its_seed(model_folder, demo_file, tmp_path):
    losses = [
        run_sft(sft_config(model_folder, demo_file, tmp_path / str(i), total_training_steps=4, seed=seed))[
            "loss"
        ]
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
    return [TokenizedConversation((i,) * length, (True,) * length) for i, length in enumerate(lengths)]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("bucket_batches", [1, 3])
def test_an_epoch_holds_every_row_once(shuffle, bucket_batches):
    rows = rows_of_lengths([5, 1, 4, 2, 3, 9, 8, 7, 6, 2, 1])
    cuts = list(batches(rows, 2, shuffle=shuffle, bucket_batches=bucket_batches, rng=random.Random(0)))
    assert sorted(row.input_ids[0] for cut in cuts for row in cut) == list(range(len(rows)))
    assert all(len(cut) <= 2 for cut in cuts)


def test_unshuffled_windows_keep_the_order_of_a_curriculum():
    rows = rows_of_lengths([3, 1, 2, 4, 9, 7, 8, 6])
    seen = [
        row.input_ids[0]
        for cut in batches(rows, 2, shuffle=False, bucket_batches=2, rng=random.Random(0))
        for row in cut
    ]
    assert set(seen[:4]) == {0, 1, 2, 3}


def test_muon_leaves_embeddings_and_vectors_to_adamw(model_folder):
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    config = SFTConfig().optim
    config.name = "muon"
    adamw, muon = build_optimizers(model, config, total_steps=10).optimizers
    embedding = model.get_input_embeddings().weight
    assert any(p is embedding for p in adamw.param_groups[0]["params"])
    assert all(p.ndim == 2 and p is not embedding for p in muon.param_groups[0]["params"])
    assert len(adamw.param_groups[0]["params"]) + len(muon.param_groups[0]["params"]) == len(
        list(model.parameters())
    )


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
        (
            [
                "trainer.default_local_dir={tmp}/o",
                "data.train_files=[{tmp}/demos.jsonl]",
                "model.path={tmp}/none",
            ],
            "no such folder",
        ),
        (
            [
                "trainer.default_local_dir={tmp}/o",
                "data.train_files=[{tmp}/demos.jsonl]",
                "data.messages_key=chat",
            ],
            "no assistant message",
        ),
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
    optimizers = (
        Muon([ours], lr=0.02, weight_decay=0.1, ns_steps=4),
        torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, ns_steps=4),
    )
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


PROBE_TOOLS = [
    {
        "type": "function",
        "function": {"name": n, "parameters": {"type": "object", "properties": {p: {"type": "string"}}}},
    }
    for n, p in (("get_weather", "city"), ("add", "a"))
]
CALLS = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}{% for m in messages %}<|im_start|>{{ "
    "m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% for c "
    "in m.tool_calls or [] %}<tool_call>{{ c.function.arguments | tojson }}{{ c.function.name "
    "}}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}<think></think>{% endif %}{% endif %}"
)


def trained_texts(messages, template=CALLS, tokenizer=None, tools=None, **template_kwargs):
    """The trained text of each sequence, spans separated by a bar."""
    tokenizer = tokenizer or train_tokenizer([])
    tokenizer.chat_template = template
    texts = []
    for row in encode(Chat(read_messages(messages, ""), tools), tokenizer, template_kwargs):
        places = [n for n, learned in enumerate(row.loss_mask) if learned]
        breaks = [n for n, (one, two) in enumerate(pairwise(places), 1) if two != one + 1]
        cuts = [0, *breaks, len(places)]
        texts.append(
            "|".join(tokenizer.decode([row.input_ids[p] for p in places[a:b]]) for a, b in pairwise(cuts))
        )
    return texts


def asked(*replies):
    return [
        message
        for reply in replies
        for message in ({"role": "user", "content": "?"}, {"role": "assistant", **reply})
    ]


CALL = {
    "content": None,
    "tool_calls": [{"function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}],
}
# The form before `tool_calls`, which no template shows: it is read as calls.
OLD_CALL = {"content": "", "function_call": CALL["tool_calls"][0]["function"]}


@pytest.mark.parametrize(
    ("messages", "trained"),
    [
        (asked(CALL), ['<tool_call>{"city": "Oslo"}get_weather</tool_call><|im_end|>']),
        (asked(OLD_CALL), ['<tool_call>{"city": "Oslo"}get_weather</tool_call><|im_end|>']),
        (asked({"content": "7", "reasoning_content": "3 + 4"}), ["<think>3 + 4</think>7<|im_end|>"]),
        (
            [*asked(CALL), {"role": "tool", "content": "cold"}, {"role": "assistant", "content": "Cold."}],
            ['<tool_call>{"city": "Oslo"}get_weather</tool_call><|im_end|>|Cold.<|im_end|>'],
        ),
        (asked({"content": ""}), ["<|im_end|>"]),
        (asked({"content": "\n\n7 "}), ["\n\n7 <|im_end|>"]),
    ],
)
def test_what_the_template_shows_of_a_reply_is_trained(messages, trained):
    assert trained_texts(messages, tools=PROBE_TOOLS) == trained


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("no", [0, False])
def test_a_reply_may_be_left_out_of_the_loss_and_stays_in_the_context(mark, no):
    messages = asked({"content": "one", mark: no}, {"content": "two", mark: 1}, {"content": "three"})
    assert trained_texts(messages) == ["two<|im_end|>|three<|im_end|>"]
    assert trained_texts(asked({"content": "one", mark: no})) == []
    assert trained_texts(asked({"content": "one", mark: None})) == ["one<|im_end|>"]


@pytest.mark.parametrize(
    ("role", "value"), [("assistant", 0.5), ("assistant", "no"), ("assistant", [0, 1]), ("user", 1)]
)
def test_a_mark_that_cannot_be_followed_is_refused(role, value):
    messages = asked({"content": "one"})
    messages[("user", "assistant").index(role)]["weight"] = value
    with pytest.raises(
        DatasetError, match=rf"message {int(role != 'user')} of '{role}' has weight=.*; expected 0 or 1"
    ):
        trained_texts(messages)


def test_the_end_is_that_of_the_template_and_ends_generation(model_folder, demo_file, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    tokenizer.eos_token = "<|endoftext|>"
    assert trained_texts(asked({"content": "7"}, {"content": "8"}), tokenizer=tokenizer) == [
        "7<|im_end|>|8<|im_end|>"
    ]
    folder = tmp_path / "m"
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.chat_template = AutoTokenizer.from_pretrained(model_folder).chat_template
    tokenizer.save_pretrained(folder)
    run_sft(sft_config(folder, demo_file, tmp_path / "out", total_training_steps=1))
    ends = AutoModelForCausalLM.from_pretrained(tmp_path / "out").generation_config.eos_token_id
    assert ends == tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])


def test_arguments_of_the_template_are_those_of_sampling():
    messages = asked({"content": "7"})
    with pytest.raises(
        DatasetError,
        match=r"prompt of this reply goes on with '<think></think>' where .* shows the reply with '7",
    ):
        trained_texts(messages, enable_thinking=False)
    closed = CALLS.replace(
        "{{ m.content }}",
        "{% if enable_thinking is false and m.role == 'assistant' %}<think></think>{% endif %}{{ m.content "
        "}}",
    )
    assert trained_texts(messages, closed, enable_thinking=False) == ["7<|im_end|>"]
    assert load_config(
        ["data.apply_chat_template_kwargs.enable_thinking=false"]
    ).data.apply_chat_template_kwargs == {"enable_thinking": False}
    assert trained_texts(
        messages, enable_thinking=True, chat_template=CALLS.replace("m.content", "m.content ~ '!'")
    ) == ["7!<|im_end|>"]


def test_where_the_template_has_no_end_the_token_of_the_next_message_ends_a_reply():
    without = CALLS.replace("<|im_end|>\n", "")
    messages = asked({"content": "7"}, {"content": "8"})
    assert trained_texts(messages, without) == ["7<|im_start|>|8<|im_start|>"]


def test_replies_that_the_template_shows_otherwise_later_are_trained_in_sequences_of_their_own():
    forgets = CALLS.replace("{% if m.reasoning_content %}", "{% if m.reasoning_content and loop.last %}")
    messages = asked(
        {"content": "1", "reasoning_content": "a"},
        {"content": "2"},
        {"content": "3", "reasoning_content": "b"},
    )
    assert trained_texts(messages, forgets) == [
        "<think>a</think>1<|im_end|>",
        "2<|im_end|>|<think>b</think>3<|im_end|>",
    ]


def test_a_template_that_shows_the_time_shows_one_time():
    clock = CALLS + "{% if not add_generation_prompt %}{% endif %}"
    clock = clock.replace("{% for m in messages %}", "{{ strftime_now('%f') }}{% for m in messages %}")
    assert trained_texts(asked({"content": "7"}, {"content": "8"}), clock) == ["7<|im_end|>|8<|im_end|>"]


def test_generation_marks_of_the_template_say_what_is_trained():
    marked = CALLS.replace("{{ m.content }}", "{% generation %}{{ m.content }}{% endgeneration %}{{ '' }}")
    marked = marked.replace("{% for c in", "{% if m.role == 'assistant' %}{% endif %}{% for c in")
    assert trained_texts(asked({"content": "7"}, {"content": "8"}), marked) == ["7|8"]
    with pytest.raises(
        DatasetError, match="generated behind '<think>hm</think>', which is no part of the prompt"
    ):
        trained_texts(asked({"content": "7", "reasoning_content": "hm"}), marked)


@pytest.mark.parametrize("blanks", ["first", "always"])
def test_tokenizers_that_put_a_blank_before_a_text_put_none_before_a_reply(blanks):
    template = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    template += "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    tokenizer = tokenizer_for(template + "<|user|><|assistant|>", blanks=blanks)
    tokenizer.chat_template = template
    messages = asked({"content": "7"}, {"content": "8 9"})
    (row,) = encode(Chat(messages), tokenizer)
    whole = tokenizer(tokenizer.apply_chat_template(messages, tokenize=False), add_special_tokens=False)[
        "input_ids"
    ]
    assert list(row.input_ids) == whole[: len(row.input_ids)]
    learned_ids = [i for i, learned in zip(row.input_ids, row.loss_mask, strict=True) if learned]
    assert tokenizer.convert_ids_to_tokens(learned_ids) == [
        "7", "<|end|>", "8", "▁9", "<|end|>",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("template", "messages", "tools", "cause"),
    [
        (CALLS.replace("m.tool_calls", "m.none"), asked(CALL), PROBE_TOOLS, "does not show its tool_calls"),
        (
            CALLS.replace("m.tool_calls", "m.none"),
            asked(OLD_CALL),
            PROBE_TOOLS,
            "does not show its tool_calls",
        ),
        (CALLS, asked({"content": "", "refusal": "no"}), None, "does not show its refusal"),
        (CALLS.replace("tools", "none"), asked(CALL), PROBE_TOOLS, "does not show the tools of this row"),
        (
            CALLS.replace("<|im_end|>", "").replace("<|im_start|>", ""),
            asked({"content": "7"}),
            None,
            "puts no special token behind it",
        ),
        (
            CALLS.replace("<|im_start|>assistant\n", "<|im_start|>bot\n"),
            asked({"content": "7"}),
            None,
            "goes on with 'bot",
        ),
        (
            "{{ raise_exception('no') if messages | length > 1 }}" + CALLS,
            asked({"content": "7"}),
            None,
            "cannot show .*: no",
        ),
        (
            CALLS.replace("if add_generation_prompt", "if true"),
            asked({"content": "7"}),
            None,
            "although no other message follows",
        ),
        (
            CALLS.replace("m.content", "'fixed'"),
            asked({"content": "7"}),
            None,
            "does not show contents that are text",
        ),
    ],
)
def test_what_cannot_be_trained_as_it_would_be_sampled_is_refused_with_the_cause(
    template, messages, tools, cause
):
    with pytest.raises(DatasetError, match=cause):
        trained_texts(messages, template, tools=tools)


@pytest.mark.parametrize(
    "template", [CALLS, CALLS.replace("m.content", "m.content | map(attribute='text') | join")]
)
def test_texts_and_parts_are_shown_as_the_template_takes_them(template):
    parts = [{"type": "text", "text": "7"}, {"type": "text", "text": "8"}]
    for content in ("78", parts):
        assert trained_texts(asked({"content": content}, CALL), template, tools=PROBE_TOOLS) == [
            '78<|im_end|>|<tool_call>{"city": "Oslo"}get_weather</tool_call><|im_end|>'
        ]


def test_fields_that_the_template_does_not_show_are_counted():
    tokenizer = train_tokenizer([])
    encoder = ChatEncoder(tokenizer)
    encoder.encode(
        Chat(
            asked({"content": "7", "reasoning_content": "hm", "name": "bob"}, {"content": "8", "name": "bob"})
        )
    )
    assert encoder.unseen == {"reasoning_content": 1, "name": 2}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"messages": asked({"content": [{"type": "image_url"}]})},
            "row 1: column 'messages', message 1: content must be text",
        ),
        ({"messages": asked({"content": None})}, "row 1: column 'messages', message 1: content must be text"),
        ({"messages": "7"}, "row 1: column 'messages': expected chat messages"),
        (
            {"messages": [{"role": "user", "content": "?"}]},
            "row 1: column 'messages' contains no assistant message",
        ),
        ({"messages": asked({"content": "\ud83d"})}, "row 1: .* half of a surrogate pair"),
        (
            {"messages": asked({"content": "7"}), "tools": "{oops"},
            "row 1: column 'tools': expected a list of JSON schemas",
        ),
        ({"messages": asked({"content": "7", "weight": 2})}, r"row 1: message 1 of 'assistant' has weight=2"),
        ({"messages": asked(CALL)}, "row 1: message 1: the chat template does not show its tool_calls"),
        ({"messages": asked({"content": "7"})[1:]}, "row 1: message 0: a reply .* has no prompt"),
    ],
)
def test_a_row_that_cannot_be_trained_is_one_line_with_file_and_row(model_folder, tmp_path, row, message):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in ({"messages": CONVERSATIONS[0]}, row)))
    with pytest.raises(SystemExit, match=rf"^sft_trainer: {file}, {message}") as error:
        main(
            [
                f"model.path={model_folder}",
                f"trainer.default_local_dir={tmp_path / 'o'}",
                f"data.train_files=[{file}]",
            ]
        )
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.json"])
def test_tools_calls_and_messages_are_the_same_from_every_file(tmp_path, name):
    rows = [{"messages": asked(CALL), "tools": [tool]} for tool in PROBE_TOOLS]
    rows += [
        {
            "messages": json.dumps(asked({"content": [{"type": "text", "text": "7"}]})),
            "tools": json.dumps(PROBE_TOOLS),
        }
    ]
    if name == "a.parquet":  # a column of a parquet file has one type
        files = [write_rows(rows[:2], tmp_path / name), write_rows(rows[2:], tmp_path / "b.parquet")]
    else:
        files = [tmp_path / name]
        files[0].write_text(
            json.dumps(rows) if name == "a.json" else "".join(json.dumps(row) + "\n" for row in rows)
        )
    chats = read_chats([str(file) for file in files], "messages", "tools")
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}],
    }
    assert [chat.messages[1] for chat in chats] == [call, call, {"role": "assistant", "content": "7"}]
    assert [chat.tools for chat in chats] == [[PROBE_TOOLS[0]], [PROBE_TOOLS[1]], PROBE_TOOLS]


HEADS = {
    "granite": {
        "logits_scaling": 8,
        "embedding_multiplier": 12,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.015625,
    },
    "cohere": {"logit_scale": 0.0625},
    "gemma2": {
        "head_dim": 32,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
        "query_pre_attn_scalar": 32,
    },
    "gpt_neox": {},
    "phi": {},
    "qwen3": {},
}


@pytest.mark.parametrize("family", HEADS)
def test_the_loss_is_the_models_own(family):
    config = AutoConfig.for_model(
        family, vocab_size=320, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2, pad_token_id=0, **HEADS[family],
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3 if parameter.ndim > 1 else 1)
        model.get_output_embeddings().weight.mul_(8)
    input_ids = torch.randint(1, 320, (2, 12))
    labels = input_ids.clone()
    labels[0, :5] = labels[1, 8:] = IGNORED_LABEL
    torch.testing.assert_close(
        assistant_loss(model, input_ids, labels), model(input_ids, labels=labels).loss, atol=1e-4, rtol=1e-4
    )
