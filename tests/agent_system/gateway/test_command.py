"""Teams that are commands: a process per episode, whatever language it is written in."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent_system import AgentSystemError
from agent_system.gateway.team import GatewayOptions, GatewayOrchestra

ASKS = """
import json, os, sys
from urllib.request import Request, urlopen

task = json.load(sys.stdin)
assert "ground_truth" not in task
body = json.dumps({"model": "Writer", "messages": [{"role": "user", "content": task["prompt"]}]}).encode()
key = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
with urlopen(Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, key)) as answer:
    text = json.load(answer)["choices"][0]["message"]["content"]
print("x" * 3_000_000)
"""
HANGS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(60)
"""

LEAVES = """
import subprocess, sys
subprocess.Popen(["sleep", "12"], start_new_session=sys.argv[1] == "leaves the group")
print(0.5)
"""


@pytest.mark.parametrize(
    ("end", "reward", "failure"),
    [
        ("print(json.dumps(text))", 1.0, None),
        ("print(0.25)", 0.25, None),
        ('print(json.dumps({"team": 0.5, "local": {"Writer": 0.0625, "0": 0.0625}}))', 0.5, None),
        (
            "print('done')",
            0.0,
            "the last line that the command .* printed is no result .*expected JSON.*found 'done'",
        ),
        ('print(json.dumps({"reward": 1}))', 0.0, "is no result .*unexpected keyword argument 'reward'"),
        ("print(text); raise SystemExit('no\\nluck')", 0.0, "ended with status 1: no\nluck"),
    ],
)
async def test_the_last_line_of_a_command_is_its_result(
    play: Any, end: str, reward: float, failure: str | None
) -> None:
    episode, _, engine = await play(None, team_command=(sys.executable, "-c", ASKS + end))
    assert len(engine.requests) == 1 and episode.samples[0].agent_id == "Writer"
    if failure is None:
        assert (episode.failure, episode.team_reward, episode.samples[0].identity.trained) == (
            None,
            reward,
            True,
        )
        assert episode.samples[0].rewards.local_reward == (0.125 if "local" in end else 0.0)
    else:
        with pytest.raises(AgentSystemError, match=failure):
            raise AgentSystemError(episode.failure)


async def test_a_command_ends_with_its_episode_and_so_do_its_children(play: Any, tmp_path: Path) -> None:
    found = tmp_path / "child"
    episode, _, _ = await play(
        None, team_command=(sys.executable, "-c", HANGS, str(found)), episode_timeout_s=5.0
    )
    assert "episode took longer than rollout.episode_timeout_s=5 s, waiting for the team" in episode.failure
    with suppress(psutil.NoSuchProcess):
        _, alive = psutil.wait_procs([psutil.Process(int(found.read_text()))], 50)
        assert alive == []


async def test_a_child_that_keeps_the_outputs_open_does_not_hold_the_episode(play: Any) -> None:
    for child in ("stays in the group", "leaves the group"):
        episode, _, _ = await play(
            None, team_command=(sys.executable, "-c", LEAVES, child), episode_timeout_s=8.0
        )
        assert (episode.failure, episode.team_reward) == (None, 0.5), child


def test_a_team_is_a_function_or_a_command() -> None:
    with pytest.raises(AgentSystemError, match=r"agent\.team: no program 'no_such_program' is found"):
        GatewayOrchestra(GatewayOptions(("no_such_program",)))
    with pytest.raises(
        AgentSystemError,
        match=r"agent\.team=node 'team\.js: No closing quotation; expected a command line",
    ):
        GatewayOrchestra(GatewayOptions("node 'team.js"))
