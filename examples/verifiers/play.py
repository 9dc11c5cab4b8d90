"""Environments of the package `verifiers` as they are: their datasets as rows, their rollouts as episodes, their rubrics as rewards.

This file runs in a Python environment of its own, which has `verifiers` and the environment but not this project:

    python -m venv vf && vf/bin/pip install 'verifiers==0.3.1' <the environment>
    vf/bin/python examples/verifiers/play.py rows my-env --output tasks.jsonl
    python -m verl.trainer.main_ppo agent.orchestra_type=gateway agent.agent_ids='[Player]' env.env_name=gateway \
      agent.team_command='[vf/bin/python,examples/verifiers/play.py,team,my-env]' data.train_files=tasks.jsonl ...

`my-env` is a module `my_env` with `load_environment(**args)`. A reward of a rubric is that of the team, its metrics are metrics of the run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

COLUMNS = ("example_id", "prompt", "answer", "info", "task", "env_id")  # of a dataset, which a rollout gets


def load(name: str, arguments: Mapping[str, Any]) -> Any:
    """Return an environment. Exits with a message if the package or the environment is missing."""
    try:
        from verifiers.utils.env_utils import load_environment
    except ImportError as error:
        sys.exit(f"no classic environments in this Python ({error}): pip install 'verifiers==0.3.1'")
    return load_environment(name, **arguments)


def row_of(name: str, number: int, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of this project from one of an environment's dataset, with what the rollout gets in `extra_info`."""
    given = {column: found[column] for column in COLUMNS if found.get(column) is not None}
    messages = [{"role": "user", "content": found["prompt"]}] if isinstance(found["prompt"], str) else found["prompt"]
    texts = [message for message in messages if message["role"] == "user" and isinstance(message["content"], str)]
    shown = texts or [{"role": "user", "content": f"{name} {number}"}]
    return {"data_source": name, "prompt": shown, "extra_info": {"index": number, "verifiers": json.dumps(given, default=str)}}


def write_rows(name: str, arguments: Mapping[str, Any], output: Path, count: int, evaluation: bool) -> None:
    """Write a dataset as JSON lines; a `count` of -1 is all of it."""
    env = load(name, arguments)
    rows = env.get_eval_dataset(count) if evaluation else env.get_dataset(count)
    lines = [json.dumps(row_of(name, number, dict(found))) for number, found in enumerate(rows)]
    output.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


async def play(name: str, arguments: Mapping[str, Any], agent: str, task: Mapping[str, Any]) -> dict[str, Any]:
    """Play a task against the gateway and return the outcome. Exits with a message when the rollout fails."""
    from verifiers.types import ClientConfig

    env = load(name, arguments)
    if env.requires_group_rollouts:
        sys.exit(f"the rubric of {name} compares the rollouts of a group, which one episode does not have")
    client = ClientConfig(api_key_var="OPENAI_API_KEY", api_base_url=os.environ["OPENAI_BASE_URL"], max_retries=0)
    output = await env.run_rollout(json.loads(task["extra"]["verifiers"]), client, agent, {})
    if output.get("error"):
        sys.exit(f"the rollout of {name} failed: {output['error']}")
    numbers = {key: value for key, value in output["metrics"].items() if isinstance(value, (int, float))}
    return {"team": float(output["reward"]), "info": {f"verifiers/{key}": value for key, value in numbers.items()}}


def only_agent() -> str:
    """Return the agent of the run. Exits with a message if there are several."""
    request = Request(os.environ["OPENAI_BASE_URL"] + "/models", headers={"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"})
    with urlopen(request) as answer:
        agents = [model["id"] for model in json.load(answer)["data"]]
    if len(agents) > 1:
        sys.exit(f"an environment of verifiers has one player, the run has the agents {', '.join(agents)}; choose one with --agent")
    return str(agents[0])


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
    if given.what == "rows":
        write_rows(given.environment, given.args, given.output, given.count, given.eval)
        return
    result = sys.stdout
    sys.stdout = sys.stderr  # whatever the environment prints
    outcome = asyncio.run(play(given.environment, given.args, given.agent or only_agent(), json.load(sys.stdin)))
    result.write(json.dumps(outcome) + "\n")
    result.flush()


if __name__ == "__main__":
    main()
