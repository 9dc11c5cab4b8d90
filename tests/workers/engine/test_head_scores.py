"""Scores computed in the head, tile by tile, have the values and gradients of whole logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.models.families import FAMILIES, make_model, save_model
from tests.workers.engine.builders import (
    ADAPTERS,
    ONE_PIECE,
    full_loss,
    gradients,
    largest_difference,
    loss_settings,
    make_adapter_engine,
    make_engine,
    make_rows,
)
from verl.models.lora import LoraSpec
from verl.trainer.config import ActorConfig
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.workers.engine import FSDPEngine, MicroBatchRule, head_check, head_scores
from verl.workers.engine.forward import score_tokens
from verl.workers.engine.head_check import choose_head
from verl.workers.engine.head_scores import IDENTITY, Head, LogitMap, ScoreRequest, token_scores

BUILT_IN = sorted(name for name, fn in POLICY_LOSS_REGISTRY.items() if fn.__module__.startswith("verl."))
PLAIN = dict.fromkeys(("bias", "cap", "scale", "temperature", "index", "tiles"))
BOUND = {torch.float64: 1e-12, torch.float32: 5e-6}
WORDS, WIDTH, COUNT = 31, 6, 9


def tiles_of(monkeypatch: pytest.MonkeyPatch, elements: int, rows: int, kept: int = 0) -> None:
    """Let tiles have so many logits and rows, and let so many logits be kept."""
    monkeypatch.setattr(head_scores, "_KEPT_ELEMENTS", kept)
    monkeypatch.setattr(head_scores, "_TILE_ELEMENTS", {"cpu": elements})
    monkeypatch.setattr(head_scores, "_TILE_ROWS", rows)


def reference(outputs: torch.Tensor, request: ScoreRequest, head: Head) -> tuple[torch.Tensor, ...]:
    """Log-probs, entropies and sums of squares, as their definitions say."""
    logits = nn.functional.linear(outputs, head.weight, head.bias) * head.logit_map.scale
    if head.logit_map.cap is not None:
        logits = head.logit_map.cap * torch.tanh(logits / head.logit_map.cap)
    temperature = request.temperature
    logits = logits / (temperature[:, None] if isinstance(temperature, torch.Tensor) else temperature)
    log_probs = torch.log_softmax(logits, dim=-1)
    rows = torch.arange(len(outputs)) if request.index is None else request.index
    probs = log_probs.exp()
    return log_probs[rows, request.labels], -(probs * log_probs).sum(dim=-1), (probs * probs).sum(dim=-1)


def check_both_ways(
    dtype: torch.dtype, head: Head, request: ScoreRequest, entropy: bool, frozen: bool
) -> None:
    """Compare values and gradients with the definition; of the largest number of each tensor."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(COUNT, WIDTH, generator=generator, dtype=dtype)
    found = []
    for way in ("tiles", "definition"):
        inputs = [hidden.clone().requires_grad_(), head.weight.clone().requires_grad_(not frozen)]
        bias = None if head.bias is None else head.bias.clone().requires_grad_(not frozen)
        copy = Head(inputs[1], bias, head.logit_map)
        if way == "tiles":
            scores = token_scores(inputs[0], request, copy)
            assert scores.entropy.requires_grad is request.entropy_gradient
            assert scores.squares is not None and not scores.squares.requires_grad
            values = (scores.log_probs, scores.entropy, scores.squares)
        else:
            values = reference(inputs[0], request, copy)
        loss = (values[0] * torch.linspace(-1, 2, len(values[0]), dtype=dtype)).sum()
        if entropy:
            loss = loss + (values[1] * torch.linspace(1, -1, COUNT, dtype=dtype)).sum()
        loss.backward()
        found.append([*values, *(x.grad for x in (*inputs, bias) if x is not None and x.grad is not None)])
    assert len(found[0]) == len(found[1]) == 4 + (not frozen) * (1 + (head.bias is not None))
    for ours, theirs in zip(*found, strict=True):
        assert ours.dtype == dtype
        assert float((ours - theirs).detach().abs().max()) < BOUND[dtype] * max(
            1.0, float(theirs.detach().abs().max())
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_values_and_gradients_are_those_of_the_definition(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(WORDS, WIDTH, generator=generator, dtype=dtype)
    bias = torch.randn(WORDS, generator=generator, dtype=dtype)
    each = torch.rand(COUNT, generator=generator, dtype=dtype) + 0.5
    index = torch.randint(0, COUNT, (14,), generator=generator)
    labels = torch.randint(0, WORDS, (14,), generator=generator)
    choices = product(
        (None, bias), (IDENTITY, LogitMap(0.3, 2.0)), (1.0, 0.7, each), (None, index), (1, 2, 3)
    )
    for own_bias, logit_map, temperature, own_index, way in choices:
        # Several tiles, one that is kept, and tiles of all words, some of which are kept.
        for elements, rows, kept in ((12, 4, 0), (1 << 20, 2048, 1 << 20), (WORDS, 1, 100)):
            tiles_of(monkeypatch, elements, rows, kept)
            own_labels = labels if own_index is not None else labels[:COUNT]
            entropy, frozen = way == 1, way == 3
            request = ScoreRequest(own_labels, temperature, own_index, squares=True, entropy_gradient=entropy)
            check_both_ways(dtype, Head(weight, own_bias, logit_map), request, entropy, frozen)


def test_values_and_gradients_are_those_of_torchs_own_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(40, 16, generator=generator, dtype=torch.float64)
    weight = torch.randn(300, 16, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 300, (40,), generator=generator)
    found = []
    for way in ("ours", "torch"):
        inputs = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
        if way == "ours":
            loss = -token_scores(inputs[0], ScoreRequest(labels), Head(inputs[1])).log_probs
        else:
            loss = nn.functional.linear_cross_entropy(inputs[0], inputs[1], labels, reduction="none")
        (loss * torch.linspace(-1, 1, 40, dtype=torch.float64)).sum().backward()
        found.append((loss.detach(), *(x.grad for x in inputs)))
    for ours, theirs in zip(*found, strict=True):
        assert float((ours - theirs).abs().max()) < 1e-12


@pytest.mark.parametrize("frozen", [False, True])
def test_words_of_probability_zero_change_nothing(frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their logits are -inf, as a bias may say; some tiles have no others."""
    tiles_of(monkeypatch, 8, 2)
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(5, 4, generator=generator), torch.randn(9, 4, generator=generator)
    more = torch.cat([torch.randn(8, 4, generator=generator), weight, torch.randn(7, 4, generator=generator)])
    bias = torch.full((24,), -torch.inf)
    bias[8:17] = 0.0
    labels = torch.tensor([0, 8, 3, 3, 5])
    found = []
    for words, added, shift in ((weight, None, 0), (more, bias, 8)):
        inputs = [hidden.clone().requires_grad_(), words.clone().requires_grad_(not frozen)]
        request = ScoreRequest(labels + shift, 0.5, squares=True, entropy_gradient=not frozen)
        scores = token_scores(inputs[0], request, Head(inputs[1], added))
        loss = scores.log_probs.sum() + (0.0 if frozen else scores.entropy.sum())
        loss.backward()
        of_weight = torch.zeros(24, 4) if frozen else inputs[1].grad
        found.append(
            (scores.log_probs, scores.entropy, scores.squares, inputs[0].grad, of_weight[shift:][:9])
        )
        assert of_weight.isfinite().all() and (len(words) == 9 or (of_weight[17:] == 0).all())
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)


def test_in_bf16_sums_are_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against fp32 on the same rounded inputs the error is that of one rounded product, also where a word is
    the label of every token and where tiles of tokens are summed.
    """
    tiles_of(monkeypatch, 4096, 16)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(512, 32, generator=generator).bfloat16()
    weight = (torch.randn(999, 32, generator=generator) / 32**0.5).bfloat16()
    request = ScoreRequest(torch.full((512,), 7), entropy_gradient=True)
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        inputs = [x.detach().to(dtype).requires_grad_() for x in (hidden, weight)]
        scores = token_scores(inputs[0], request, Head(inputs[1]))
        assert scores.log_probs.dtype == scores.entropy.dtype == torch.float32
        (scores.log_probs.sum() + scores.entropy.sum()).backward()
        assert inputs[1].grad is not None and inputs[1].grad.dtype == dtype
        found.append([scores.log_probs, scores.entropy, inputs[0].grad.float(), inputs[1].grad.float()])
    for ours, exact in zip(*found, strict=True):
        assert float((ours - exact).norm() / exact.norm()) < 2**-8


@pytest.mark.parametrize("head", [None, Head(torch.zeros(4, 4))])
def test_a_label_outside_the_vocabulary_is_an_error(head: Head | None) -> None:
    with pytest.raises(IndexError, match="labels 1 to 4: expected 0 to 3"):
        token_scores(torch.zeros(2, 4), ScoreRequest(torch.tensor([4, 1])), head)


def test_one_distribution_and_none() -> None:
    head = Head(torch.randn(7, 3, requires_grad=True))
    hidden = torch.randn(0, 3, requires_grad=True)
    scores = token_scores(hidden, ScoreRequest(torch.zeros(0, dtype=torch.long), squares=True), head)
    (scores.log_probs.sum() + scores.entropy.sum()).backward()
    assert hidden.grad is not None and hidden.grad.shape == (0, 3) and not head.weight.grad.any()
    certain = token_scores(
        torch.ones(1, 3), ScoreRequest(torch.tensor([0])), Head(torch.tensor([[99.0] * 3, [0.0] * 3]))
    )
    assert certain.log_probs.item() == 0.0 and certain.entropy.item() == pytest.approx(0.0, abs=1e-6)


# The whole engine.


def engines(folder: Path, make: Callable[..., FSDPEngine] = make_engine, **options: Any) -> list[FSDPEngine]:
    """Engines of one model: scores in the head, and whole logits."""
    made = [make(folder, **options) for _ in range(2)]
    assert made[0].logit_map is not None
    made[1].logit_map = None
    return made


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_loss_has_the_gradient_of_whole_logits(
    name: str, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiles_of(monkeypatch, 256, 8)
    rows = make_rows(9)
    rows["rollout_log_probs"] = rows["old_log_probs"] + 0.1
    config, plan = loss_settings(name)
    config = replace(config, entropy_coeff=0.01, kl_loss_coef=0.1)
    found = [gradients(engine, rows, ONE_PIECE, config, plan) for engine in engines(tiny_model_dir)]
    scale = max(float(gradient.abs().max()) for gradient in found[1][0].values())
    assert largest_difference(found[0][0], found[1][0]) < 5e-6 * scale
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("options", [{"use_remove_padding": False}, {"share_prefixes": False}])
def test_layouts_and_passes_without_gradients_agree(options: dict[str, Any], tiny_model_dir: Path) -> None:
    rows = make_rows(9)
    for name in ("input_ids", "attention_mask", "position_ids", "responses", "response_mask"):
        rows[name][2] = rows[name][3].clone()
    rule = MicroBatchRule(None, 3, packed=bool(options.get("use_remove_padding", True)))
    ours, whole = (e.score_all(rows, 0.7, rule, True) for e in engines(tiny_model_dir, **options))
    for name in ("log_probs", "entropy", "sum_pi_squared"):
        torch.testing.assert_close(getattr(ours, name), getattr(whole, name), rtol=0.0, atol=2e-6)


@pytest.mark.parametrize("family", ["llama-tied", "gemma2", "cohere", "phi", "opt"])
def test_tied_capped_scaled_and_biased_heads_have_the_gradients_of_whole_logits(
    family: str, tmp_path: Path
) -> None:
    rows = make_rows(5)
    folder = save_model(family, tmp_path)
    ours, whole = (gradients(e, rows, ONE_PIECE, full_loss())[0] for e in engines(folder))
    scale = max(float(gradient.abs().max()) for gradient in whole.values())
    assert largest_difference(ours, whole) < 5e-6 * scale


@pytest.mark.parametrize("entropy_coeff", [0.0, 0.01])
def test_adapters_have_the_gradients_of_whole_logits(entropy_coeff: float, tiny_model_dir: Path) -> None:
    config = ActorConfig(entropy_coeff=entropy_coeff, grad_clip=1e9)
    found = []
    for engine in engines(tiny_model_dir, make_adapter_engine):
        with engine.using("solver"):
            found.append(gradients(engine, make_rows(5), ONE_PIECE, config))
    scale = max(float(gradient.abs().max()) for gradient in found[1][0].values())
    assert largest_difference(found[0][0], found[1][0]) < 5e-6 * scale
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-5, abs=1e-6)


def test_a_head_with_an_adapter_keeps_whole_logits(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = LoraSpec(2, 2, ["q_proj", "lm_head"])
    monkeypatch.setitem(ADAPTERS, "solver", replace(ADAPTERS["solver"], spec=spec))
    engine = make_adapter_engine(tiny_model_dir, ("solver",))
    assert engine.logit_map is None
    note = choose_head(FAMILIES["qwen3"].config(), [LoraSpec(2, 2), spec]).note("actor_rollout_ref.model")
    assert note is not None and "the head has an adapter" in note
    assert choose_head(FAMILIES["qwen3"].config(), [LoraSpec(2, 2)]).note("actor_rollout_ref.model") is None
    before = engine.score_all(make_rows(3), 1.0, ONE_PIECE)
    engine.logit_map = IDENTITY  # a choice that did not see the adapter, which the engine sees
    assert torch.equal(engine.score_all(make_rows(3), 1.0, ONE_PIECE).log_probs, before.log_probs)


def test_rows_have_temperatures_of_their_own(tiny_model_dir: Path) -> None:
    rows = make_rows(5)
    each = torch.tensor([0.5, 1.0, 0.7, 2.0, 1.0])
    engine = make_engine(tiny_model_dir)
    for layout in (engine.layout, replace(engine.layout, sharing="none")):
        engine.layout = layout
        together = score_tokens(engine.model, rows, each, layout, logit_map=engine.logit_map)
        for row, temperature in enumerate(each.tolist()):
            own = {name: value[row : row + 1] for name, value in rows.items()}
            alone = score_tokens(engine.model, own, temperature, layout, logit_map=engine.logit_map)
            torch.testing.assert_close(together.log_probs[row], alone.log_probs[0], rtol=0.0, atol=2e-6)
            torch.testing.assert_close(together.entropy[row], alone.entropy[0], rtol=0.0, atol=2e-6)


# The check before the start.


@pytest.mark.parametrize(
    ("family", "logit_map"),
    [
        ("qwen3", IDENTITY),
        ("cohere", LogitMap(0.0625)),
        ("gemma2", LogitMap(cap=30.0)),
        ("granite", LogitMap(1 / 8.0)),
        ("falcon_h1", LogitMap(0.0195)),
    ],
)
def test_scales_and_caps_are_found_and_matter(family: str, logit_map: LogitMap) -> None:
    fields = {"granite": {"logits_scaling": 8.0}, "falcon_h1": {"lm_head_multiplier": 0.0195}}.get(family, {})
    config = replace(FAMILIES[family], fields={**FAMILIES[family].fields, **fields}).config()
    assert choose_head(config).logit_map == logit_map
    if logit_map != IDENTITY:
        # Larger logits than those of the drawn weights, so that a cap acts.
        model = make_model(config)
        with torch.no_grad():
            model.get_output_embeddings().weight.mul_(50.0)
        assert head_check._difference(model, IDENTITY) > 1e-3 > head_check._difference(model, logit_map)


def other_heads(config: Any) -> dict[str, Callable[[Any], Any]]:
    """Changes of a model that no scale and no cap describes, by what the line says of them."""

    def unlike(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
        def wrap(model: Any) -> Any:
            run = model.forward

            def forward(*args: Any, logits_to_keep: Any = 0, **kwargs: Any) -> Any:
                output = run(*args, logits_to_keep=logits_to_keep, **kwargs)
                return SimpleNamespace(logits=change(output.logits))

            model.forward = forward
            return model

        return wrap

    def mixed(model: Any) -> Any:
        class Half(nn.Linear):
            def forward(self, input: torch.Tensor) -> torch.Tensor:
                return 0.5 * super().forward(input)

        model.lm_head.__class__ = Half
        return model

    def alone(model: Any) -> Any:
        model.lm_head.forward = nn.Linear(1, 1).forward  # replaced, and then called for nothing
        del model.lm_head.forward
        model.get_output_embeddings = lambda: nn.Linear(8, config.vocab_size)
        return model

    return {
        "neither a known scale": unlike(lambda logits: logits * 1.2345),
        "nor a cap": unlike(lambda logits: logits.sign() * logits.abs().sqrt()),
        "what it makes": unlike(lambda logits: logits.log_softmax(dim=-1)),
        "does not run with scores": unlike(lambda logits: logits + 0.0 * logits[..., [5]]),
        "its head is no linear layer (Half)": mixed,
        "neither": alone,
    }


@pytest.mark.parametrize("words", list(other_heads(None)))
def test_what_is_not_known_keeps_whole_logits_and_one_line_says_so(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = FAMILIES["qwen3"].config()
    change = other_heads(config)[words]
    make = head_check.miniature_model
    monkeypatch.setattr(
        head_check, "miniature_model", lambda *args, **options: change(make(*args, **options))
    )
    choice = head_check._choose.__wrapped__(config)  # type: ignore[attr-defined]
    note = choice.note("actor_rollout_ref.model")
    assert choice.logit_map is None and note is not None and words in note and "\n" not in note
    assert note.startswith("actor_rollout_ref.model.use_fused_kernels: ")


def test_use_fused_kernels_false_computes_whole_logits(tiny_model_dir: Path) -> None:
    seen: list[tuple[int, ...]] = []
    for fused in (True, False):
        engine = make_engine(tiny_model_dir, fused_head=fused)
        engine.model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
        engine.score_all(make_rows(3), 1.0, ONE_PIECE)
    assert seen[0][-1] == 1 and seen[1][-1] > 1


def test_a_temperature_per_distribution_must_be_positive() -> None:
    with pytest.raises(ValueError, match="temperature=-1"):
        ScoreRequest(torch.zeros(2, dtype=torch.long), torch.tensor([1.0, -1.0]))
