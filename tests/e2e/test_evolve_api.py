"""`verl-mas evolve` with models that write edits, of the run and behind a server, and with an agent behind a
server whose replies no kill has paid for twice.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chat_server import ChatServer, completion
from tests.e2e.test_evolve import FILES, ended, started
from tests.e2e.test_evolve import inputs as inputs

# the first plays a search three times, with kills
pytestmark = [pytest.mark.spread, pytest.mark.timeout(900)]
LETTERS = "ABCDEFGH"
EDITS = [
    '[{"op": "vote", "at": "do[0]", "n": 3}]',
    'First I think. [{"op": "check", "at": "do[0]", "who": "Checker", "n": 2, "passes": "right"}]',
    '[{"op": "vote", "at": "do[7]", "n": 3}]',
    '[{"op": "vote", "at": "do[0]", "n": 5}]',
    "I cannot.",
]


def asks_for_edits(body: dict[str, Any]) -> bool:
    return str(body["messages"][0]["content"]).startswith("Improve a team of agents.")


def answer(body: dict[str, Any]) -> Any:
    """Letters of the Solver, and edits of the proposer; both follow from the request."""
    time.sleep(0.002)
    if asks_for_edits(body):
        return completion(EDITS[body["seed"] % len(EDITS)])
    return completion(LETTERS[body["seed"] % 3])


@pytest.fixture
def server() -> Iterator[ChatServer]:
    server = ChatServer(answer)
    yield server
    server.stop()


def behind(server: ChatServer, *agents: str) -> list[str]:
    return [
        key
        for agent in agents
        for key in (
            f"agent.api.{agent}.base_url={server.url}",
            f"agent.api.{agent}.model=big",
            f"agent.api.{agent}.max_concurrent_requests=4",
        )
    ]


def paid(server: ChatServer) -> Counter[str]:
    """How often each request was made, but for the one that checks the server."""
    bodies = [body for body in server.bodies if body["messages"][0]["content"] != "Say OK."]
    return Counter(json.dumps(body, sort_keys=True) for body in bodies)


def test_a_resumed_search_asks_a_server_for_nothing_that_it_has(
    inputs: list[str], tmp_path: Path, forked_python: str, server: ChatServer
) -> None:
    keys = [
        *inputs,
        *behind(server, "solver", "writer"),
        "agent.agent_ids=[Writer]",
        "evolve.proposer=Writer",
    ]
    status, _, error = ended(tmp_path / "whole", forked_python, *keys)
    assert status == 0, error
    lines = [json.loads(x) for x in (tmp_path / "whole/evolve/ledger.jsonl").read_text().splitlines()]
    proposals = [line for line in lines if line["event"] == "proposal"]
    assert proposals and all(line["tokens"] == 3 * len(line["replies"]) for line in proposals)
    questions = [body for body in server.bodies if asks_for_edits(body)]
    assert len(questions) == sum(len(line["replies"]) for line in proposals)
    assert any("It is refused" in q["messages"][0]["content"] for q in questions)
    played = [line for line in lines if line["event"] == "play"]
    assert all(line["engine_tokens"] > 0 for line in played[:1])
    whole = paid(server)
    assert set(whole.values()) == {1}
    requests = sum(whole.values())
    assert sum(line.get("engine_calls", 0) for line in lines) >= requests - len(questions)

    server.bodies.clear()
    kills = 3
    for number in range(kills):
        before = len(server.bodies)
        process = started(tmp_path / "killed", forked_python, *keys)
        # in the middle of a batch: some of its replies have arrived, some are on their way
        while process.poll() is None and len(server.bodies) < before + 25 + 20 * number:
            time.sleep(0.002)
        process.kill()
        process.communicate()
    status, _, error = ended(tmp_path / "killed", forked_python, *keys)
    assert status == 0, error
    for name in FILES:
        files = [(tmp_path / run / "evolve" / name).read_bytes() for run in ("whole", "killed")]
        assert files[0] == files[1], name
    assert set(paid(server)) == set(whole)
    # four files at most play at the same time, each with four requests on their way
    on_the_way = 4 * 4 * kills
    assert sum(paid(server).values()) <= requests + on_the_way

    server.bodies.clear()
    status, _, error = ended(tmp_path / "killed", forked_python, *keys)
    assert status == 0, error
    assert not paid(server), "a search that has ended pays for nothing"


def test_a_model_of_the_run_writes_edits_whose_form_is_enforced(
    inputs: list[str], tmp_path: Path, forked_python: str
) -> None:
    keys = [key for key in inputs if not key.startswith(("data.max_", "evolve.tasks", "evolve.confirm"))]
    keys += [
        "agent.agent_ids=[Writer]",
        "evolve.proposer=Writer",
        "evolve.tasks=16",
        "evolve.confirm=16",
        "data.max_prompt_length=6000",
        "data.max_response_length=96",
    ]
    status, _, error = ended(tmp_path, forked_python, *keys)
    assert status == 0, error
    lines = [json.loads(x) for x in (tmp_path / "evolve/ledger.jsonl").read_text().splitlines()]
    replies = [reply for line in lines if line["event"] == "proposal" for reply in line["replies"]]
    # an untrained model writes no useful edit, and its replies may end in the middle of one, but their
    # beginning is that of a list of edits
    assert replies and all(reply.lstrip().startswith("[") for reply in replies)
    assert all('"op"' in reply for reply in replies if len(reply) > 40)
