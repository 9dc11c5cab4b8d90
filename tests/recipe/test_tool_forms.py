"""The recipe of the shops: what its team is paid for, the conversations that the published templates show, a
run made small, and the committed rows.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_system.environment import Task
from agent_system.rollout.chat_template import ChatTemplate
from agent_system.rollout.tokens import encode_all
from agent_system.testing import scripted_team
from agent_system.tools.formats import read_calls
from recipe.tool_forms import warm_start
from recipe.tool_forms.measure import LABELS
from recipe.tool_forms.prepare import FORMS, WORLD, ShopsCourse, called, tokenizer, tools
from recipe.tool_forms.team import CASHIER, CLERK, COSTS, ITEMS, NAME, SHOPS, bill, price, question
from tests.house.source import ROOT
from verl.models.tiny import make_tiny_model
from verl.trainer.sft.config import SFTConfig

PAIR = ("tea", "Scott")
TASK = Task("t", question(*PAIR))
COST = str(price(*PAIR))
OTHER = "9" if COST != "9" else "8"
CALL = '<tool_call>{"name": "price", "arguments": {"item": "tea", "shop": "Scott"}}</tool_call>'


@pytest.mark.parametrize(
    ("clerk", "cashier", "success", "local"),
    [
        ([CALL, f"It is {COST}"], bill(*PAIR, COST), 1, 2),
        ([CALL, f"It is {OTHER}"], bill(*PAIR, OTHER), 0, 1),
        ([f"It is {OTHER}"], bill(*PAIR, COST), 1, 0),
        ([f"It is {OTHER}"], "I do not know", 0, 0),
        ([CALL, f"It is {COST}"], "I do not know", 0, 1),
        (["?"], bill(*PAIR, "unknown"), 0, 1),
    ],
)
async def test_a_bill_is_paid_for_and_each_agent_for_its_own_part(
    clerk: list[str], cashier: str, success: float, local: float
) -> None:
    found = await scripted_team(NAME, {CLERK: clerk, CASHIER: [cashier]}).collect([TASK], n=1, step=1)
    columns = found.batch.non_tensor_batch
    assert set(columns["team_reward"]) == {success}
    # The rounds of one call share its reward.
    of_calls = dict(zip(columns["agent_id"], columns["local_reward"], strict=True))
    assert sum(of_calls.values()) == local


def test_prices_are_those_of_the_lists_and_no_demonstration_shows_a_test_question() -> None:
    assert {price(item, shop) for item in ITEMS for shop in SHOPS} == set(COSTS)
    with pytest.raises(ValueError, match="no price of tea at nobody"):
        price("tea", "nobody")
    tested = WORLD.tasks.split(100, 60, 3)
    demos = WORLD.demos(WORLD.course.__class__(count=300), 3, tested.test_keys)
    assert len(tested.test_keys) == 16 and len(demos) == 300
    assert not any(key in demo[0]["content"] for demo in demos for key in tested.test_keys)


@pytest.mark.parametrize("form", FORMS)
def test_a_demonstrated_call_is_read_back_from_the_tokens_of_the_published_template(form: str) -> None:
    chat = ChatTemplate(tokenizer(ShopsCourse(form=form)))
    *asked, said, result = called(*PAIR, COST)
    prompt = chat.render(asked, tools(asked))
    whole = chat.render([*asked, said], tools(asked), prompt=False)
    ids = encode_all(chat.tokenizer, [whole[len(prompt) :]])[0]
    assert whole.startswith(prompt) and chat.calls is not None
    (request,) = read_calls(chat.text_of(ids, prompt), [chat.calls.syntax])
    assert (request.name, request.arguments, request.error) == (
        "price",
        {"item": PAIR[0], "shop": PAIR[1]},
        "",
    )
    assert COST in chat.render([*asked, said, result], tools(asked))[len(whole) - 1 :]


def test_a_warm_start_with_the_words_that_occur_leaves_no_weight_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_start, "LAST", 16)
    said = [{"role": "user", "content": "a b c"}, {"role": "assistant", "content": "c b a"}]
    (tmp_path / "demos.jsonl").write_text((json.dumps({"messages": said}) + "\n") * 256)
    make_tiny_model(tmp_path / "untrained", ["a b c d e f g h i j k l m"] * 9, seed=0)
    config = SFTConfig()
    config.model.path = str(tmp_path / "untrained")
    config.data.train_files = [str(tmp_path / "demos.jsonl")]
    config.data.train_batch_size = 8
    config.optim.lr = 4e-3
    config.trainer.default_local_dir = str(tmp_path / "model")
    config.trainer.device = "cpu"
    metrics = warm_start.run(config)
    assert metrics["step"] == 2 and metrics["loss"] < 0.5
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    ids = torch.tensor([tokenizer.encode(tokenizer.apply_chat_template(said, tokenize=False))])
    with torch.no_grad():
        shares = model(ids).logits[0].softmax(-1)
    seen = sorted(set(ids[0].tolist()))
    assert len(seen) < 30 < model.config.vocab_size
    assert shares[:, seen].sum(-1).min() > 0.9 and shares[:, seen].sum(-1).mean() > 0.99


def test_the_script_trains_a_form_and_counts_its_calls(tmp_path: Path) -> None:
    """In this checkout: the packages of vocabularies and templates are there."""
    (tmp_path / "results.json").write_text(json.dumps([{"form": "llama3_1", "seed": 7, "before": 0.3}]))
    command = [
        sys.executable,
        "recipe/tool_forms/measure.py",
        "--seeds",
        "7",
        "--forms",
        "mistral",
        "--out",
        str(tmp_path),
    ]
    small = [
        "trainer.total_training_steps=1",
        "data.train_batch_size=2",
        "env.rollout.n=2",
        "env.rollout.val_n=1",
    ]
    subprocess.run([*command, *small], cwd=ROOT, env=os.environ | {"DEMOS": "64"}, check=True, timeout=400)
    kept, row = json.loads((tmp_path / "results.json").read_text())
    assert kept == {"form": "llama3_1", "seed": 7, "before": 0.3}
    assert (row["form"], row["seed"], row["steps"], row["valid_counted_invalid"]) == ("mistral", 7, 1, 0)
    assert "<svg" in (tmp_path / "curves.svg").read_text()


def test_the_table_of_the_readme_is_that_of_the_committed_rows() -> None:
    folder = ROOT / "recipe" / "tool_forms"
    rows = json.loads((folder / "results.json").read_text())
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert rows and {row["form"] for row in rows} <= set(LABELS) == set(FORMS)
    for row in rows:
        share = f"{100 * row['before']:.1f} → **{100 * row['after']:.1f}**"
        counts = f"{row['calls']:,} | {row['valid_counted_invalid']} | {row['malformed']}"
        assert f"| `{row['form']}` | {row['seed']} | {share} | {counts} | {row['seconds']:.0f} |" in readme
        assert row["valid_counted_invalid"] == 0 and row["after"] > row["before"] + 0.4
