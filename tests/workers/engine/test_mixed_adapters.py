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
from verl.trainer.config import ActorConfig, FSDPConfig, ModelConfig, OptimConfig, RolloutCorrectionConfig
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
from verl.workers.engine.forward import INPUT_KEYS

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
    """Rows, losses, temperatures, mini-batches and epochs that differ; all rows begin with one token, and two
    adapters have more of their beginnings in common.
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


def gradients_of_each(
    engine: FSDPEngine, given: Mapping[str, PolicyRows], together: bool
) -> tuple[dict[str, Gradients], dict[str, dict[str, float]]]:
    """The gradients of the first step of every adapter that takes one, and the metrics."""
    steps = record(engine)
    if together:
        metrics = update_adapters(engine, given, ONE_PIECE)
    else:
        metrics = {name: alone(engine, name, update, ONE_PIECE) for name, update in given.items()}
    del engine.step
    return {name: found[0] for name, found in steps.items() if found}, metrics


def test_in_fp32_the_first_gradient_of_each_is_that_of_each_alone(tiny_model_dir: Path) -> None:
    engines = [make(tiny_model_dir) for _ in range(2)]
    (found, _), (expected, _) = (
        gradients_of_each(engine, updates(), together)
        for engine, together in zip(engines, (True, False), strict=True)
    )
    assert found.keys() == expected.keys() == PLANS.keys()
    for name in PLANS:
        assert difference(found[name], expected[name]) < 5e-6


def test_an_adapter_that_is_not_finite_or_has_no_tokens_takes_no_step_and_reaches_no_other(
    tiny_model_dir: Path,
) -> None:
    """One has weights that are not finite, one no rows, and of one the loss rejects all rows."""
    engines = [make(tiny_model_dir, double=True) for _ in range(2)]
    given = updates()
    rows = given["judge"].rows
    given["judge"] = replace(
        given["judge"], rows=rows | {"response_mask": torch.zeros_like(rows["response_mask"])}
    )
    correction = RolloutCorrectionConfig(bypass_mode=True, rollout_rs="token_k1", rollout_rs_threshold=2.0)
    rows = given["verifier"].rows
    given["verifier"] = PolicyRows(
        loss_settings("vanilla")[0],
        rows | {"old_log_probs": rows["rollout_log_probs"] + 50.0},
        UpdatePlan(temperature=0.75, rollout_correction=correction),
    )
    for engine in engines:
        with torch.no_grad():
            next(iter(engine.adapters["critic"].parameters.values())).fill_(torch.nan)
    before = [
        {key: value.clone() for key, value in engines[0].weights(name)} for name in ("judge", "verifier")
    ]
    (found, metrics), (expected, _) = (
        gradients_of_each(engine, given, together)
        for engine, together in zip(engines, (True, False), strict=True)
    )
    assert found.keys() == expected.keys() == {"solver", "critic"}
    assert difference(found["solver"], expected["solver"]) < 1e-12
    assert metrics["critic"]["actor/skipped_steps"] == 1.0 and metrics["solver"]["actor/skipped_steps"] == 0.0
    assert [engines[0].adapters[name].steps for name in PLANS] == [3, 0, 1, 0]
    for name, values in zip(("judge", "verifier"), before, strict=True):
        assert all(torch.equal(value, values[key]) for key, value in engines[0].weights(name))
        trainable = engines[0].adapters[name]
        assert all(float(state["step"]) == 0 for state in trainable.optimizer.state.values())
        assert all(parameter.grad is None for parameter in trainable.parameters.values())
        assert "actor/grad_norm" not in metrics[name]


def test_scores_of_several_adapters_are_those_of_each_alone(tiny_model_dir: Path) -> None:
    engine, given = make(tiny_model_dir), updates()
    names = list(given)
    temperature = torch.tensor([update.plan.temperature for update in given.values()])
    keys = INPUT_KEYS
    rows = {key: torch.cat([update.rows[key] for update in given.values()]) for key in keys}
    sizes = torch.tensor([len(update.rows["input_ids"]) for update in given.values()])
    rows["part"] = torch.arange(len(names)).repeat_interleave(sizes)
    for rule in (ONE_PIECE, MicroBatchRule(40, 1, packed=True)):
        with engine.mixing(names):
            together = engine.score_all(rows, temperature, rule, sum_pi_squared=True)
        base = engine.score_all(rows, temperature, rule).log_probs
        for number, (name, update) in enumerate(given.items()):
            own = rows["part"] == number
            with engine.using(name):
                single = engine.score_all(update.rows, update.plan.temperature, rule, sum_pi_squared=True)
            assert (together.log_probs[own] - single.log_probs).abs().max() < 2e-6
            assert (together.entropy[own] - single.entropy).abs().max() < 1e-5
            assert (together.sum_pi_squared[own] - single.sum_pi_squared).abs().max() < 2e-6
            reference = engine.score_all(update.rows, update.plan.temperature, rule).log_probs
            assert (base[own] - reference).abs().max() < 2e-6
            assert (together.log_probs[own] - base[own]).abs().max() > 1e-2


def test_adapters_of_a_head_run_one_after_the_other(
    tiny_model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plans = {"a": AdapterPlan(LoraSpec(2, 4, ["lm_head"]), OptimConfig()), "b": PLANS["judge"]}
    config = ModelConfig(path=str(tiny_model_dir))
    engine = FSDPEngine(config, FSDPConfig(), None, init_mesh("cpu", 0, 1), adapters=plans)
    assert not engine.mixes_adapters and "run one after the other: the head has adapters" in caplog.text
    assert make(tiny_model_dir).mixes_adapters
