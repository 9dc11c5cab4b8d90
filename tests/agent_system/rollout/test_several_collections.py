"""Several collections of one step, and greedy ones: names, seeds, worlds, and how they become one."""

from __future__ import annotations

from typing import Any

from verl.protocol.generate import GREEDY_SUFFIX

from .test_collector import noisy_script


async def test_each_attempt_of_a_step_has_groups_and_seeds_of_its_own(
    make_collector, scripted, tasks
) -> None:
    engine = scripted(noisy_script)
    collector = make_collector(engine)
    first = await collector.collect(tasks, 2, step=3)
    second = await collector.collect(tasks, 2, step=3, attempt=1)
    assert not {e.uid for e in first.episodes} & {e.uid for e in second.episodes}
    seeds = [request.seed for request in engine.requests]
    assert len(set(seeds)) == len(seeds)
    again = await make_collector(scripted(noisy_script)).collect(tasks, 2, step=3, attempt=1)
    assert [e.to_json() for e in again.episodes] == [e.to_json() for e in second.episodes]


async def test_joined_collections_have_all_rows_episodes_and_numbers(make_collector, scripted, tasks) -> None:
    collector = make_collector(scripted(noisy_script))
    parts = [await collector.collect(tasks, 2, step=3, attempt=i) for i in range(2)]
    whole = collector.join(parts)
    assert list(whole.batch.non_tensor_batch["traj_uid"]) == [
        t for p in parts for t in p.batch.non_tensor_batch["traj_uid"]
    ]
    assert list(whole.batch.non_tensor_batch["reward"]) == [
        r for p in parts for r in p.batch.non_tensor_batch["reward"]
    ]
    assert int(whole.batch.batch["response_mask"].sum()) == sum(
        int(p.batch.batch["response_mask"].sum()) for p in parts
    )
    assert len(whole.episodes) == whole.metrics["episode/count"] == 2 * len(parts[0].episodes)


async def test_a_greedy_episode_takes_the_likeliest_tokens_in_the_world_of_its_group(
    make_collector, scripted, tasks
) -> None:
    engine = scripted()
    collector = make_collector(engine)
    worlds: list[Any] = []
    make = collector.env.cls.__init__
    collector.env.cls.__init__ = lambda self, config, seed=0: (
        worlds.append(seed),
        make(self, config, seed=seed),
    )[1]
    try:
        sampled = await collector.collect(tasks, 1, step=1)
        before = len(engine.requests)
        greedy = await collector.collect(tasks, 1, step=1, greedy=True)
    finally:
        collector.env.cls.__init__ = make
    assert [e.uid for e in greedy.episodes] == [e.uid + GREEDY_SUFFIX for e in sampled.episodes]
    assert worlds[: len(tasks)] == worlds[len(tasks) :]
    assert all(request.sampling.temperature > 0 for request in engine.requests[:before])
    assert all(
        request.sampling.temperature == 0 and request.sampling.top_p == 1
        for request in engine.requests[before:]
    )
