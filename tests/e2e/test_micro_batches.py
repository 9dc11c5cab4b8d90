"""Every key of a micro-batch's size, of the team and of one agent, reaches what the engine of that agent
runs.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.e2e.conftest import Run
from verl.trainer.ppo.timeline import Timeline
from verl.workers.engine.fsdp_engine import FSDPEngine
from verl.workers.engine.micro_batch import MicroBatchRule

MODEL, OWN = "actor_rollout_ref", "agent.agent_specific_parameters"
PASSES = ("update_actor", "compute_log_prob", "compute_ref_log_prob")
DYNAMIC = ("actor.use_dynamic_bsz", "rollout.log_prob_use_dynamic_bsz", "ref.log_prob_use_dynamic_bsz")
ROWS = (
    "actor.ppo_micro_batch_size_per_gpu",
    "rollout.log_prob_micro_batch_size_per_gpu",
    "ref.log_prob_micro_batch_size_per_gpu",
)
TOKENS = (
    "actor.ppo_max_token_len_per_gpu",
    "rollout.log_prob_max_token_len_per_gpu",
    "ref.log_prob_max_token_len_per_gpu",
)
TWO_PASSES = {
    f"{MODEL}.actor.ppo_epochs": 2,
    f"{MODEL}.actor.kl_loss_coef": 0.001,
    "data.val_files": "[]",
    "trainer.total_training_steps": 1,
}


@dataclass(frozen=True)
class Cut:
    """What an engine was told, and the tokens of every row of every micro-batch that it made."""

    rule: MicroBatchRule
    lengths: list[list[int]]

    def keeps_its_rule(self) -> bool:
        """By rows, all but the last are full; by tokens, none is over the budget but a row alone."""
        if self.rule.token_budget is None:
            return (
                all(len(rows) == self.rule.rows for rows in self.lengths[:-1])
                and len(self.lengths[-1]) <= self.rule.rows
            )
        return all(len(rows) == 1 or sum(rows) <= self.rule.token_budget for rows in self.lengths)


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> Mapping[tuple[str, str], list[Cut]]:
    """What the engines of a run cut, by worker group and pass; filled while it runs."""
    found: dict[tuple[str, str], list[Cut]] = defaultdict(list)
    now: list[tuple[str, str]] = []
    span, micro_batches = Timeline.span, FSDPEngine.micro_batches

    @contextmanager
    def noted(self: Timeline, wg_id: str, call: str) -> Iterator[None]:
        now.append((wg_id, call))
        with span(self, wg_id, call):
            yield
        now.pop()

    def cut(self: FSDPEngine, rows: Any, rule: MicroBatchRule) -> Any:
        micros = micro_batches(self, rows, rule)
        found[now[-1]].append(Cut(rule, [self.lengths(micro) for micro in micros]))
        return micros

    monkeypatch.setattr(Timeline, "span", noted)
    monkeypatch.setattr(FSDPEngine, "micro_batches", cut)
    return found


def everyones(names: tuple[str, ...], *values: Any) -> dict[str, Any]:
    return {f"{MODEL}.{name}": value for name, value in zip(names, values, strict=True)}


def askers(names: tuple[str, ...], *values: Any) -> dict[str, Any]:
    return {f"{OWN}.{name}": f"[{value},null]" for name, value in zip(names, values, strict=True)}


def verifiers(names: tuple[str, ...], *values: Any) -> dict[str, Any]:
    return {f"{OWN}.{name}": f"[null,{value}]" for name, value in zip(names, values, strict=True)}


@pytest.mark.parametrize(
    ("changes", "asker", "verifier"),
    [
        (
            everyones(DYNAMIC, *[False] * 3) | everyones(ROWS, 1, 2, 3) | verifiers(ROWS, 4, 5, 2),
            (1, 2, 3),
            (4, 5, 2),
        ),
        (
            everyones(TOKENS, 61, 122, 183) | verifiers(TOKENS, 124, 185, 246),
            ("61", "122", "183"),
            ("124", "185", "246"),
        ),
        (
            askers(TOKENS, 61, 122, 183) | verifiers(DYNAMIC, *["false"] * 3) | verifiers(ROWS, 2, 3, 1),
            ("61", "122", "183"),
            (2, 3, 1),
        ),
    ],
    ids=["rows", "tokens", "tokens of one and rows of the other"],
)
def test_sizes_reach_the_micro_batches_of_each_agent(
    train: Run,
    cuts: Mapping[tuple[str, str], list[Cut]],
    changes: dict[str, Any],
    asker: tuple[Any, ...],
    verifier: tuple[Any, ...],
) -> None:
    """Numbers are rows, and digits in quotes are tokens."""
    train(TWO_PASSES | changes | {"actor_rollout_ref.actor.use_prefix_grouper": False})
    for agent, sizes in (("asker", asker), ("verifier_agent", verifier)):
        for call, size in zip(PASSES, sizes, strict=True):
            made = cuts[agent, call]
            assert made, (agent, call)
            for cut in made:
                told = cut.rule.rows if cut.rule.token_budget is None else str(cut.rule.token_budget)
                assert told == size, (agent, call)
                assert len(cut.lengths) > 1 and sum(map(len, cut.lengths)) == 6
                assert cut.keeps_its_rule()
