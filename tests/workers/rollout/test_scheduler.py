"""Who is admitted when, and what is computed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.workers.rollout.conftest import request
from verl.workers.rollout.scheduler import MAX_WAIT, Copies, Prefill, Scheduler, prompt_bucket, rows_of
from verl.workers.rollout.waiting import PendingReply, Ticket


def replies(length: int, prompt_seed: int, n: int = 1, priority: int = 0) -> list[PendingReply]:
    ticket = Ticket(
        replace(request(length, 5, prompt_seed=prompt_seed, n=n), priority=priority), 5, [None] * n
    )
    return [PendingReply(ticket, index) for index in range(n)]


@pytest.mark.parametrize(
    ("length", "bucket"),
    [(1, 32), (32, 32), (33, 64), (100, 128), (129, 192), (193, 256), (257, 384), (513, 768)],
)
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
    assert not {source for source, slot, _ in again.batch if source != slot} & {
        slot for _, slot, _ in again.batch
    }


def test_an_incomplete_batch_waits_for_more_prompts_but_not_for_ever():
    scheduler = Scheduler(slots=4, token_budget=128)
    scheduler.add([reply for seed in range(4) for reply in replies(10, seed)])
    first = scheduler.admit()
    assert isinstance(first, Prefill) and len(first.batch) == 4
    scheduler.free(first.batch[0][0])
    scheduler.add(replies(10, 9))
    for _ in range(MAX_WAIT):
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


def drive(
    scheduler: Scheduler, arrivals: list[list[PendingReply]], ends: random.Random
) -> list[Prefill | Copies]:
    """Admit all; a tick brings some of the arrivals and ends some of the replies, both at random. Checks
    every admission.
    """
    log, running, holds = [], {}, {}
    arrivals = list(arrivals)
    while arrivals or scheduler.waiting or running:
        if arrivals and (ends.random() < 0.5 or not running):
            scheduler.add(arrivals.pop(0))
        while (admission := scheduler.admit()) is not None:
            log.append(admission)
            copies = [(s, t, r) for s, t, r in admission.batch] if isinstance(admission, Copies) else []
            assert all(holds[source] == reply.ticket.prompt_key for source, _, reply in copies)
            assert not {s for s, t, _ in copies if s != t} & {t for s, t, _ in copies if s != t}
            started = [(t, r) for _, t, r in copies] or list(admission.batch)
            assert not {slot for slot, _ in started} & set(running)
            running.update(started)
            holds.update({slot: reply.ticket.prompt_key for slot, reply in started})
        for slot in [slot for slot in running if ends.random() < 0.3]:
            del running[slot]
            scheduler.free(slot)
        scheduler.tick()
    return log


@pytest.mark.parametrize("slots", [1, 2, 3, 8, 20])
@pytest.mark.parametrize("seed", range(6))
def test_no_reply_begins_while_one_of_higher_priority_waits(slots, seed):
    """Prompts of three lengths, many of them shared by replies of both priorities; one ticket is
    withdrawn.
    """
    rng = random.Random(seed)
    lengths = {number: rng.choice([10, 50, 90]) for number in range(8)}
    drawn = [(rng.randrange(8), rng.randint(1, 5), -(rng.random() < 0.4)) for _ in range(40)]
    tickets = [replies(lengths[number], number, n, priority) for number, n, priority in drawn]
    scheduler = Scheduler(slots, token_budget=128)
    waiting = {id(reply): reply for ticket in tickets for reply in ticket}
    scheduler.add(reply for ticket in tickets for reply in ticket)
    for reply in scheduler.withdraw(tickets[0][0].ticket):
        del waiting[id(reply)]
    for admission in drive(scheduler, [], rng):
        began = [waiting.pop(id(entry[-1])).ticket.priority for entry in admission.batch]
        assert set(began) == {min([*began, *(reply.ticket.priority for reply in waiting.values())])}
    assert not waiting


@pytest.mark.parametrize("slots", [1, 2, 3, 8, 20])
@pytest.mark.parametrize("seed", range(6))
def test_however_few_slots_there_are_every_prompt_is_computed_once_and_every_reply_is_served(slots, seed):
    rng = random.Random(seed)
    tickets = [replies(rng.randint(1, 100), prompt_seed=number, n=rng.randint(1, 8)) for number in range(25)]
    log = drive(Scheduler(slots, token_budget=128), tickets, rng)
    computed = [
        reply.ticket.prompt_key
        for admission in log
        if isinstance(admission, Prefill)
        for _, reply in admission.batch
    ]
    assert len(computed) == len(set(computed)) == 25
    served = [entry[-1] for admission in log for entry in admission.batch]
    assert sorted(map(id, served)) == sorted(id(reply) for ticket in tickets for reply in ticket)


def test_the_last_slot_with_a_prompt_that_replies_wait_for_is_kept_for_them():
    scheduler = Scheduler(slots=2, token_budget=64)
    early, late = replies(10, 0, n=3), replies(10, 1, n=3)
    scheduler.add(early + late)
    first = scheduler.admit()
    assert isinstance(first, Prefill) and [reply for _, reply in first.batch] == [early[0], late[0]]
    scheduler.free(first.batch[1][0])
    again = scheduler.admit()
    assert isinstance(again, Copies) and again.batch == [(first.batch[1][0], first.batch[1][0], late[1])]


def test_a_slot_is_kept_for_its_prompt_unless_a_reply_of_higher_priority_needs_it():
    scheduler = Scheduler(slots=2, token_budget=64)
    scheduler.add(replies(10, 0) + replies(10, 1))
    assert isinstance(scheduler.admit(), Prefill)
    scheduler.free(0), scheduler.free(1)
    scheduler.add(kept := replies(10, 0, n=3))
    scheduler.add(first := replies(10, 2, n=2, priority=-1))
    assert [scheduler.admit().batch for _ in range(2)] == [[(1, first[0])], [(1, 0, first[1])]]
    scheduler.free(1)
    scheduler.add(later := replies(10, 3, priority=-1))
    assert scheduler.admit().batch == [(1, later[0])] and scheduler.waiting == len(kept)


def test_prompts_that_lost_their_slots_are_computed_again_in_order_of_arrival():
    scheduler = Scheduler(slots=1, token_budget=32)
    tickets = [replies(10, seed, n=2) for seed in range(3)]
    scheduler.add(tickets[0] + tickets[1])
    first = scheduler.admit()
    scheduler.add(tickets[2])
    scheduler.forget()
    order = [first.batch[0][1].ticket]
    scheduler.free(0)
    for _ in range(2):
        admission = scheduler.admit()
        assert isinstance(admission, Prefill)
        order.append(admission.batch[0][1].ticket)
        scheduler.forget()
        scheduler.free(0)
    assert [id(ticket) for ticket in order] == [id(tickets[n][0].ticket) for n in (0, 0, 1)]


def test_a_withdrawn_request_leaves_nothing_behind():
    scheduler = Scheduler(slots=1, token_budget=32)
    gone, stays = replies(10, 0, n=3), replies(40, 1, n=2)
    scheduler.add(gone + stays)
    assert scheduler.withdraw(gone[0].ticket) == gone and scheduler.withdraw(gone[0].ticket) == []
    assert scheduler.waiting == 2
    admission = scheduler.admit()
    assert isinstance(admission, Prefill) and admission.batch == [(0, stays[0])]
