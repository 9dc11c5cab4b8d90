"""Rows that are read in longer rows have the scores and gradients of rows that are run alone, for every loss
and aggregation mode.
"""

from collections.abc import Sequence
from itertools import cycle, product
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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
from verl.workers.engine.merging import longest_rows
from verl.workers.engine.sharding import local

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


def check(
    engine: FSDPEngine, rows: dict[str, torch.Tensor], rule: MicroBatchRule, *loss: object
) -> dict[str, float]:
    """Compare gradients and metrics of an engine, whose learning rate is 0, with and without merging; returns
    the metrics with it.
    """
    found = []
    for merge_rows in (False, True):
        engine.merge_rows = merge_rows
        found.append(gradients(engine, rows, rule, *loss))  # type: ignore[arg-type]
    (single, expected), (merged, metrics) = found
    scale = max(1.0, *(float(g.abs().max()) for g in single.values()))
    assert largest_difference(single, merged) < 1e-6 * scale
    assert {name: value for name, value in metrics.items() if "/merged_" not in name} == pytest.approx(
        expected, abs=1e-5 * scale
    )
    return metrics


def fill(engine: FSDPEngine, agent: str) -> None:
    """Give an adapter weights with which both parts of every layer have a gradient."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in engine.adapters[agent].parameters.values():
            local(parameter).normal_(std=0.1, generator=generator)


def test_merged_rows_have_the_gradient_of_single_rows_in_every_aggregation_mode(tiny_model_dir: Path) -> None:
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
        assert metrics["actor/merged_rows"] > 0.3 and metrics["actor/grad_norm"] > 0.01


def test_merged_rows_have_the_gradient_of_single_rows_for_every_loss(tiny_model_dir: Path) -> None:
    """Ratios of whole replies, selections of tokens over the mini-batch and corrections with the sampler's
    log-probs included.
    """
    rows, engine = make_calls(TREE), make_engine(tiny_model_dir, lr=0.0)
    scores = engine.score_all(rows, 0.8, ONE_PIECE)
    rows["old_log_probs"] = scores.log_probs + (rows["old_log_probs"] + 5.5)
    for name in BUILT_IN:
        for rule in RULES[:3]:
            metrics = check(engine, rows, rule, *loss_settings(name))
            assert metrics["actor/merged_rows"] > 0.3, name
    check(engine, rows, ONE_PIECE, ActorConfig(skip_zero_advantages=True, grad_clip=1e9))


def test_the_model_runs_a_shared_beginning_once(tiny_model_dir: Path) -> None:
    rows, run = make_calls(TREE), list[int]()
    engine = make_engine(tiny_model_dir, lr=0.0, merge_rows=True)
    engine.model.register_forward_pre_hook(
        lambda _, args, inputs: run.append(inputs["input_ids"].numel()), with_kwargs=True
    )
    _, metrics = gradients(engine, rows)
    lengths = rows["attention_mask"].sum(dim=1)
    leaves = int(lengths[[3, 4, 5, 7, 8]].sum())
    assert run == [leaves]
    assert metrics["actor/merged_rows"] == pytest.approx(4 / 9)
    assert metrics["actor/merged_tokens"] == pytest.approx(1 - leaves / int(lengths.sum()))


def test_scores_and_values_of_merged_rows_are_those_of_single_rows(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    rows, values = make_calls(TREE), save_value_model(tiny_model_dir, tmp_path / "values")
    for packed in (True, False):
        single, merged = (
            make_engine(tiny_model_dir, use_remove_padding=packed, merge_rows=merge)
            for merge in (False, True)
        )
        for rule in (MicroBatchRule(40, 1, packed), MicroBatchRule(None, 2, packed)):
            for one, other in zip(
                *(vars(engine.score_all(rows, 0.7, rule, True)).values() for engine in (single, merged)),
                strict=True,
            ):
                assert (one - other).abs().max() < 1e-5 and torch.equal(
                    one != 0, rows["response_mask"].bool()
                )
            for mode in ("token-mean", "seq-mean-token-sum"):
                critics = [
                    make_value_engine(values, use_remove_padding=packed, merge_rows=merge)
                    for merge in (False, True)
                ]
                assert (
                    critics[0].value_all(rows, rule) - critics[1].value_all(rows, rule)
                ).abs().max() < 1e-5
                (expected, _), (found, metrics) = (
                    value_gradients(critic, rows, rule, mode) for critic in critics
                )
                assert largest_difference(expected, found) < 1e-6 * max(
                    1.0, *(float(g.abs().max()) for g in expected.values())
                )
                assert metrics["critic/merged_tokens"] > 0.3
