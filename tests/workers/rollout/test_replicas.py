"""Which replica serves a request: the one that knows the episode, unless it is much busier than another."""

import asyncio
from dataclasses import dataclass, field

from verl.protocol.generate import GenerateRequest, Generation, SamplingParams
from verl.workers.rollout.client import SLACK, ReplicaClient


@dataclass
class Held:
    """A replica that answers when it is let go."""

    served: list[str] = field(default_factory=list)
    load: int = 0
    open: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        self.served.append(request.request_id)
        self.load += 1
        await self.open.wait()
        self.load -= 1
        return []


def ask(client: ReplicaClient, name: str) -> asyncio.Task[list[Generation]]:
    return asyncio.create_task(client.generate(GenerateRequest((1,), SamplingParams(1), request_id=name)))


async def test_new_episodes_go_to_the_idlest_and_later_calls_where_the_episode_is_known() -> None:
    replicas = [Held(), Held(), Held()]
    client = ReplicaClient(replicas)
    tasks = []
    for episode in "abc":
        tasks.append(ask(client, f"train/1/{episode}/1.0"))
        await asyncio.sleep(0)
    for replica in replicas:
        replica.open.set()
    await asyncio.gather(*tasks)
    for episode in "cba":
        await ask(client, f"train/1/{episode}/1.1")
    assert [replica.served for replica in replicas] == [[f"train/1/{e}/1.0", f"train/1/{e}/1.1"] for e in "abc"]


async def test_an_episode_leaves_a_replica_that_is_much_busier() -> None:
    busy, idle = Held(), Held()
    client = ReplicaClient([busy, idle])
    tasks = [ask(client, f"a/{i}") for i in range(SLACK + 1)]
    await asyncio.sleep(0)
    assert (len(busy.served), len(idle.served)) == (SLACK + 1, 0)
    tasks.append(ask(client, "a/last"))
    await asyncio.sleep(0)
    assert idle.served == ["a/last"]
    busy.open.set(), idle.open.set()
    await asyncio.gather(*tasks)


async def test_requests_without_a_name_are_spread() -> None:
    replicas = [Held(), Held()]
    client = ReplicaClient(replicas)
    tasks = []
    for _ in range(4):
        tasks.append(ask(client, ""))
        await asyncio.sleep(0)
    assert [len(replica.served) for replica in replicas] == [2, 2]
    for replica in replicas:
        replica.open.set()
    await asyncio.gather(*tasks)
