"""Rows whose common tokens are run once, as a trie or as chains, have the scores and gradients of rows that
are run alone, for every loss and aggregation mode.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.families import FAMILIES
from tests.workers.engine.builders import (
    ADAPTERS,
    ONE_PIECE,
    full_loss,
    gradients,
    largest_difference,
    loss_settings,
    make_adapter_engine,
    make_engine,
    make_value_engine,
    save_value_model,
    value_gradients,
)
from verl.trainer.config import ActorConfig
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.trainer.ppo.core_algos.aggregation import LOSS_AGG_MODES
from verl.workers.engine import FSDPEngine, MicroBatchRule
from verl.workers.engine.attention import packed_attention, plan_branches
from verl.workers.engine.chains import longest_rows
from verl.workers.engine.layout import Sharing
from verl.workers.engine.sharding import local
from verl.workers.engine.trie import build_trie, count_run, logits_share, plan_tries, token_rows

BUILT_IN = sorted(name for name, fn in POLICY_LOSS_REGISTRY.items() if fn.__module__.startswith("verl."))
RULES = [
    ONE_PIECE,
    MicroBatchRule(30, 1, packed=True),
    MicroBatchRule(None, 2, packed=True),
    MicroBatchRule(40, 1, packed=False),
    MicroBatchRule(None, 1, packed=False),
]
# A call: the earlier call that it follows (0: none), whether as another reply to its prompt, tokens of the
# new message, and of the reply.
Call = tuple[int, bool, int, int]
CALLS = st.lists(
    st.tuples(st.integers(0, 8), st.booleans(), st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=8
)
# A conversation of four turns, a branch at the second, a reply sampled anew, a conversation without a new
# message, and a single call.
TREE: list[Call] = [
    (0, False, 3, 4), (1, False, 2, 5), (2, False, 3, 1), (3, False, 1, 4), (2, False, 2, 3), (2, True, 0, 5),
    (0, False, 2, 2),
    (7, False, 0, 3), (0, False, 4, 4),
]  # fmt: skip


def make_calls(calls: Sequence[Call], seed: int = 0, words: int = 200) -> dict[str, torch.Tensor]:
    """One row per call; of replies with three tokens or more the second is not the agent's. All that differs
    by row is random.
    """
    generator = torch.Generator().manual_seed(seed)
    sequences: list[tuple[list[int], list[int]]] = []
    for parent, again, new, length in calls:
        prompt, reply = sequences[(parent - 1) % len(sequences)] if parent and sequences else ([1], [])
        drawn = torch.randint(3, 3 + words, (new + length,), generator=generator).tolist()
        prompt = prompt if again else prompt + reply + drawn[:new]
        sequences.append((prompt, drawn[new:]))
    longest, width = max(len(prompt) for prompt, _ in sequences), max(len(reply) for _, reply in sequences)
    ids, attention = torch.zeros(2, len(calls), longest + width, dtype=torch.long)
    for row, (prompt, reply) in enumerate(sequences):
        columns = slice(longest - len(prompt), longest + len(reply))
        ids[row, columns], attention[row, columns] = torch.tensor(prompt + reply), 1
    mask = attention[:, longest:].clone()
    mask[mask.sum(dim=1) > 2, 1:2] = 0
    noise = torch.randn(5, len(calls), width, generator=generator)
    return {
        "input_ids": ids,
        "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
        "responses": ids[:, longest:].clone(),
        "response_mask": mask,
        "advantages": noise[0] * (torch.arange(len(calls)) % 4 != 3)[:, None],
        "old_log_probs": -5.5 + 0.3 * noise[1],
        "ref_log_prob": -5.5 + 0.3 * noise[2],
        "rollout_log_probs": -5.5 + 0.3 * noise[1] + 0.1 * noise[4],
        "rollout_is_weights": torch.rand(len(calls), width, generator=generator) * 2,
        "row_weights": torch.randint(1, 4, (len(calls),), generator=generator) / 2,
        "values": noise[3],
        "returns": noise[4],
    }


def tokens_of(rows: dict[str, torch.Tensor]) -> list[list[int]]:
    return [
        ids[real.bool()].tolist() for ids, real in zip(rows["input_ids"], rows["attention_mask"], strict=True)
    ]


@given(calls=CALLS, seed=st.integers(0, 1000), words=st.integers(1, 3))
def test_a_row_is_read_in_a_longest_row_that_begins_with_it(calls: list[Call], seed: int, words: int) -> None:
    rows = make_calls(calls, seed, words)
    tokens, found = tokens_of(rows), longest_rows(rows)
    for row, host in enumerate(found):
        assert tokens[host][: len(tokens[row])] == tokens[row] and found[host] == host
    whole = {
        tuple(own)
        for own in tokens
        if not any(len(other) > len(own) and other[: len(own)] == own for other in tokens)
    }
    assert sorted(whole) == sorted(tuple(tokens[host]) for host in set(found)), (
        "no more rows are run than needed, each once"
    )


def test_equal_tokens_at_other_positions_are_not_merged() -> None:
    rows = make_calls([(0, False, 2, 3), (1, False, 2, 3)])
    assert longest_rows(rows) == [1, 1]
    rows["position_ids"][0] += 1
    assert longest_rows(rows) == [0, 1]


def share(engine: FSDPEngine, sharing: Sharing) -> None:
    """Let an engine share tokens in a way that its check has found exact, or not at all."""
    engine.layout = replace(engine.layout, sharing=sharing)


def check(
    engine: FSDPEngine, rows: dict[str, torch.Tensor], rule: MicroBatchRule, *loss: object
) -> dict[str, float]:
    """Compare gradients and metrics of an engine, whose learning rate is 0, with every way of sharing;
    returns the metrics with the last.
    """
    results = []
    for sharing in ("none", "chains", "trie")[: 3 if rule.packed else 2]:
        share(engine, sharing)  # type: ignore[arg-type]
        results.append(gradients(engine, rows, rule, *loss))  # type: ignore[arg-type]
    single, expected = results[0]
    shared_of_none = expected.pop("actor/shared_tokens", 0.0)
    assert shared_of_none == 0.0
    scale = max(1.0, *(float(g.abs().max()) for g in single.values()))
    for found, metrics in results[1:]:
        assert largest_difference(single, found) < 1e-6 * scale
        shared = metrics.pop("actor/shared_tokens", 0.0)
        assert metrics == pytest.approx(expected, abs=1e-5 * scale)
        metrics["actor/shared_tokens"] = shared
    return results[-1][1]


def fill(engine: FSDPEngine, agent: str) -> None:
    """Give an adapter weights with which both parts of every layer have a gradient."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in engine.adapters[agent].parameters.values():
            local(parameter).normal_(std=0.1, generator=generator)


def test_rows_that_share_tokens_have_the_gradient_of_single_rows_in_every_aggregation_mode(
    tiny_model_dir: Path,
) -> None:
    """With the entropy bonus, the KL loss, correction weights and weights of rows, for any conversations; of
    a model, and of the adapter of each agent.
    """
    engines = {
        packed: make_engine(tiny_model_dir, lr=0.0, use_remove_padding=packed) for packed in (True, False)
    }
    on_adapters = {
        packed: make_adapter_engine(tiny_model_dir, lr=0.0, use_remove_padding=packed)
        for packed in (True, False)
    }
    for engine in on_adapters.values():
        for agent in ADAPTERS:
            fill(engine, agent)

    @settings(max_examples=30, deadline=None)
    @given(
        calls=CALLS,
        seed=st.integers(0, 1000),
        mode=st.sampled_from(LOSS_AGG_MODES),
        rule=st.sampled_from(RULES),
    )
    def same(calls: list[Call], seed: int, mode: str, rule: MicroBatchRule) -> None:
        check(engines[rule.packed], make_calls(calls, seed), rule, full_loss(mode))

    same()
    for (mode, agent), rule in zip(product(LOSS_AGG_MODES, ADAPTERS), cycle(RULES), strict=False):
        with on_adapters[rule.packed].using(agent):
            metrics = check(on_adapters[rule.packed], make_calls(TREE), rule, full_loss(mode))
        assert metrics["actor/shared_tokens"] > 0.2 and metrics["actor/grad_norm"] > 0.01


def test_rows_that_share_tokens_have_the_gradient_of_single_rows_for_every_loss(tiny_model_dir: Path) -> None:
    """Ratios of whole replies, selections of tokens over the mini-batch and corrections with the sampler's
    log-probs included.
    """
    rows, engine = make_calls(TREE), make_engine(tiny_model_dir, lr=0.0)
    scores = engine.score_all(rows, 0.8, ONE_PIECE)
    rows["old_log_probs"] = scores.log_probs + (rows["old_log_probs"] + 5.5)
    for name in BUILT_IN:
        for rule in RULES[:3]:
            metrics = check(engine, rows, rule, *loss_settings(name))
            assert metrics["actor/shared_tokens"] > 0.2, name
    check(engine, rows, ONE_PIECE, ActorConfig(skip_zero_advantages=True, grad_clip=1e9))


def test_the_model_runs_a_shared_beginning_once(tiny_model_dir: Path) -> None:
    rows, run = make_calls(TREE), list[int]()
    engine = make_engine(tiny_model_dir, lr=0.0)
    assert engine.layout.sharing == "trie"
    engine.model.register_forward_pre_hook(
        lambda _, args, inputs: run.append(inputs["input_ids"].numel()), with_kwargs=True
    )
    _, metrics = gradients(engine, rows)
    # of each row the tokens before its last scored one
    paths = [
        tuple(own[: int(mask.nonzero()[-1]) - len(mask)]) if mask.any() else () for own, mask in _paths(rows)
    ]
    distinct = {own[: length + 1] for own in paths for length in range(len(own))}
    assert run == [len(distinct)]
    assert metrics["actor/shared_tokens"] == pytest.approx(1 - len(distinct) / sum(map(len, paths)))
    share(engine, "chains")
    gradients(engine, rows)
    assert run[1] == int(rows["attention_mask"].sum(dim=1)[[3, 4, 5, 7, 8]].sum())


def _paths(rows: dict[str, torch.Tensor]) -> list[tuple[list[int], torch.Tensor]]:
    """The tokens of each row with the mask of its response, padding of the response left out."""
    width = rows["response_mask"].shape[1]
    lengths = rows["attention_mask"][:, -width:].sum(dim=1).tolist()
    return [
        (own, mask[:length])
        for own, mask, length in zip(tokens_of(rows), rows["response_mask"], lengths, strict=True)
    ]


@given(calls=CALLS, seed=st.integers(0, 1000), words=st.integers(1, 3), budget=st.integers(1, 60))
def test_a_trie_has_every_row_as_a_path_and_no_token_twice(
    calls: list[Call], seed: int, words: int, budget: int
) -> None:
    rows = make_calls(calls, seed, words)
    paths = token_rows(rows)
    trie = build_trie(rows)
    distinct = {path[: length + 1].tobytes() for path in paths for length in range(len(path))}
    assert len(trie.tokens) == len(distinct) == count_run(paths)
    scored = rows["responses"][rows["response_mask"].bool()]
    assert len(trie.before) == len(scored)
    counts = rows["response_mask"].sum(dim=1).tolist()
    micros = plan_tries(paths, counts, budget, 1, 0.0)
    assert sorted(row for micro in micros for row in micro) == list(range(len(paths)))
    for micro in micros:
        assert len(micro) == 1 or count_run([paths[row] for row in micro]) <= budget


def test_a_micro_batch_keeps_no_more_than_single_rows_would() -> None:
    """64 replies of 8 tokens to one prompt of 56: run once they are a few tokens, with as many logits."""
    rows = [
        np.array([[token, place] for place, token in enumerate([*range(56), row, *[5] * 6])])
        for row in range(64)
    ]
    assert len(plan_tries(rows, [8] * 64, 640, 1, 0.0)) == 2, (
        "56 tokens once, and 7 and an eighth of 56 for each"
    )
    for share in (0.25, 1.0, 4.0, 1000.0):
        most = 640 + share * 640 * 8 / 64  # of ten single rows
        micros = plan_tries(rows, [8] * 64, 640, 1, share)
        for micro in micros:
            run = count_run([rows[row] for row in micro]) + (len(micro) - 1) * 56 / 8
            assert run + share * 8 * len(micro) <= most
        assert len(micros[0]) >= 10
    assert [len(micro) for micro in micros] == [10] * 6 + [4], (
        "logits alone count: of single rows 10 have as many"
    )
    assert len(plan_tries(rows, [0] * 64, 640, 1, 4.0)) == 2


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_logits_are_weighed_by_the_shape_of_the_model(name: str) -> None:
    config = FAMILIES[name].config()
    small = logits_share(config)
    config.get_text_config().vocab_size *= 10
    assert 0 < small == pytest.approx(logits_share(config) / 10)


@pytest.mark.parametrize("window", [None, 1, 3, 7])
def test_attention_over_branches_is_that_of_each_path(window: int | None) -> None:
    """Of branches of branches, with any lengths, of tokens that several rows continue."""
    chance = random.Random(0)
    paths: list[list[int]] = []
    plan = []
    size = 0
    for own in (9, 6, 2, 1, 2, 5, 20, 17, 3, 3, 40, 1):
        host = chance.choice(paths) if size > 16 else []
        path = host[: chance.randint(1, len(host))] if host else []
        paths.append([*path, *range(size, size + own)])
        plan.append((np.array(path, dtype=np.int64), own))
        size += own
    packing = plan_branches([own for path, own in plan if not len(path)], plan[3:], torch.device("cpu"))
    torch.manual_seed(0)
    states = [torch.randn(1, heads, size, 8, requires_grad=True) for heads in (4, 2, 2)]
    packed, _ = packed_attention(torch.nn.Module(), *states, None, sliding_window=window, pack_plan=packing)
    alone = []
    for path, (_, own) in zip(paths, plan, strict=True):
        distance = torch.arange(len(path))[:, None] - torch.arange(len(path))[None]
        mask = (distance >= 0) & (distance < (window or size))
        parts = (part[:, :, path] for part in states)
        whole = torch.nn.functional.scaled_dot_product_attention(*parts, attn_mask=mask, enable_gqa=True)
        alone.append(whole.transpose(1, 2)[:, -own:])
    expected = torch.cat(alone, dim=1)
    assert torch.allclose(packed, expected, atol=1e-5)
    noise = torch.randn(packed.shape)
    gradients_of = [torch.autograd.grad((out * noise).sum(), states) for out in (packed, expected)]
    for found, wanted in zip(*gradients_of, strict=True):
        assert torch.allclose(found, wanted, atol=1e-5)


def test_scores_and_values_of_rows_that_share_tokens_are_those_of_single_rows(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    rows, values = make_calls(TREE), save_value_model(tiny_model_dir, tmp_path / "values")
    for packed, sharing in ((True, "trie"), (True, "chains"), (False, "chains")):
        engine = make_engine(tiny_model_dir, use_remove_padding=packed)
        for rule in (MicroBatchRule(40, 1, packed), MicroBatchRule(None, 2, packed)):
            scores = []
            for way in ("none", sharing):
                share(engine, way)
                scores.append(vars(engine.score_all(rows, 0.7, rule, True)).values())
            for one, other in zip(*scores, strict=True):
                assert (one - other).abs().max() < 1e-5
                assert torch.equal(one != 0, rows["response_mask"].bool())
            for mode in ("token-mean", "seq-mean-token-sum"):
                critics = [make_value_engine(values, use_remove_padding=packed) for _ in range(2)]
                share(critics[0], "none")
                share(critics[1], sharing)
                single, shared = (critic.value_all(rows, rule) for critic in critics)
                assert (single - shared).abs().max() < 1e-5
                (expected, _), (found, metrics) = (
                    value_gradients(critic, rows, rule, mode) for critic in critics
                )
                assert largest_difference(expected, found) < 1e-6 * max(
                    1.0, *(float(g.abs().max()) for g in expected.values())
                )
                assert metrics["critic/shared_tokens"] > 0.2
