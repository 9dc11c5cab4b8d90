"""Several adapters and the base in one continuous batch of the `hf` engine, and updates of one of them."""

import asyncio
import dataclasses
from collections.abc import Sequence

import pytest

from tests.workers.rollout.conftest import (
    EVERYONE,
    SPECS,
    all_of,
    largest_gap,
    peft_model,
    request,
    tensors_of,
    tiny_model,
)
from verl.protocol.generate import GenerateRequest, RolloutError
from verl.workers.rollout.hf_engine import HFEngine


@pytest.fixture(params=["masked", "grouped"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of adapters by a mask, and in groups."""
    if request.param == "grouped":
        monkeypatch.setattr("verl.workers.rollout.adapters.MASKED_RANKS", 0)


def make_engine(slots: int = 8, loaded: Sequence[str] = tuple(SPECS)) -> HFEngine:
    engine = HFEngine(tiny_model(), max_num_seqs=slots, max_model_len=128, adapters=SPECS)
    for name in loaded:
        engine.update_weights(tensors_of(peft_model(), name), adapter=name, version=1)
    return engine


def ask(adapter: str | None, seed: int = 0, max_tokens: int = 12, length: int = 20) -> GenerateRequest:
    return dataclasses.replace(
        request(length, max_tokens, seed=seed, prompt_seed=7), adapter=adapter, request_id=f"{adapter}-{seed}"
    )


def held_by(engine: HFEngine) -> set[str | None]:
    """Adapters whose prompts' keys the engine would use again."""
    return {prompt.adapter for prompt in engine._scheduler._prompts.by_slot.values()}


@pytest.mark.usefixtures("each_way")
async def test_every_row_of_a_mixed_batch_has_its_own_adapter() -> None:
    """More requests than slots, so that a slot passes from one adapter to another; all have the same
    prompt.
    """
    engine, model = make_engine(), peft_model()
    requests = [ask(name, seed) for seed in range(5) for name in EVERYONE]
    replies = await all_of(engine, requests)
    assert largest_gap(model, requests, replies) < 1e-5
    assert len({reply.log_probs[0] for reply in replies[:4]}) == 4
    assert engine.stats()["prompt_tokens_computed"] == 4 * 20, (
        "each adapter computes the prompt once, and only for itself"
    )


@pytest.mark.usefixtures("each_way")
async def test_a_reply_has_the_same_bits_in_any_batch() -> None:
    """Alone a decode step has eight rows, together sixteen."""
    requests = [ask(name, seed, length=20 + seed) for seed in range(3) for name in EVERYONE]
    together, engine = await all_of(make_engine(slots=16), requests), make_engine(slots=16)
    for req, reply in zip(requests, together, strict=True):
        (alone,) = await all_of(engine, [req])
        assert alone == reply
    plain = HFEngine(tiny_model(), max_num_seqs=8, max_model_len=128)
    (base,) = await all_of(plain, [requests[0]])
    assert base == together[0], "a row without an adapter is that of an engine without adapters"


@pytest.mark.usefixtures("each_way")
async def test_an_update_reaches_its_own_rows_at_once_and_no_others_and_nobody_waits() -> None:
    engine, newer = make_engine(), peft_model(seed=1)
    before = {name: (await all_of(engine, [ask(name)]))[0] for name in EVERYONE}
    halves = list(tensors_of(newer, "a").items())
    running = asyncio.create_task(all_of(engine, [ask(name, 3, max_tokens=60) for name in (None, "b")]))
    await asyncio.sleep(0)
    engine.update_weights(dict(halves[:5]), adapter="a", version=2, final=False)
    steps = engine.stats()["steps"]
    for _ in range(5):
        await asyncio.sleep(0)
    assert engine.stats()["steps"] > steps, "others are sampled between two buckets"
    assert (await all_of(engine, [ask("a")]))[0] == before["a"], "half an update is none"
    held = held_by(engine)
    assert "a" in held and len(held) > 1
    engine.update_weights(dict(halves[5:]), adapter="a", version=2)
    assert held_by(engine) == held - {"a"}, "the keys of the old adapter are dropped, all others are kept"
    after = {name: (await all_of(engine, [ask(name)]))[0] for name in EVERYONE}
    assert (
        largest_gap(newer, [ask("a")], [after["a"]]) < 1e-5 and after["a"].log_probs != before["a"].log_probs
    )
    assert [after[name].version for name in EVERYONE] == [0, 2, 1, 1]
    assert all(after[name] == before[name] for name in (None, "b", "c"))
    await running
    assert (engine.version, engine.version_of("a"), engine.version_of("b")) == (0, 2, 1)


async def test_stale_keys_of_an_adapter_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Premise of the test above: with the old keys kept, log-probs are wrong by far more than the
    tolerance.
    """
    engine, newer = make_engine(), peft_model(seed=1)
    await all_of(engine, [ask("a")])
    monkeypatch.setattr(engine._scheduler, "forget_adapter", lambda adapter: None)
    engine.update_weights(tensors_of(newer, "a"), adapter="a", version=2)
    assert largest_gap(newer, [ask("a")], await all_of(engine, [ask("a")])) > 1e-3


async def test_new_base_weights_change_the_rows_of_every_adapter() -> None:
    engine = make_engine()
    before = await all_of(engine, [ask(name) for name in EVERYONE])
    weights = {name: p.detach() * 1.1 for name, p in tiny_model().named_parameters()}
    engine.update_weights(weights, version=5)
    after = await all_of(engine, [ask(name) for name in EVERYONE])
    assert all(a.log_probs != b.log_probs for a, b in zip(after, before, strict=True))
    assert [reply.version for reply in after] == [5, 1, 1, 1]


async def test_an_adapter_without_weights_is_refused() -> None:
    engine = make_engine(loaded=("a",))
    with pytest.raises(RolloutError, match="no weights"):
        await engine.generate(ask("b"))
    engine.update_weights(tensors_of(peft_model(), "b"), adapter="b", version=1)
    await engine.generate(ask("b"))
