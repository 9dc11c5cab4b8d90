"""What every engine promises, held against each: `hf`, and `vllm` with its model in a process of its own, or
split over two.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from agent_system.environment import Task
from agent_system.reward.model import ScoredConversation
from agent_system.rollout.binding import AgentBinding
from agent_system.rollout.reward_models import Judge
from agent_system.testing import make_tokenizer
from tests.waiting import settle, until
from tests.workers.rollout.conftest import (
    EVERYONE,
    SPECS,
    VOCAB,
    all_of,
    engine_processes,
    largest_gap,
    request,
    tensors_of,
    tiny_model,
)
from tests.workers.rollout.conftest import peft_model as any_peft_model
from verl.models.lora import select_adapter
from verl.protocol.generate import EngineGoneError, GenerateRequest, Generation, RolloutError, SamplingParams
from verl.trainer.config import ActorRolloutRefConfig, ModelConfig, RolloutConfig
from verl.trainer.config.reward_model import RewardModelConfig
from verl.workers.rollout.base import RolloutEngine
from verl.workers.rollout.server import build_engine
from verl.workers.rollout.vllm.engine import VLLMEngine
from verl.workers.rollout.vllm.process import named_shared_memory
from verl.workers.weight_transfer.base import ReceivedWeights, build_transfer, send_bucket

# vLLM on a CPU has kernels for heads of 32 channels and more.
HEAD_DIM = 32
MAX_MODEL_LEN = 256
ENGINES: dict[str, dict[str, Any]] = {
    "hf": {"name": "hf"},
    "vllm": {"name": "vllm"},
    "vllm-2": {"name": "vllm", "tensor_model_parallel_size": 2},
}
pytestmark = [pytest.mark.parametrize("name", ENGINES, scope="module"), pytest.mark.timeout(1200)]


peft_model = functools.partial(any_peft_model, head_dim=HEAD_DIM)


def base_weights(seed: int = 0) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in tiny_model(seed, HEAD_DIM).named_parameters()}


def open_ports() -> set[tuple[int, int]]:
    """Processes and their ports that are open beyond loopback: of this process and all below it."""
    found: set[tuple[int, int]] = set()
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            listening = [
                c.laddr for c in process.net_connections(kind="inet") if c.status == psutil.CONN_LISTEN
            ]
            found |= {
                (process.pid, address.port) for address in listening if address.ip not in ("127.0.0.1", "::1")
            }
    return found


@pytest.fixture(scope="module")
def ports_of_others() -> set[tuple[int, int]]:
    """Ports that were open before the engine: a driver of Ray listens on all interfaces, for those who have
    the cluster's token.
    """
    return open_ports()


@pytest.fixture(scope="module")
def started(
    name: str, ports_of_others: set[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RolloutEngine]:
    """One engine of each kind for the whole module: starting vLLM takes seconds."""
    folder: Path = tmp_path_factory.mktemp("model")
    tiny_model(0, HEAD_DIM).save_pretrained(folder)
    adapters = {
        key: ActorRolloutRefConfig(
            model=ModelConfig(
                lora_rank=spec.rank,
                lora_alpha=spec.alpha,
                target_modules=spec.target_modules,
                exclude_modules=spec.exclude_modules,
            )
        )
        for key, spec in SPECS.items()
    }
    config = ActorRolloutRefConfig(
        model=ModelConfig(path=str(folder)), rollout=RolloutConfig(**ENGINES[name], max_num_seqs=16)
    )
    engine = build_engine(
        config, max_model_len=MAX_MODEL_LEN, device="cpu", seed=0, num_threads=1, adapters=adapters
    )
    yield engine
    left = [engine._spool.folder, engine._spool.scratch] if isinstance(engine, VLLMEngine) else []  # type: ignore[attr-defined]
    left += named_shared_memory([process.pid for process in engine_processes()])
    engine.close()
    assert not engine_processes() and not [path for path in left if path.exists()]


@pytest.fixture
def engine(started: RolloutEngine) -> RolloutEngine:
    """The engine with the initial weights of the base and all adapters."""
    set_weights(started)
    return started


def set_weights(engine: RolloutEngine) -> None:
    """Give the engine the initial weights of the base and all adapters."""
    engine.update_weights(base_weights(), version=0)
    for name in SPECS:
        engine.update_weights(tensors_of(peft_model(), name), adapter=name, version=1)


def ask(
    adapter: str | None, seed: int = 0, max_tokens: int = 12, length: int = 140, **sampling: Any
) -> GenerateRequest:
    """A request with the prompt that all have; it is longer than a block of vLLM's prefix cache."""
    plain = request(length, max_tokens, seed=seed, prompt_seed=7, **sampling)
    return dataclasses.replace(plain, adapter=adapter, request_id=f"{adapter}-{seed}")


def test_it_fits_the_protocol(engine: RolloutEngine) -> None:
    assert isinstance(engine, RolloutEngine)


async def test_log_probs_are_those_of_the_whole_distribution_at_the_sampling_temperature(
    engine: RolloutEngine,
) -> None:
    how: list[dict[str, Any]] = [
        {},
        {"temperature": 0.6},
        {"temperature": 0.0},
        {"temperature": 0.7, "top_p": 0.8},
        {"top_k": 5},
    ]
    how.append({"temperature": 1.3, "top_k": 3, "top_p": 0.9})
    requests = [
        request(length, 30, seed=i + length, **how[i]) for i in range(len(how)) for length in (1, 33, 160)
    ]
    replies = await all_of(engine, requests)
    assert all(len(reply.token_ids) == 30 and reply.stop_reason == "length" for reply in replies)
    assert largest_gap(peft_model(), requests, replies) < 1e-5


async def test_log_probs_at_low_temperatures_are_as_exact_as_the_logits_that_are_divided(
    engine: RolloutEngine,
) -> None:
    for temperature, top_k in ((0.3, 20), (0.1, -1)):
        requests = [
            request(length, 30, seed=length, temperature=temperature, top_k=top_k) for length in (1, 33, 160)
        ]
        assert largest_gap(peft_model(), requests, await all_of(engine, requests)) < 1e-5 / temperature


async def test_more_tokens_in_flight_than_any_step_has_room_for(engine: RolloutEngine) -> None:
    """8,000 tokens of different prompts, 3,200 in flight; vLLM's steps have 2,048, the engine's 4,096 at
    most.
    """
    requests = [request(200, 8, seed=seed) for seed in range(40)]
    assert largest_gap(peft_model(), requests, await all_of(engine, requests)) < 1e-5


async def test_greedy_takes_the_most_likely_token_at_every_step(engine: RolloutEngine) -> None:
    req = request(20, 30, temperature=0.0)
    (reply,) = await engine.generate(req)
    with torch.no_grad():
        logits = tiny_model(0, HEAD_DIM)(input_ids=torch.tensor([req.prompt_ids + reply.token_ids])).logits[
            0, 19:-1
        ]
    assert tuple(logits.argmax(-1).tolist()) == reply.token_ids


async def test_a_seed_gives_one_reply_and_n_replies_differ_and_need_the_prompt_once(
    engine: RolloutEngine,
) -> None:
    first, again, other = [
        await engine.generate(request(160, 12, seed=seed, prompt_seed=3, n=4)) for seed in (1, 1, 2)
    ]
    assert [reply.token_ids for reply in first] == [reply.token_ids for reply in again]
    assert len({reply.token_ids for reply in (*first, *other)}) == 8
    before = engine.stats()
    await engine.generate(request(160, 2, seed=9, n=8))
    after = engine.stats()
    assert after["prompt_tokens_copied"] - before["prompt_tokens_copied"] >= 7 * 128
    assert after["replies"] - before["replies"] == 8 and after["tokens"] - before["tokens"] == 16


async def test_a_reply_ends_with_the_first_stop_token_of_its_request_alone(engine: RolloutEngine) -> None:
    (free,) = await engine.generate(request(10, 30))
    stops = (free.token_ids[12], free.token_ids[20])
    (stopped,) = await engine.generate(request(10, 30, stop_token_ids=stops))
    end = min(free.token_ids.index(stop) for stop in stops)
    assert stopped.stop_reason == "stop" and stopped.token_ids == free.token_ids[: end + 1]
    assert stopped.log_probs == pytest.approx(free.log_probs[: end + 1], abs=1e-5)


async def test_max_tokens_is_clipped_to_the_room_the_model_leaves(engine: RolloutEngine) -> None:
    (reply,) = await engine.generate(request(MAX_MODEL_LEN - 1, 50))
    assert (len(reply.token_ids), reply.stop_reason) == (1, "length")
    (reply,) = await engine.generate(request(MAX_MODEL_LEN - 30, 50))
    assert len(reply.token_ids) == 30


async def test_a_request_that_cannot_be_served_says_why(engine: RolloutEngine) -> None:
    for bad, match in (
        (request(MAX_MODEL_LEN, 5, request_id="r7"), "r7 has 256 tokens, max_model_len is 256"),
        (GenerateRequest((), SamplingParams(5)), "0 prompt tokens"),
        (GenerateRequest((1, VOCAB), SamplingParams(5)), "outside"),
        (GenerateRequest((1,), SamplingParams(5), n=0), "n=0"),
        (GenerateRequest((1,), SamplingParams(5, top_p=0.0)), "top_p"),
        (
            request(4, 5, structure='{"format": {"type": "any_text"}}'),
            "cannot make a reply follow a schema|requires a tokenizer",
        ),
        (ask("planner"), r"request planner-0: there is no adapter 'planner'.*\['a', 'b', 'c'\]"),
    ):
        with pytest.raises(RolloutError, match=match):
            await engine.generate(bad)


async def until_running(engine: RolloutEngine) -> None:
    await until(lambda: engine.stats()["active"] > 0)


async def test_abort_and_cancel_free_what_a_request_holds(
    engine: RolloutEngine, caplog: pytest.LogCaptureFixture
) -> None:
    before = engine.stats()
    flight = asyncio.create_task(engine.generate(request(10, 240, n=4, request_id="x")))
    now = await until(lambda: (found := engine.stats())["sampled"] > before["sampled"] and found)
    assert isinstance(now, dict) and now["replies"] == before["replies"], (
        "tokens of unfinished replies count as sampled"
    )
    ended = engine.abort("x")
    replies = await flight
    assert 0 < ended <= 4 and engine.abort("x") == 0
    assert sum(reply.stop_reason == "abort" for reply in replies) == ended
    assert all(len(reply.token_ids) == len(reply.log_probs) for reply in replies)
    flight = asyncio.create_task(engine.generate(request(10, 240, n=4)))
    await until_running(engine)
    flight.cancel()
    await asyncio.gather(flight, return_exceptions=True)
    engine.sleep()
    assert engine.stats()["active"] == 0
    del flight
    await asyncio.sleep(0.2)
    gc.collect()  # a future says then that nobody read its error
    assert "never retrieved" not in caplog.text


async def test_waiting_requests_of_higher_priority_are_served_first_and_no_running_reply_is_changed(
    engine: RolloutEngine,
) -> None:
    """All slots are taken; some of those that wait have the same prompts."""
    running = [request(20, 40 + 3 * i, seed=i) for i in range(16)]
    training = [request(20, 12, seed=30 + i) for i in range(6)]
    first = [
        dataclasses.replace(request(20, 6, seed=60 + i, prompt_seed=(30 if i % 2 else 60) + i), priority=-1)
        for i in range(6)
    ]
    ended: list[GenerateRequest] = []

    async def served(one: GenerateRequest) -> Generation:
        (reply,) = await engine.generate(one)
        ended.append(one)
        return reply

    flights = [asyncio.create_task(served(one)) for one in running]
    await until(lambda: fewest_tokens(engine, len(running)) >= 3)
    engine.pause()  # all of them wait before a slot is free
    flights += [asyncio.create_task(served(one)) for one in (*training, *first)]
    await settle()
    engine.resume()
    replies = await asyncio.gather(*flights)
    assert set(map(id, [one for one in ended if one not in running][:6])) == set(map(id, first))
    assert largest_gap(peft_model(), [*running, *training, *first], replies) < 1e-5


async def test_a_pause_holds_replies_and_sleep_wants_an_idle_engine(engine: RolloutEngine) -> None:
    (expected,) = await engine.generate(request(10, 30))
    engine.pause()
    flight = asyncio.create_task(engine.generate(request(10, 30)))
    await asyncio.sleep(0.3)
    assert not flight.done()
    with pytest.raises(RolloutError, match="cannot sleep with 1 request"):
        engine.sleep()
    engine.resume()
    assert (await flight)[0].token_ids == expected.token_ids
    engine.sleep()
    assert (await engine.generate(request(10, 30)))[0].token_ids == expected.token_ids
    engine.wake()


async def test_base_and_adapters_in_one_batch_agree_with_peft_before_and_after_an_update(
    engine: RolloutEngine,
) -> None:
    """More requests than slots, so that a slot passes from one adapter to another; all have the same
    prompt.
    """
    requests = [ask(name, seed) for seed in range(5) for name in EVERYONE]
    before = await all_of(engine, requests)
    assert largest_gap(peft_model(), requests, before) < 1e-5
    assert len({reply.log_probs[0] for reply in before[:4]}) == 4
    newer = peft_model(seed=1)
    engine.update_weights(tensors_of(newer, "a"), adapter="a", version=2)
    after = await all_of(engine, requests)
    for name in EVERYONE:
        mine = [i for i, req in enumerate(requests) if req.adapter == name]
        model = newer if name == "a" else peft_model()
        assert largest_gap(model, [requests[i] for i in mine], [after[i] for i in mine]) < 1e-5, name
        assert {after[i].version for i in mine} == {{None: 0, "a": 2}.get(name, 1)}
    assert after[1].log_probs[0] != before[1].log_probs[0]
    assert (engine.version, engine.version_of("a"), engine.version_of("b")) == (0, 2, 1)


async def test_a_partial_update_of_an_adapter_has_no_effect_and_others_are_sampled_meanwhile(
    engine: RolloutEngine,
) -> None:
    newer = peft_model(seed=1)
    halves = list(tensors_of(newer, "a").items())
    running = asyncio.create_task(engine.generate(ask("b", 3, max_tokens=60)))
    await until_running(engine)
    engine.update_weights(dict(halves[:5]), adapter="a", version=2, final=False)
    (reply,) = await all_of(engine, [ask("a")])
    assert reply.version == 1 and largest_gap(peft_model(), [ask("a")], [reply]) < 1e-5
    engine.update_weights(dict(halves[5:]), adapter="a", version=2)
    (reply,) = await all_of(engine, [ask("a")])
    assert reply.version == 2 and largest_gap(newer, [ask("a")], [reply]) < 1e-5
    assert largest_gap(peft_model(), [ask("b", 3, max_tokens=60)], await running) < 1e-5


async def test_new_base_weights_come_in_buckets_and_change_the_rows_of_every_adapter(
    engine: RolloutEngine,
) -> None:
    requests = [ask(name) for name in EVERYONE]
    await all_of(engine, requests)
    new = base_weights(seed=1)
    names = sorted(new)
    engine.update_weights({name: new[name] for name in names[:4]}, version=5, final=False)
    flight = asyncio.create_task(all_of(engine, requests))
    await asyncio.sleep(0.2)
    assert not flight.done() and engine.version == 0, "nothing is sampled between two buckets"
    with pytest.raises(RolloutError, match="never came"):
        engine.update_weights({}, version=5)
    engine.update_weights({name: new[name] for name in names[4:]}, version=5)
    replies = await flight
    assert largest_gap(peft_model(base=1), requests, replies) < 1e-5
    assert [reply.version for reply in replies] == [5, 1, 1, 1]


async def test_weights_of_model_and_adapter_arrive_by_every_transfer(
    engine: RolloutEngine, name: str
) -> None:
    receivers = ENGINES[name].get("tensor_model_parallel_size", 1)
    for seed, way in enumerate(("object_store", "shared_memory", "collective", "cuda_ipc"), 1):
        sender, receiver, new = build_transfer(way), build_transfer(way), list(base_weights(seed).items())
        for part in (new[:4], new[4:]):
            bucket = send_bucket(sender, dict(part), receivers=receivers)
            weights = ReceivedWeights(receiver, bucket.handle, bucket.shapes)
            engine.update_weights(weights, version=seed, final=part[-1] is new[-1])
            sender.release(bucket.handle)
        replies = await all_of(engine, [ask(None)])
        assert replies[0].version == seed and largest_gap(peft_model(base=seed), [ask(None)], replies) < 1e-5
        newer = peft_model(seed=seed, base=seed)
        bucket = send_bucket(sender, tensors_of(newer, "a"))
        engine.update_weights(
            ReceivedWeights(receiver, bucket.handle, bucket.shapes), adapter="a", version=seed
        )
        sender.release(bucket.handle)
        assert largest_gap(newer, [ask("a")], await all_of(engine, [ask("a")])) < 1e-5


async def test_stale_keys_would_be_detected(engine: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Premise of the tests above: with the keys of old weights kept, log-probs are wrong by far more than the
    tolerance.
    """
    newer = peft_model(seed=1, base=1)
    await all_of(engine, [ask(None), ask("a")])
    if name == "hf":
        monkeypatch.setattr(engine._scheduler, "forget", lambda *_: None)
        monkeypatch.setattr(engine._scheduler, "forget_adapter", lambda *_: None)
        engine.update_weights(tensors_of(newer, "a"), adapter="a", version=2)
    else:
        stale, pause = engine._adapters.request("a"), engine._llm.pause_generation
        engine.update_weights(tensors_of(newer, "a"), adapter="a", version=2)
        monkeypatch.setattr(
            engine._adapters, "request", lambda adapter, replace=False: stale if adapter else None
        )
        monkeypatch.setattr(
            engine._llm, "pause_generation", lambda mode, clear_cache: pause(mode=mode, clear_cache=False)
        )
    (reply,) = await all_of(engine, [ask("a")])
    assert largest_gap(peft_model(seed=1), [ask("a")], [reply]) > 1e-3
    engine.update_weights(base_weights(seed=1), version=5)
    (reply,) = await all_of(engine, [ask(None)])
    assert largest_gap(newer, [ask(None)], [reply]) > 1e-3


def token_gaps(model: torch.nn.Module, req: GenerateRequest, reply: Generation) -> torch.Tensor:
    """As `largest_gap`, for every token of a reply."""
    select_adapter(model, req.adapter)
    with torch.no_grad():
        logits = model(torch.tensor([req.prompt_ids + reply.token_ids])).logits[
            0, len(req.prompt_ids) - 1 : -1
        ]
    expected = torch.log_softmax(logits, -1).gather(-1, torch.tensor(reply.token_ids)[:, None])[:, 0]
    return (expected - torch.tensor(reply.log_probs)).abs()


def fewest_tokens(engine: Any, replies: int) -> int:
    """Tokens of the shortest of so many replies in flight."""
    if isinstance(engine, VLLMEngine):
        counts = [
            state.detokenizer.num_output_tokens()
            for state in list(engine._llm.output_processor.request_states.values())
        ]
    else:
        counts = [len(engine._slots.output(slot)[0]) for slot in engine._running]
    return min(counts) if len(counts) == replies else 0


async def test_replies_in_flight_go_on_with_new_weights_whose_log_probs_they_have(
    engine: RolloutEngine,
) -> None:
    for adapter in ("a", None):  # a loop, not cases: pytest would start every engine again for the second
        set_weights(engine)
        older, newer = peft_model(), peft_model(seed=1) if adapter else peft_model(base=1)
        current = engine.version_of(adapter)
        others = [ask(name, max_tokens=100) for name in EVERYONE if name not in (adapter, None)]
        asked = [ask(adapter, max_tokens=100), ask(adapter, max_tokens=90, seed=5), *others]
        flights = [asyncio.create_task(engine.generate(one)) for one in asked]
        await until(lambda asked=asked: fewest_tokens(engine, len(asked)) >= 3)  # type: ignore[misc]
        engine.update_weights(
            tensors_of(newer, adapter) if adapter else base_weights(seed=1), adapter=adapter, version=7
        )
        replies = [(await flight)[0] for flight in flights]
        for one, reply in zip(asked[:2], replies[:2], strict=True):
            (before, sampled), (now, rest) = reply.spans
            assert (
                (before, now, sampled + rest) == (current, 7, one.sampling.max_tokens)
                and sampled > 0
                and rest > 0
            )
            assert (
                token_gaps(older, one, reply)[:sampled].max() < 1e-5
                and token_gaps(newer, one, reply)[sampled:].max() < 1e-5
            )
            assert token_gaps(older, one, reply)[sampled:].max() > 1e-2
        if adapter:
            assert (
                all(not reply.earlier for reply in replies[2:])
                and largest_gap(older, others, replies[2:]) < 1e-5
            )


async def test_weights_that_do_not_fit_are_refused(engine: RolloutEngine) -> None:
    good, norm = tensors_of(peft_model(), "b"), "model.norm.weight"
    first = next(iter(good))
    for adapter, tensors, match in (
        (None, {"model.nrom.weight": torch.ones(64)}, "model.nrom.weight"),
        (None, {norm: torch.ones(3)}, r"\(3,\), expected \(64,\)"),
        ("planner", good, "no adapter 'planner' to update"),
        ("b", tensors_of(peft_model(), "a"), "update of adapter 'b' has unknown names"),
        ("b", {first: torch.zeros(3, 3)}, r"has shape \(3, 3\), expected \(1, 64\)"),
        ("b", {first: torch.full_like(good[first], float("nan"))}, "not finite"),
        ("b", {first: good[first]}, "update of adapter 'b' is incomplete"),
    ):
        with pytest.raises(RolloutError, match=match):
            engine.update_weights(tensors, adapter=adapter, version=1)
    (reply,) = await all_of(engine, [ask("b")])
    assert largest_gap(peft_model(), [ask("b")], [reply]) < 1e-5


async def test_logits_that_are_not_numbers_fail_their_requests_and_no_later_one(
    engine: RolloutEngine,
) -> None:
    engine.update_weights({**base_weights(), "model.norm.weight": torch.full((64,), float("nan"))}, version=0)
    failed = await asyncio.gather(
        *(engine.generate(request(10, 5, seed=i)) for i in range(3)), return_exceptions=True
    )
    assert all(isinstance(error, RolloutError) and "non-finite" in str(error) for error in failed)
    engine.update_weights(base_weights(), version=0)
    requests = [request(10, 5, seed=i) for i in range(3)]
    assert largest_gap(peft_model(), requests, await all_of(engine, requests)) < 1e-5


async def test_a_judge_asks_any_engine_and_counts_replies_without_a_verdict(engine: RolloutEngine) -> None:
    tokenizer, sampling = make_tokenizer(), SamplingParams(8, temperature=0.0)
    settings = RewardModelConfig(
        kind="judge", path="x", max_length=200, response_length=8, retries=2, unparsable_score=0.25
    )
    judge = Judge(
        AgentBinding("judge", "j", "j", engine, tokenizer, sampling, sampling, 200),
        settings,
        "{mark} {reply}",
        seed=0,
    )
    counts = Counter[str]()
    conversations = [ScoredConversation((), reply, Task("t", "2+2?")) for reply in ("4", "5")]
    assert await asyncio.gather(*(judge.score(c, counts) for c in conversations)) == [0.25, 0.25], (
        "a random model says nothing"
    )
    assert counts == {"asked_again": 4, "unparsable": 2, "truncated": 0}


def test_no_port_is_open_beyond_loopback(
    engine: RolloutEngine, ports_of_others: set[tuple[int, int]]
) -> None:
    assert open_ports() <= ports_of_others


def test_processes_of_the_model_are_those_that_were_asked_for(engine: RolloutEngine, name: str) -> None:
    titles = [" ".join(process.cmdline()) for process in engine_processes()]
    of_devices = sum("Worker_TP" in title for title in titles)
    assert (len(titles) - of_devices, of_devices) == {"hf": (0, 0), "vllm": (1, 0), "vllm-2": (1, 2)}[name]


async def test_an_engine_that_loses_a_process_says_so_and_leaves_none_behind(engine: RolloutEngine) -> None:
    """The last test: nothing works after it."""
    processes = engine_processes()
    if not processes:  # `hf` lives here
        return
    flight = asyncio.create_task(engine.generate(request(10, 240)))
    await until_running(engine)
    named = named_shared_memory([process.pid for process in processes])
    next((p for p in processes if "Worker_TP1" in " ".join(p.cmdline())), processes[0]).kill()
    with pytest.raises(EngineGoneError, match=r"vLLM's process is gone: .*; its log is ") as gone:
        await flight
    assert "\n" not in str(gone.value)
    Path(str(gone.value).split("its log is ")[1]).unlink()
    with pytest.raises(EngineGoneError):
        await engine.generate(request(10, 5))
    engine.close()
    assert not psutil.wait_procs(processes, timeout=240)[1]
    assert not any(path.exists() for path in named)
