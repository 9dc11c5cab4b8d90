"""Environments of the package `verifiers` as they are: their datasets as rows, their rollouts as episodes,
their rubrics as rewards.

This file runs in a Python environment of its own, which has `verifiers` and the environment but not this
project:

    python -m venv vf && vf/bin/pip install 'verifiers==0.3.1' <the package of the environment>
    vf/bin/python examples/verifiers/play.py rows my-env --output tasks.jsonl
    python -m verl.trainer.main_ppo agent.orchestra_type=gateway agent.agent_ids='[Player]' env.env_name=gateway \
      agent.team='[vf/bin/python,examples/verifiers/play.py,team,my-env]' data.train_files=tasks.jsonl ...

`my-env` is a module `my_env` with `load_environment(**args)`, which needs `verifiers==0.3.1` or older, or one
with a taskset of `verifiers.v1`, which needs 0.4 or newer. Its reward is that of the team, its metrics are
metrics of the run.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

COLUMNS = ("example_id", "prompt", "answer", "info", "task", "env_id")  # of a dataset, which a rollout gets


def load(name: str, arguments: Mapping[str, Any]) -> Any:
    """Return an environment with a dataset and a rubric. Exits with a message if the package is too new for
    it.
    """
    try:
        from verifiers.utils.env_utils import load_environment
    except ImportError as error:
        sys.exit(
            f"{name} has load_environment(), which this version of verifiers does not call ({error}): pip "
            "install 'verifiers==0.3.1'"
        )
    return load_environment(name, **arguments)


def row_of(name: str, number: int, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of this project from one of an environment's dataset, with what the rollout gets in
    `extra_info`.
    """
    given = {column: found[column] for column in COLUMNS if found.get(column) is not None}
    messages = (
        [{"role": "user", "content": found["prompt"]}]
        if isinstance(found["prompt"], str)
        else found["prompt"]
    )
    texts = [
        message for message in messages if message["role"] == "user" and isinstance(message["content"], str)
    ]
    shown = texts or [{"role": "user", "content": f"{name} {number}"}]
    return {
        "data_source": name,
        "prompt": shown,
        "extra_info": {"index": number, "verifiers": json.dumps(given, default=str)},
    }


def rows(name: str, arguments: Mapping[str, Any], count: int, evaluation: bool) -> list[dict[str, Any]]:
    """Return the rows of a dataset; a `count` of -1 is all of it."""
    env = load(name, arguments)
    found = env.get_eval_dataset(count) if evaluation else env.get_dataset(count)
    return [row_of(name, number, dict(row)) for number, row in enumerate(found)]


async def play(
    name: str, arguments: Mapping[str, Any], agent: str, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Play a row against the gateway and return the outcome, also where a reply is empty. Exits with a
    message on other errors.
    """
    from verifiers.types import ClientConfig

    env = load(name, arguments)
    if env.requires_group_rollouts:
        sys.exit(f"the rubric of {name} compares the rollouts of a group, which one episode does not have")
    client = ClientConfig(
        api_key_var="OPENAI_API_KEY", api_base_url=os.environ["OPENAI_BASE_URL"], max_retries=0
    )
    output = await env.run_rollout(given, client, agent, {})
    failure = output.get("error")
    kind = failure.get("error") if isinstance(failure, Mapping) else failure  # older versions have a text
    if kind and kind != "EmptyModelResponseError":
        sys.exit(f"the rollout of {name} failed: {failure}")
    return outcome(float(output["reward"]), output["metrics"])


def outcome(reward: float, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return an outcome with those metrics that are numbers."""
    numbers = {f"verifiers/{key}": value for key, value in metrics.items() if isinstance(value, (int, float))}
    return {"team": reward, "info": numbers}


def agents_of_run() -> list[str]:
    """Return the names of the agents."""
    request = Request(
        os.environ["OPENAI_BASE_URL"] + "/models",
        headers={"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    with urlopen(request) as answer:
        return [model["id"] for model in json.load(answer)["data"]]


def is_taskset(name: str) -> bool:
    """Return whether an environment is a taskset of `verifiers.v1`."""
    return not hasattr(importlib.import_module(name.replace("-", "_").rpartition("/")[2]), "load_environment")


def main() -> None:
    """Write rows, or play the task on standard input."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("rows", "team"))
    parser.add_argument("environment", help="its name, as `load_environment` takes it")
    parser.add_argument("--args", type=json.loads, default={}, help="arguments of the environment, as JSON")
    parser.add_argument("--output", type=Path, default=Path("tasks.jsonl"))
    parser.add_argument("--count", type=int, default=-1, help="rows; default: all")
    parser.add_argument("--eval", action="store_true", help="rows of the evaluation set")
    parser.add_argument("--agent", default="", help="the agent that plays; default: the only one")
    given = parser.parse_args()
    name, arguments = given.environment, given.args
    if is_taskset(name):
        import tasksets
    if given.what == "rows":
        made = (
            tasksets.rows(name, arguments, given.count)
            if is_taskset(name)
            else rows(name, arguments, given.count, given.eval)
        )
        given.output.write_text("".join(f"{json.dumps(row)}\n" for row in made), encoding="utf-8")
        return
    result, sys.stdout = sys.stdout, sys.stderr  # whatever the environment prints is no result
    row, agents = (
        json.loads(json.load(sys.stdin)["extra"]["verifiers"]),
        [given.agent] if given.agent else agents_of_run(),
    )
    if is_taskset(name):
        found = asyncio.run(tasksets.play(name, arguments, agents, row))
    elif len(agents) > 1:
        sys.exit(
            f"{name} has one player, the run has the agents {', '.join(agents)}; choose one with --agent"
        )
    else:
        found = asyncio.run(play(name, arguments, agents[0], row))
    result.write(json.dumps(found) + "\n")
    result.flush()


if __name__ == "__main__":
    main()
