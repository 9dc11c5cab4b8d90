"""The engine of a reward model: the same score in any company, and errors that are those of one row."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from tests.models.families import FAMILIES, draw_weights
from verl.models.reward_model import scoring_of
from verl.protocol.generate import GenerateRequest, RolloutError, SamplingParams, ScoredPrompt
from verl.workers.rollout.classifier import ClassifierEngine, padded_length


class Model:
    """A stand-in for a transformers classifier, whose head a test writes."""

    device = torch.device("cpu")

    def __init__(self, head: Callable[[torch.Tensor], torch.Tensor], pad: int | None = 0) -> None:
        text = SimpleNamespace(vocab_size=100, pad_token_id=pad)
        self.config = SimpleNamespace(get_text_config=lambda: text)
        self.head = head

    def __call__(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        return SimpleNamespace(logits=self.head(input_ids))


def sums(ids: torch.Tensor) -> torch.Tensor:
    return ids.sum(dim=1, keepdim=True).float()


def engine_of(head: Callable[[torch.Tensor], torch.Tensor], pad: int | None = 0) -> ClassifierEngine:
    return ClassifierEngine(Model(head, pad), micro_batch_size=4, max_model_len=200)


def scores(engine: ClassifierEngine, rows: list[tuple[int, ...]]) -> list[Any]:
    """Scores, or errors, of rows that are sent at the same time."""

    async def ask() -> list[Any]:
        found = await asyncio.gather(
            *(engine.generate(GenerateRequest(r, SamplingParams(1))) for r in rows), return_exceptions=True
        )
        return [f if isinstance(f, BaseException) else f[0].score for f in found]

    try:
        return asyncio.run(ask())
    finally:
        engine.close()


def test_every_pass_has_the_same_rows_and_a_width_of_the_row_alone() -> None:
    shapes: list[tuple[int, ...]] = []

    def head(ids: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(ids.shape))
        return sums(ids)

    assert scores(engine_of(head), [(1,) * 3, (2,) * 70, (3,), (1,) * 5, (1,) * 6, (1,) * 7]) == [
        3,
        140,
        3,
        5,
        6,
        7,
    ]
    assert sorted(shapes) == [(4, 64), (4, 64), (4, 128)]
    assert [padded_length(n) for n in (1, 64, 65, 129)] == [64, 64, 128, 256]


def test_prompts_of_higher_priority_are_scored_first() -> None:
    passes: list[list[int]] = []

    def head(ids: torch.Tensor) -> torch.Tensor:
        passes.append(ids[:, 0].tolist())
        return sums(ids)

    async def ask() -> None:
        engine = engine_of(head)
        requests = [GenerateRequest((i,), SamplingParams(1), priority=-(i > 4)) for i in range(1, 9)]
        await asyncio.gather(*(engine.generate(one) for one in requests))
        engine.close()

    asyncio.run(ask())
    assert passes == [[5, 6, 7, 8], [1, 2, 3, 4]]


def test_a_score_is_the_same_to_the_bit_in_any_company(tiny_model_dir: Any) -> None:
    from transformers import AutoConfig, Qwen3ForSequenceClassification

    config = AutoConfig.from_pretrained(tiny_model_dir, num_labels=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForSequenceClassification(config).eval()
    rows = [tuple(range(1, 2 + 3 * i)) for i in range(11)]

    def alone(row: tuple[int, ...]) -> float:
        with torch.inference_mode():
            return float(model(input_ids=torch.tensor([row])).logits[0, 0])

    def engine(size: int = 4) -> ClassifierEngine:
        return ClassifierEngine(model, micro_batch_size=size, max_model_len=200)

    together = scores(engine(), rows)
    assert scores(engine(), rows[::-1]) == together[::-1]
    assert [scores(engine(), [row])[0] for row in rows] == together
    assert together == pytest.approx([alone(row) for row in rows], abs=1e-5)


def test_a_model_without_a_padding_token_gets_one_that_no_row_contains() -> None:
    engine = engine_of(lambda ids: ids[:, -1:] * 1.0, pad=None)
    assert scores(engine, [(0, 1, 2), (4, 3)]) == [5.0, 5.0]


def test_an_error_of_one_row_is_not_that_of_the_others() -> None:
    def head(ids: torch.Tensor) -> torch.Tensor:
        if (ids == 13).any():
            raise KeyError("13")
        return torch.where((ids == 7).any(dim=1, keepdim=True), torch.nan, sums(ids))

    fine, raised, nan, also_fine = scores(engine_of(head), [(1,), (13,), (7,), (2,)])
    assert (fine, also_fine) == (1.0, 2.0)
    assert isinstance(raised, RolloutError) and "the reward model failed: KeyError: '13'" in str(raised)
    assert isinstance(nan, RolloutError) and "gave the score nan; scores must be finite" in str(nan)


def test_a_wrong_shape_names_both() -> None:
    (error,) = scores(engine_of(lambda ids: torch.zeros(ids.shape[0], 2)), [(1,)])
    assert "expected one score for each of 4 rows, found the shape [4, 2]" in str(error)


def test_a_request_that_is_given_up_does_not_keep_the_loop_waiting() -> None:
    given_up = threading.Event()

    def head(ids: torch.Tensor) -> torch.Tensor:
        assert given_up.wait(60)
        return sums(ids)

    async def ask() -> list[Any]:
        engine = engine_of(head)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.generate(GenerateRequest((1,), SamplingParams(1))), 0.1)
        given_up.set()
        later = await engine.generate(GenerateRequest((2,), SamplingParams(1)))
        engine.close()
        return later

    later = asyncio.run(ask())
    assert isinstance(later[0], ScoredPrompt) and later[0].score == 2.0


def test_what_is_no_prompt_of_the_model_is_refused() -> None:
    empty, long, unknown = scores(engine_of(sums), [(), (1,) * 200, (100,)])
    assert (
        "0 prompt tokens" in str(empty)
        and "has 200 tokens" in str(long)
        and "outside [0, 100)" in str(unknown)
    )


@pytest.mark.parametrize("name", ["gemma2", "phi3-longrope", "llama-dynamic", "gpt_oss", "bloom"])
def test_a_real_model_gives_a_row_the_score_that_it_has_alone(name: str) -> None:
    """Soft caps, sinks and biases are used, and neither padding nor longer rows count as positions."""
    config = FAMILIES[name].config()
    config.num_labels = 1
    torch.manual_seed(0)
    attention = "eager" if name in ("gpt_oss", "bloom") else "sdpa"  # the others would lose a cap with it
    model = (
        AutoModelForSequenceClassification.from_config(config, attn_implementation=attention).float().eval()
    )
    draw_weights(model)
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("eager")
    generator = torch.Generator().manual_seed(0)
    rows = [
        tuple(torch.randint(3, 576, (length,), generator=generator).tolist())
        for length in (5, 29, 60, 31, 40)
    ]
    with torch.no_grad():
        expected = [float(copy.deepcopy(plain)(input_ids=torch.tensor([row])).logits[0, 0]) for row in rows]
    engine = ClassifierEngine(model, micro_batch_size=4, max_model_len=200)
    assert scores(engine, rows) == pytest.approx(expected, abs=1e-3)
    assert max(expected) - min(expected) > 0.5


@pytest.mark.parametrize(("name", "alone"), [("distilbert", False), ("bert", False), ("convbert", True)])
def test_an_encoder_whose_scores_depend_on_padding_scores_every_row_alone(name: str, alone: bool) -> None:
    """No miniature of them can be made, so the model itself is tried."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    if name == "distilbert":
        sizes = {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
    if name == "convbert":  # whose convolutions read padding
        sizes |= {"embedding_size": 64}
    config = type(AutoConfig.for_model(name))(vocab_size=300, num_labels=1, pad_token_id=0, **sizes)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager").float().eval()
    draw_weights(model)
    generator = torch.Generator().manual_seed(0)
    rows = [tuple(torch.randint(3, 300, (length,), generator=generator).tolist()) for length in (5, 29, 60)]
    with torch.no_grad():
        expected = [float(model(input_ids=torch.tensor([row])).logits[0, 0]) for row in rows]
    assert scoring_of(config).padded
    engine = ClassifierEngine(model, micro_batch_size=2, max_model_len=100)
    assert (engine._alone is not None) is alone
    assert scores(engine, rows) == pytest.approx(expected, abs=1e-3)
