"""Adapters that are updated in common passes learn what each learns alone, whatever the others are."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.workers.engine.builders import (
    ONE_PIECE,
    Gradients,
    full_loss,
    loss_settings,
)
from tests.workers.engine.test_shared_prefixes import TREE, fill, make_calls
from verl.models.lora import LoraSpec
from verl.trainer.config import ActorConfig, FSDPConfig, ModelConfig, OptimConfig
from verl.workers.engine import (
    AdapterPlan,
    FSDPEngine,
    MicroBatchRule,
    PolicyRows,
    UpdatePlan,
    init_mesh,
    update_adapters,
    update_policy,
)

# Different ranks, layers, learning rates and schedules.
PLANS = {
    "solver": AdapterPlan(LoraSpec(4, 8), OptimConfig(lr=1e-2, lr_scheduler_type="cosine")),
    "verifier": AdapterPlan(LoraSpec(1, 2, ["q_proj", "down_proj"]), OptimConfig(lr=1e-3, weight_decay=0.1)),
    "critic": AdapterPlan(LoraSpec(3, 1, ["v_proj", "o_proj", "gate_proj"]), OptimConfig(lr=1e-2)),
    "judge": AdapterPlan(LoraSpec(2, 6), OptimConfig(lr=3e-3, lr_warmup_steps=4)),
}


def make(model: Path, *, double: bool = False, **options: object) -> FSDPEngine:
    torch.set_num_threads(1)
    config = ModelConfig(path=str(model), **options)  # type: ignore[arg-type]
    engine = FSDPEngine(config, FSDPConfig(), None, init_mesh("cpu", 0, 1), adapters=PLANS)
    engine.set_total_steps(20)
    for name in PLANS:
        fill(engine, name)
    if double:
        engine.model.double()
        for module in engine.model.modules():
            if type(module).__name__ == "Qwen3RMSNorm":  # it computes in fp32
                module.forward = lambda x, norm=module: torch.nn.functional.rms_norm(
                    x, norm.weight.shape, norm.weight, norm.variance_epsilon
                )
        for trainable in engine.trainables:
            for state in trainable.optimizer.state.values():
                state.update({name: state[name].double() for name in ("exp_avg", "exp_avg_sq")})
    return engine


def updates(grad_clip: float = 1e9) -> dict[str, PolicyRows]:
    """Rows, losses, temperatures, mini-batches and epochs that differ; of two adapters in a tree, of which one
    beginning is the same for both.
    """
    prepared, plan = loss_settings("clip_cov", "seq-mean-token-mean")
    found = {
        "solver": PolicyRows(full_loss(), make_calls(TREE), UpdatePlan(temperature=0.75, num_mini_batches=3)),
        "verifier": PolicyRows(
            full_loss("seq-mean-token-sum"),
            make_calls(TREE, seed=1, words=2),
            UpdatePlan(temperature=1.25, num_mini_batches=2),
        ),
        "critic": PolicyRows(prepared, make_calls(TREE[:5]), replace(plan, temperature=1.0)),
        "judge": PolicyRows(
            ActorConfig(ppo_epochs=2, shuffle=False, skip_zero_advantages=True),
            make_calls(TREE[2:]),
            UpdatePlan(temperature=0.5, loss_scale_factor=8.0),
        ),
    }
    width = max(update.rows["responses"].shape[1] for update in found.values())
    prompt = max(
        update.rows["input_ids"].shape[1] - update.rows["responses"].shape[1] for update in found.values()
    )
    return {
        name: PolicyRows(
            replace(update.config, grad_clip=grad_clip), padded(update.rows, prompt, width), update.plan
        )
        for name, update in found.items()
    }


def padded(rows: Mapping[str, torch.Tensor], prompt: int, width: int) -> dict[str, torch.Tensor]:
    response = rows["responses"].shape[1]
    left = prompt - (rows["input_ids"].shape[1] - response)
    right = width - response
    whole = ("input_ids", "attention_mask", "position_ids")
    return {
        name: value
        if value.ndim == 1
        else torch.nn.functional.pad(value, (left if name in whole else 0, right))
        for name, value in rows.items()
    }


def alone(engine: FSDPEngine, name: str, update: PolicyRows, rule: MicroBatchRule) -> dict[str, float]:
    """Update with PEFT's own layers."""
    with engine.using(name):
        return update_policy(engine, update.config, update.rows, update.plan, rule)


@pytest.fixture
def exact_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log-probs and entropies in the dtype of the model."""

    def scores(logits, labels, temperature, index=None):  # type: ignore[no-untyped-def]
        scale = temperature[:, None] if isinstance(temperature, torch.Tensor) else temperature
        all_log_probs = torch.log_softmax(logits / scale, -1)
        rows = torch.arange(len(labels)) if index is None else index
        return all_log_probs[rows, labels], -(all_log_probs.exp() * all_log_probs).sum(-1)

    monkeypatch.setattr("verl.workers.engine.forward.token_scores", scores)


def weights(engine: FSDPEngine) -> Gradients:
    return {f"{name}/{key}": value.clone() for name in PLANS for key, value in engine.weights(name)}


def record(engine: FSDPEngine) -> dict[str, list[Gradients]]:
    """The gradients of every step of each adapter, from now on."""
    steps: dict[str, list[Gradients]] = {name: [] for name in PLANS}
    take_step = engine.step

    def step(grad_clip: float, adapter: str | None = None) -> tuple[float, bool]:
        trainable = engine.trainable_of(adapter)
        (name,) = [name for name in PLANS if engine.adapters[name] is trainable]
        steps[name].append({key: p.grad.clone() for key, p in trainable.parameters.items()})
        return take_step(grad_clip, adapter)

    engine.step = step  # type: ignore[method-assign]
    return steps


def difference(found: Gradients, expected: Gradients) -> float:
    """The largest difference relative to the largest element of its tensor."""
    assert found.keys() == expected.keys() and found
    return max(
        float((found[key] - expected[key]).abs().max() / expected[key].abs().max()) for key in expected
    )


RULES = {
    "one": ONE_PIECE,
    "rows": MicroBatchRule(None, 3, packed=True),
    "padded": MicroBatchRule(60, 1, packed=False),
}


@pytest.mark.usefixtures("exact_scores")
@pytest.mark.parametrize("rule", RULES)
def test_three_steps_of_different_adapters_are_those_of_each_alone(tiny_model_dir: Path, rule: str) -> None:
    """In fp64: sums of other orders have other bits."""
    options = {"use_remove_padding": rule != "padded", "enable_gradient_checkpointing": rule == "rows"}
    mixed, single = (make(tiny_model_dir, double=True, **options) for _ in range(2))
    start = weights(single)
    taken = [record(engine) for engine in (mixed, single)]
    for clip in (1e9, 0.5, 0.5):
        given = updates(clip)
        found = update_adapters(mixed, given, RULES[rule])
        for name, update in given.items():
            expected = alone(single, name, update, RULES[rule])
            # Rows of other adapters in a micro-batch, and so other shares of tokens that are run once.
            shared = {key: found[name].pop(key) for key in list(expected) if key.endswith("/shared_tokens")}
            assert shared.keys() == {key for key in expected if key.endswith("/shared_tokens")}
            assert found[name] == pytest.approx(
                {key: expected[key] for key in found[name]}, rel=1e-5, abs=1e-7
            )
    for name in PLANS:
        for found_step, expected_step in zip(*(steps[name] for steps in taken), strict=True):
            assert difference(found_step, expected_step) < 1e-12
    after = weights(single)
    for key, value in weights(mixed).items():
        assert (value - after[key]).abs().max() < 1e-8
        assert "lora" in key and not torch.equal(start[key], value)
    assert [engine.steps for engine in mixed.trainables] == [9, 6, 3, 6]
