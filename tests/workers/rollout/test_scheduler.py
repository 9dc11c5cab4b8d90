"""Who is admitted when, and what is computed."""

from __future__ import annotations

import pytest

from tests.workers.rollout.conftest import request
from verl.workers.rollout.scheduler import PATIENCE, Copies, Prefill, Reply, Scheduler, Ticket, prompt_bucket, rows_of


def replies(length: int, prompt_seed: int, n: int = 1) -> list[Reply]:
    ticket = Ticket(request(length, 5, prompt_seed=prompt_seed, n=n), 5, [None] * n)
    return [Reply(ticket, index) for index in range(n)]


@pytest.mark.parametrize(("length", "bucket"), [(1, 32), (32, 32), (33, 64), (100, 128), (129, 192), (193, 256), (257, 384), (513, 768)])
def test_a_prompt_is_padded_by_a_rule_of_its_own_length(length, bucket):
    assert prompt_bucket(length) == bucket
    assert bucket >= length and rows_of(bucket, 128) >= 1


def test_one_prompt_is_computed_once_and_copied_for_its_other_replies():
    scheduler = Scheduler(slots=4, token_budget=128)
    scheduler.add(replies(10, 0, n=6))
    first, second = scheduler.admit(), scheduler.admit()
    assert isinstance(first, Prefill) and len(first.batch) == 1 and first.rows == 4
    assert isinstance(second, Copies) and [source for source, _, _ in second.batch] == [first.batch[0][0]] * 3
    assert scheduler.admit() is None and scheduler.waiting == 2
    scheduler.free(first.batch[0][0])
    third = scheduler.admit()
    assert isinstance(third, Copies) and third.batch[0][:2] == (first.batch[0][0],) * 2


def test_a_copy_never_overwrites_a_prompt_that_is_read_in_the_same_admission():
    scheduler = Scheduler(slots=2, token_budget=64)
    scheduler.add(replies(10, 0) + replies(10, 1))
    first = scheduler.admit()
    assert isinstance(first, Prefill)
    for slot, _ in first.batch:
        scheduler.free(slot)
    scheduler.add(replies(10, 0) + replies(10, 1))
    again = scheduler.admit()
    assert isinstance(again, Copies)
    assert not {source for source, slot, _ in again.batch if source != slot} & {slot for _, slot, _ in again.batch}


def test_a_batch_that_is_not_full_waits_for_company_but_not_for_ever():
    scheduler = Scheduler(slots=4, token_budget=128)
    scheduler.add([reply for seed in range(4) for reply in replies(10, seed)])
    first = scheduler.admit()
    assert isinstance(first, Prefill) and len(first.batch) == 4
    scheduler.free(first.batch[0][0])
    scheduler.add(replies(10, 9))
    for _ in range(PATIENCE):
        assert scheduler.admit() is None
        scheduler.tick()
    assert isinstance(scheduler.admit(), Prefill)


def test_prompts_are_forgotten_when_the_weights_change():
    scheduler = Scheduler(slots=4, token_budget=128)
    scheduler.add(replies(10, 0))
    assert isinstance(scheduler.admit(), Prefill)
    scheduler.forget()
    scheduler.add(replies(10, 0))
    assert isinstance(scheduler.admit(), Prefill)
