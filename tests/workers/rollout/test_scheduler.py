"""Who is admitted when, and what is computed."""

from __future__ import annotations

import random
import sys
from dataclasses import replace

import pytest

from tests.workers.rollout.conftest import request
from verl.workers.rollout.base import EngineStats
from verl.workers.rollout.chunks import next_chunk
from verl.workers.rollout.free_slots import FreeSlots
from verl.workers.rollout.scheduler import MAX_WAIT, Admission, Scheduler
from verl.workers.rollout.waiting import ARRIVALS, PendingReply, Ticket


def replies(length: int, prompt_seed: int, n: int = 1, priority: int = 0) -> list[PendingReply]:
    ticket = Ticket(
        replace(request(length, 5, prompt_seed=prompt_seed, n=n), priority=priority), 5, [None] * n
    )
    return [PendingReply(ticket, index) for index in range(n)]


def admitted(scheduler: Scheduler) -> list[Admission]:
    return list(iter(scheduler.admit, None))


def passes(scheduler: Scheduler, decoding: int = 0) -> list[list[tuple[int, int, int]]]:
    """Compute all chunks; returns those of each pass as (slot, start, end)."""
    log = []
    while (work := scheduler.next_pass(decoding)) is not None:
        log.append([(chunk.slot, chunk.start, chunk.end) for chunk in work.chunks])
        scheduler.computed(work.chunks, [True] * len(work.chunks))
    return log


@pytest.mark.parametrize(
    ("length", "cut"),
    [
        (1, [(0, 1, 32)]),
        (32, [(0, 32, 32)]),
        (33, [(0, 33, 64)]),
        (64, [(0, 64, 64)]),
        (65, [(0, 64, 64), (64, 65, 32)]),
        (230, [(0, 64, 64), (64, 128, 64), (128, 192, 64), (192, 230, 64)]),
    ],
)
def test_a_text_is_cut_by_a_rule_of_its_own_length(length, cut):
    chunks, start = [], 0
    while start < length:
        chunks.append(next_chunk(0, range(length), start, None))
        start = chunks[-1].end
    assert [(chunk.start, chunk.end, chunk.width) for chunk in chunks] == cut
    assert [chunk.is_last for chunk in chunks] == [False] * (len(cut) - 1) + [True]
    assert [chunk.is_whole for chunk in chunks] == [end - start == 64 for start, end, _ in cut]


def test_one_prompt_is_computed_once_and_copied_for_its_other_replies():
    scheduler = Scheduler(slots=4, token_budget=128)
    scheduler.add(replies(10, 0, n=6))
    first = admitted(scheduler)
    assert [entry.slot for entry in first] == [0, 1, 2, 3] and {entry.source for entry in first} == {None}
    assert scheduler.waiting == 2 and scheduler.unstarted == 4
    work = scheduler.next_pass(0)
    assert [chunk.slot for chunk in work.chunks] == [0]
    (fill,) = scheduler.computed(work.chunks, [True])
    assert sorted(fill.followers) == [1, 2, 3] and scheduler.unstarted == 0
    scheduler.free(2)
    (third,) = admitted(scheduler)
    assert (third.source, third.slot, third.move) == (2, 2, None)


def test_a_copy_never_overwrites_a_prompt_that_is_read_in_the_same_admission():
    scheduler = Scheduler(slots=2, token_budget=64)
    scheduler.add(replies(10, 0) + replies(10, 1))
    slots = [entry.slot for entry in admitted(scheduler)]
    passes(scheduler)
    for slot in slots:
        scheduler.free(slot)
    scheduler.add(replies(10, 0) + replies(10, 1))
    again = admitted(scheduler)
    assert [entry.source for entry in again] == [entry.slot for entry in again]


def test_an_incomplete_pass_waits_for_more_chunks_but_not_for_ever():
    scheduler = Scheduler(slots=4, token_budget=128)
    scheduler.add([reply for seed in range(4) for reply in replies(10, seed)])
    assert len(admitted(scheduler)) == 4 and len(passes(scheduler, 4)) == 1
    scheduler.free(0)
    scheduler.add(replies(10, 9))
    assert len(admitted(scheduler)) == 1
    for _ in range(MAX_WAIT):
        assert scheduler.next_pass(3) is None
        scheduler.tick()
    assert len(scheduler.next_pass(3).chunks) == 1


def test_what_is_incomplete_holds_back_no_chunks_of_another_width_and_nothing_where_nothing_is_decoded():
    scheduler = Scheduler(slots=2, token_budget=128)
    scheduler.add(replies(10, 0) + replies(200, 1))
    admitted(scheduler)
    assert passes(scheduler, decoding=1) == [[(1, 0, 64), (1, 64, 128)]], "the rest of it waits for others"
    assert passes(scheduler) == [[(0, 0, 10)], [(1, 128, 192)], [(1, 192, 200)]]


def test_a_long_prompt_and_short_ones_share_the_passes():
    scheduler = Scheduler(slots=16, token_budget=128)
    scheduler.add(replies(400, 0))
    scheduler.add([reply for seed in range(1, 4) for reply in replies(50, seed)])
    admitted(scheduler)
    assert passes(scheduler)[:4] == [
        [(0, 0, 64), (1, 0, 50)],
        [(0, 64, 128), (2, 0, 50)],
        [(0, 128, 192), (3, 0, 50)],
        [(0, 192, 256), (0, 256, 320)],
    ]


def with_prefix(shared: int, own: int, seed: int, priority: int = 0) -> list[PendingReply]:
    """A reply whose prompt begins with `shared` tokens that are the same for all seeds."""
    one = request(own, 5, prompt_seed=seed)
    start = request(shared, 5, prompt_seed=1000).prompt_ids if shared else ()
    prompt = replace(one, prompt_ids=start + one.prompt_ids, priority=priority)
    return [PendingReply(Ticket(prompt, 5, [None]), 0)]


def test_a_common_beginning_is_computed_once_also_by_prompts_that_come_together():
    scheduler = Scheduler(slots=8, token_budget=128)
    for seed in range(3):
        scheduler.add(with_prefix(150, 60, seed))
    assert [entry.copies for entry in admitted(scheduler)] == [[], [], []]
    log, copies = [], []
    while (work := scheduler.next_pass(0)) is not None:
        log += [(chunk.slot, chunk.start) for chunk in work.chunks]
        copies += [(copy.target, copy.start, copy.end) for copy in work.copies]
        scheduler.computed(work.chunks, [True] * len(work.chunks))
    assert sorted(log) == [(0, 0), (0, 64), (0, 128), (0, 192), (1, 128), (1, 192), (2, 128), (2, 192)]
    assert sorted(copies) == [(1, 0, 128), (2, 0, 128)]
    scheduler.free(1)
    scheduler.add(with_prefix(150, 60, 9))
    (entry,) = admitted(scheduler)
    assert [(copy.start, copy.end) for copy in entry.copies] == [(0, 128)]


def test_a_longer_text_takes_over_the_free_slot_with_its_beginning_and_always_computes_a_token():
    scheduler = Scheduler(slots=4, token_budget=128)
    for length, expected in ((128, [(0, 0, 64), (0, 64, 128)]), (192, [(0, 128, 192)])):
        text = request(192, 5, prompt_seed=0).prompt_ids[:length]
        scheduler.add([PendingReply(Ticket(replace(request(1, 5), prompt_ids=text), 5, [None]), 0)])
        (entry,) = admitted(scheduler)
        assert (entry.slot, entry.move, entry.copies) == (0, None, [])
        assert [chunk for work in passes(scheduler) for chunk in work] == expected
        scheduler.free(0)
    # A whole beginning of what is held, which no slot holds as a prompt: its last chunk is computed.
    text = request(192, 5, prompt_seed=0).prompt_ids[:128]
    scheduler.add([PendingReply(Ticket(replace(request(1, 5), prompt_ids=text), 5, [None]), 0)])
    (entry,) = admitted(scheduler)
    assert [(copy.source, copy.start, copy.end) for copy in entry.copies] == [(0, 0, 64)] and entry.slot == 1
    assert passes(scheduler) == [[(1, 64, 128)]]


def test_the_least_recently_used_content_is_lost_and_replies_stay_in_low_slots():
    scheduler = Scheduler(slots=16, token_budget=128)
    for number in range(20):
        scheduler.add(with_prefix(0, 100, number))
        (entry,) = admitted(scheduler)
        assert entry.slot < 8, "a decode step of one reply has eight rows"
        passes(scheduler)
        scheduler.free(entry.slot)
    for number in range(19, -1, -1):
        known = scheduler._index.holder(
            scheduler._index.keys(request(100, 5, prompt_seed=number).prompt_ids, None)[0]
        )
        assert (known is not None) == (number >= 4), number


def test_keys_are_never_found_under_another_adapter_or_older_weights_and_texts_begin_again():
    scheduler = Scheduler(slots=8, token_budget=128)

    def ask(adapter: str | None, seed: int) -> Admission:
        (reply,) = with_prefix(100, 20, seed)
        changed = replace(reply.ticket.request, adapter=adapter)
        scheduler.add([PendingReply(Ticket(changed, 5, [None]), 0)])
        (entry,) = admitted(scheduler)
        return entry

    for seed, adapter in enumerate((None, "a", "b")):
        assert not ask(adapter, seed).copies
        passes(scheduler)
    assert all(ask(adapter, 10 + seed).copies for seed, adapter in enumerate((None, "a", "b")))
    scheduler.forget_adapter("a")
    assert [len(work) for work in passes(scheduler)] == [2, 2], "that of a has begun again"
    scheduler.forget()
    assert not ask("b", 30).copies
    scheduler.next_pass(0)


def test_texts_with_keys_that_are_no_numbers_are_found_by_nobody():
    scheduler = Scheduler(slots=8, token_budget=128)
    scheduler.add(with_prefix(200, 20, 0))
    admitted(scheduler)
    for finite in ([True, False], [True], [True]):
        work = scheduler.next_pass(0)
        scheduler.computed(work.chunks, finite)
    scheduler.free(0)
    scheduler.add(with_prefix(200, 20, 0) + with_prefix(200, 20, 1))
    assert [(entry.source, entry.copies) for entry in admitted(scheduler)] == [(None, [])] * 2


def test_a_reply_that_ends_while_others_wait_for_its_prompt_takes_nothing_from_them():
    scheduler = Scheduler(slots=4, token_budget=128)
    first, second = replies(100, 0), replies(100, 0)
    scheduler.add(first + second)
    assert [entry.slot for entry in admitted(scheduler)] == [0, 1]
    scheduler.free(0)
    work = scheduler.next_pass(0)
    (fill,) = scheduler.computed(work.chunks, [True] * len(work.chunks))
    assert fill.reply is None and fill.followers == {1: second[0]}
    scheduler.add(replies(100, 0))
    assert [entry.source for entry in admitted(scheduler)] == [0]
    scheduler.add(replies(100, 5, n=2))
    assert [entry.slot for entry in admitted(scheduler)] == [2, 3]
    scheduler.free(2)
    scheduler.free(3)
    assert scheduler.next_pass(0) is None, "nobody wants it any more"


def test_prompts_are_forgotten_when_the_weights_change():
    scheduler = Scheduler(slots=4, token_budget=128)
    scheduler.add(replies(10, 0))
    admitted(scheduler)
    assert len(passes(scheduler)) == 1
    scheduler.forget()
    scheduler.add(replies(10, 0))
    assert [entry.source for entry in admitted(scheduler)] == [None] and len(passes(scheduler)) == 1


def drive(
    scheduler: Scheduler,
    arrivals: list[list[PendingReply]],
    ends: random.Random,
    aborts: bool = False,
    turns: int = 0,
) -> tuple[list[Admission], list[tuple[int, ...]]]:
    """Admit all; a tick computes a pass, brings some of the arrivals and ends some of the replies,
    all at random, with `aborts` also of those that wait for their prompts. The keys of some replies
    stay, and `turns` times a prompt comes that goes on behind one.

    Checks every admission and every chunk against what slots hold, and returns the admissions and
    the prompts computed.
    """
    log, running, texts = [], {}, dict[int, tuple[int, ...]]()
    started = set[int]()
    computed, arrivals = [], list(arrivals)
    while arrivals or scheduler.waiting or running:
        if arrivals and (ends.random() < 0.5 or not running):
            scheduler.add(arrivals.pop(0))
        while (entry := scheduler.admit()) is not None:
            log.append(entry)
            prompt = entry.reply.ticket.request.prompt_ids
            if entry.move is not None:
                assert entry.move.target not in running and entry.move.source not in running
                texts[entry.move.target] = texts[entry.move.source][: entry.move.length]
            assert entry.slot not in running
            running[entry.slot] = entry.reply
            if entry.source is not None:
                assert texts[entry.source][: len(prompt)] == prompt
                texts[entry.slot] = prompt
                started.add(entry.slot)
            copy_all(entry.copies, texts, prompt)
        while (work := scheduler.next_pass(len(started))) is not None:
            copy_all(work.copies, texts, None)
            for chunk in work.chunks:
                assert texts.get(chunk.slot, ())[: chunk.start] == chunk.text[: chunk.start]
                texts[chunk.slot] = tuple(chunk.text[: chunk.end])
            for fill in scheduler.computed(work.chunks, [True] * len(work.chunks)):
                computed.append(fill.prompt.key)
                texts.update(dict.fromkeys(fill.followers, fill.text))
                started |= set(fill.followers) | ({fill.slot} if fill.reply is not None else set())
        for slot in [slot for slot in running if (aborts or slot in started) and ends.random() < 0.3]:
            reply = running.pop(slot)
            if slot in started and turns and ends.random() < 0.7:
                more = tuple(ends.randrange(1000) for _ in range(ends.randint(1, 150)))
                texts[slot] = reply.ticket.request.prompt_ids + more
                scheduler.free(slot, texts[slot])
                turns -= 1
                next_prompt = texts[slot] + more[: ends.randint(1, 40)]
                later = replace(reply.ticket.request, prompt_ids=next_prompt)
                arrivals.insert(0, [PendingReply(Ticket(later, 5, [None]), 0)])
            else:
                scheduler.free(slot)
            started.discard(slot)
        scheduler.tick()
    return log, computed


def copy_all(copies, texts, prompt) -> None:
    for copy in copies:
        assert len(texts[copy.source]) >= copy.end
        assert prompt is None or texts[copy.source][: copy.end] == prompt[: copy.end]
        texts[copy.target] = texts[copy.source][: copy.end]


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
    for entry in drive(scheduler, [], rng)[0]:
        began = waiting.pop(id(entry.reply)).ticket.priority
        assert began == min([began, *(reply.ticket.priority for reply in waiting.values())])
    assert not waiting


@pytest.mark.parametrize("slots", [1, 2, 3, 8, 20])
@pytest.mark.parametrize("seed", range(6))
def test_however_few_slots_there_are_every_prompt_is_computed_once_and_every_reply_is_served(slots, seed):
    rng = random.Random(seed)
    tickets = [replies(rng.randint(1, 100), prompt_seed=number, n=rng.randint(1, 8)) for number in range(25)]
    log, computed = drive(Scheduler(slots, token_budget=128), tickets, rng)
    assert len(computed) == len(set(computed)) == 25
    served = [entry.reply for entry in log]
    assert sorted(map(id, served)) == sorted(id(reply) for ticket in tickets for reply in ticket)


@pytest.mark.parametrize("slots", [1, 2, 9, 20])
@pytest.mark.parametrize("caching", [True, False])
def test_slots_hold_what_is_read_from_them_under_shared_beginnings_and_aborts(slots, caching):
    """`drive` compares what every copy and chunk reads with the tokens that the slot holds."""
    for seed in range(8):
        rng = random.Random(seed)
        tickets = [
            with_prefix(
                rng.choice([0, 64, 100, 300]), rng.randint(1, 200), rng.randrange(12), -rng.randrange(2)
            )
            for _ in range(40)
        ]
        log, _ = drive(Scheduler(slots, 128, caching), tickets, rng, aborts=True)
        assert len(log) == 40
        assert caching or not any(entry.copies or entry.move for entry in log)


@pytest.mark.parametrize("slots", [1, 2, 9])
@pytest.mark.parametrize("block", [2, 8])
def test_slots_hold_what_is_read_from_them_where_replies_leave_their_keys(slots, block):
    """As above, with next turns; siblings begin again from a prompt behind which a reply is kept."""
    for seed in range(8):
        rng = random.Random(seed)
        tickets = [with_prefix(rng.choice([0, 64, 100]), 40 + seed % 30, seed % 5) for seed in range(20)]
        stats = EngineStats()
        scheduler = Scheduler(slots, 128, stats=stats, row_block=block)
        log, _ = drive(scheduler, tickets, rng, aborts=seed % 2 == 1, turns=20)
        assert len(log) > 24, "20 prompts and some next turns"
        assert slots < 9 or stats.prompt_tokens_copied > stats.prompt_tokens_computed


def test_a_next_turn_computes_what_comes_behind_the_reply_alone_and_in_its_slot():
    scheduler = Scheduler(slots=4, token_budget=128, row_block=2)
    scheduler.add(first := replies(100, 0))
    (entry,) = admitted(scheduler)
    passes(scheduler)
    prompt = first[0].ticket.request.prompt_ids
    text = (*prompt, *range(90))
    scheduler.free(entry.slot, text)
    longer = replace(first[0].ticket.request, prompt_ids=(*text, 7, 8, 9))
    scheduler.add([PendingReply(Ticket(longer, 5, [None]), 0)])
    (second,) = admitted(scheduler)
    assert second.slot == entry.slot and passes(scheduler) == [
        [(entry.slot, 128, 192)],
        [(entry.slot, 192, 193)],
    ]
    # Another reply to the first prompt leaves what the second turn has.
    scheduler.free(second.slot)
    scheduler.add(replies(100, 0))
    (third,) = admitted(scheduler)
    assert third.slot != second.slot
    assert [(copy.source, copy.start, copy.end) for copy in third.copies] == [(second.slot, 0, 64)]


def test_a_prompt_that_is_asked_for_again_and_again_keeps_no_other_from_the_slots():
    scheduler = Scheduler(slots=1, token_budget=32)
    scheduler.add(replies(10, 0))
    (entry,) = admitted(scheduler)
    passes(scheduler)
    scheduler.add(other := replies(10, 1))
    before = 0
    while entry.reply is not other[0]:
        before += 1
        scheduler.add(replies(10, 0))
        scheduler.free(entry.slot)
        (entry,) = admitted(scheduler)
        assert before <= ARRIVALS, "it starves"
    assert before > 8, "prompts that need not be computed come first for a while"


def test_the_last_slot_with_a_prompt_that_replies_wait_for_is_kept_for_them():
    scheduler = Scheduler(slots=2, token_budget=64)
    early, late = replies(10, 0), replies(10, 1)
    scheduler.add(early + late)
    assert [entry.reply for entry in admitted(scheduler)] == [early[0], late[0]]
    passes(scheduler)
    more_early, more_late = replies(10, 0, n=2), replies(10, 1, n=2)
    scheduler.add(more_early + more_late)
    scheduler.free(1)
    (again,) = admitted(scheduler)
    assert (again.source, again.slot, again.reply) == (1, 1, more_late[0])


def test_a_slot_is_kept_for_its_prompt_unless_a_reply_of_higher_priority_needs_it():
    scheduler = Scheduler(slots=2, token_budget=64)
    scheduler.add(replies(10, 0) + replies(10, 1))
    assert len(admitted(scheduler)) == 2
    passes(scheduler)
    scheduler.free(0), scheduler.free(1)
    scheduler.add(kept := replies(10, 0, n=3))
    scheduler.add(first := replies(10, 2, n=2, priority=-1))
    assert [(entry.slot, entry.reply) for entry in admitted(scheduler)] == [(1, first[0]), (0, first[1])]
    passes(scheduler)
    scheduler.free(1)
    scheduler.add(later := replies(10, 3, priority=-1))
    assert [(entry.slot, entry.reply) for entry in admitted(scheduler)] == [(1, later[0])]
    assert scheduler.waiting == len(kept)


def test_prompts_that_lost_their_slots_are_computed_again_in_order_of_arrival():
    scheduler = Scheduler(slots=1, token_budget=32)
    tickets = [replies(10, seed, n=2) for seed in range(3)]
    scheduler.add(tickets[0] + tickets[1])
    (first,) = admitted(scheduler)
    passes(scheduler)
    scheduler.add(tickets[2])
    scheduler.forget()
    order = [first.reply.ticket]
    scheduler.free(0)
    for _ in range(2):
        (entry,) = admitted(scheduler)
        assert entry.source is None and passes(scheduler) == [[(0, 0, 10)]]
        order.append(entry.reply.ticket)
        scheduler.forget()
        scheduler.free(0)
    assert [id(ticket) for ticket in order] == [id(tickets[n][0].ticket) for n in (0, 0, 1)]


def test_a_withdrawn_request_leaves_nothing_behind():
    scheduler = Scheduler(slots=1, token_budget=32)
    gone, stays = replies(10, 0, n=3), replies(40, 1, n=2)
    scheduler.add(gone + stays)
    assert scheduler.withdraw(gone[0].ticket) == gone and scheduler.withdraw(gone[0].ticket) == []
    assert scheduler.waiting == 2
    (entry,) = admitted(scheduler)
    assert (entry.slot, entry.source, entry.reply) == (0, None, stays[0])


def steps_per_reply(slots: int) -> float:
    """Lines run by the scheduler's own files per reply, with four prompts waiting per slot, in
    groups of two with a common beginning.
    """
    tickets = [with_prefix(70 if number % 2 else 0, 30, number // 2) for number in range(4 * slots)]
    lines = 0

    def trace(frame, event, _):
        nonlocal lines
        lines += event == "line"
        return trace if "workers/rollout" in frame.f_code.co_filename else None

    scheduler, ends, running = Scheduler(slots, 128), random.Random(0), set[int]()
    sys.settrace(trace)
    try:
        scheduler.add(ticket[0] for ticket in tickets)
        while scheduler.waiting or running:
            running |= {entry.slot for entry in iter(scheduler.admit, None)}
            while (work := scheduler.next_pass(0)) is not None:
                scheduler.computed(work.chunks, [True] * len(work.chunks))
            scheduler.tick()
            for slot in sorted(running, key=lambda _: ends.random())[: max(1, len(running) // 2)]:
                running.remove(slot)
                scheduler.free(slot)
    finally:
        sys.settrace(None)
    return lines / len(tickets)


def test_the_work_for_a_reply_does_not_grow_with_slots_and_waiting_replies():
    assert steps_per_reply(256) < 1.2 * steps_per_reply(64)


def test_free_slots_that_are_used_again_and_again_keep_no_entry_for_each_use() -> None:
    free = FreeSlots(8, 8)
    for _ in range(3000):
        free.remove(0)
        free.add(0)
        free.lowest_block()
    assert len(free._by_use) < 200 and len(free._by_number) < 200
