"""Agents that are frozen or behind an API take part in a run, and a run that cannot have them so is one line
before a model loads.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.chat_server import ChatServer, completion
from tests.e2e.conftest import Run, read_metrics, weights
from verl.trainer.ppo.team import TeamWorkers

SECRET = "sk-not-for-any-file"
JUDGE = "agent.api.verifier_agent"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    monkeypatch.setenv("JUDGE_KEY", SECRET)
    server = ChatServer(lambda body: completion(f"judged {body['seed']}"))
    yield server
    server.stop()


def api(server: ChatServer, **changes: Any) -> dict[str, Any]:
    keys = {
        "base_url": server.url,
        "model": "big-judge",
        "api_key_env": "JUDGE_KEY",
        "max_retries": 1,
        "retry_delay_s": 0.01,
    } | changes
    return {f"{JUDGE}.{name}": value for name, value in keys.items()}


def test_a_frozen_agent_has_no_trainer_and_its_engine_keeps_every_bit(
    train: Run, tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file

    served: dict[str, dict[str, torch.Tensor]] = {}
    shutdown = TeamWorkers.shutdown

    def first_look(team: TeamWorkers) -> None:
        assert list(team.policies) == ["asker"] and list(team.engines.groups) == ["asker", "verifier_agent"]
        for wg_id, group in team.engines.groups.items():
            served[wg_id] = {
                name: p.detach().clone() for name, p in group.worker._engine._model._model.named_parameters()
            }
        shutdown(team)

    monkeypatch.setattr(TeamWorkers, "shutdown", first_look)
    own = "agent.agent_specific_parameters"
    train(
        {
            "agent.frozen": "[Verifier Agent]",
            f"{own}.rollout.temperature": "[1.0,0.5]",
            f"{own}.rollout.response_length": "[6,4]",
        }
    )
    given = load_file(tiny_model_dir / "model.safetensors")
    assert all(torch.equal(served["verifier_agent"][name], given[name]) for name in served["verifier_agent"])
    assert not all(torch.equal(served["asker"][name], given[name]) for name in served["asker"])
    actor = tmp_path / "run" / "checkpoints" / "global_step_2" / "actor"
    assert [folder.name for folder in actor.iterdir()] == ["asker"]
    lines = [line for line in read_metrics(tmp_path / "run") if "actor/lr" in line]
    for line in lines:
        assert (
            line["agent/verifier_agent/calls"] == 6 and line["agent/verifier_agent/response_length/max"] <= 4
        )
        assert (
            "agent/verifier_agent/advantage_abs" not in line
            and "agent/verifier_agent/staleness/mean" not in line
        )
        assert line["perf/generated_tokens"] > 6 * line["agent/asker/response_length/mean"]


def test_an_agent_behind_an_api_is_asked_and_trains_nothing_and_its_key_is_in_no_file(
    train: Run, tmp_path: Path, server: ChatServer, caplog: pytest.LogCaptureFixture
) -> None:
    run = api(server) | {
        "agent.model_ids": "[null,null]",
        "agent.specialization": "[full,null]",
        "agent.agent_specific_parameters.rollout.temperature": "[1.0,0.25]",
        "agent.agent_specific_parameters.rollout.response_length": "[6,40]",
        "agent.agent_specific_parameters.rollout.val_kwargs.temperature": "[null,0]",
    }
    with caplog.at_level("INFO"):
        train(run)
    run_dir = tmp_path / "run"
    # Once at the start, two validations of two episodes each (before and after), two steps of six episodes.
    assert len(server.bodies) == 1 + 2 * 2 + 2 * 6
    assert {(body["temperature"], body["max_tokens"]) for body in server.bodies[1:]} == {
        (0.0, 40),
        (0.25, 40),
    }
    assert server.bodies[1]["messages"][0]["content"].startswith("Judge: ")
    assert all(headers["Authorization"] == f"Bearer {SECRET}" for headers in server.headers)
    assert list(weights(run_dir, 2)) == ["asker"] and weights(run_dir, 2)["asker"]
    (first, second) = (line for line in read_metrics(run_dir) if "actor/lr" in line)
    assert first["agent/verifier_agent/calls"] == second["agent/verifier_agent/calls"] == 6
    assert first["agent/verifier_agent/response_length/mean"] == 3 and first["wg/asker/actor/grad_norm"] > 0
    call = json.loads((run_dir / "trajectories" / "train_000001.jsonl").read_text().splitlines()[0])["calls"][
        1
    ]
    assert (
        call["reply"].startswith("judged ") and call["policy_id"] == "api:big-judge" and not call["trained"]
    )
    table = json.loads((run_dir / "checkpoints" / "global_step_2" / "trainer_state.json").read_text())[
        "placement"
    ]
    assert table[1] == {"agent_id": "Verifier Agent", "policy_id": "api", "wg_id": "api"}
    assert [
        path for path in run_dir.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()
    ] == []
    assert (
        SECRET not in caplog.text
        and f"agent Verifier Agent -> api:big-judge at {server.url} (not trained)" in caplog.text
    )
    assert train(run | {"trainer.total_training_steps": 3}).progress.global_step == 3


def test_a_server_that_goes_down_in_a_run_ends_it_with_the_cause_and_the_checkpoint_stays(
    train: Run, tmp_path: Path, server: ChatServer
) -> None:
    from agent_system.rollout import TooManyFailuresError

    server.answer = lambda body: completion("ok") if len(server.bodies) <= 1 + 2 + 6 else 503
    with pytest.raises(
        TooManyFailuresError,
        match=r"EndpointError: the server of Verifier Agent, big-judge at .*HTTP status 503",
    ):
        train(api(server) | {"trainer.save_freq": 1, "rollout.max_failure_rate": 0.2})
    assert (tmp_path / "run" / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "1"


def test_a_checkpoint_beside_another_frozen_model_or_of_other_frozen_agents_is_refused(
    train: Run, refused: Callable[[dict[str, Any]], str], tmp_path: Path, tiny_model_dir: Path
) -> None:
    judge = tmp_path / "judge"
    shutil.copytree(tiny_model_dir, judge)
    run = {"agent.model_ids": f"[{tiny_model_dir},{judge}]"}
    train(run | {"agent.frozen": "[Verifier Agent]", "trainer.total_training_steps": 1})
    said = refused(run)
    assert (
        "was written by the team Asker -> asker, Verifier Agent -> verifier_agent (frozen), this run has"
        in said
    )
    data = (judge / "model.safetensors").read_bytes()
    (judge / "model.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    said = refused(run | {"agent.frozen": "[Verifier Agent]"})
    assert (
        f"is of a team with an earlier version of the model '{judge}'; its files have changed since" in said
    )


def test_agents_that_cannot_be_left_untrained_so_are_one_line(
    refused: Callable[[dict[str, Any]], str], server: ChatServer
) -> None:
    said = refused({"agent.frozen": "[Verifier]"})
    assert said.startswith("agent.frozen: no agent 'Verifier'; did you mean 'Verifier Agent'?")
    assert "twice" in refused({"agent.frozen": "[Asker,asker]"})
    assert "leave no agent of ['Asker', 'Verifier Agent'] to train" in refused(
        {"agent.frozen": "[asker,verifier_agent]"}
    )
    said = refused({"agent.frozen": "[Asker]", "agent.specialization": "prompt"})
    assert "agent 'Asker', which shares its policy with the trained agent 'Verifier Agent'" in said
    lora = {"agent.specialization": "lora", "agent.adapter_ids": "[one,one]", "agent.frozen": "[Asker]"}
    assert "gives agent 'Asker', which is in agent.frozen, adapter 'one'" in refused(lora)
    said = refused(
        {"agent.frozen": "[Asker]", "agent.agent_specific_parameters.actor.optim.lr": "[0.1,null]"}
    )
    assert "actor.optim.lr gives agent 'Asker' 0.1, which has no effect: it is frozen; give it null" in said
    said = refused({"agent.frozen": "[Asker]", "algorithm.per_agent.asker.adv_estimator": "rloo"})
    assert "algorithm.per_agent.asker has no effect: agent 'Asker' is not trained" in said
    assert "models are assigned by agent.model_ids" in refused(
        {"agent.agent_specific_parameters.model.path": "[null,x]"}
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base_url": ""}, "agent.api.verifier_agent.base_url is missing"),
        ({"model": ""}, "agent.api.verifier_agent.model is missing"),
        ({"base_url": "localhost:8000"}, "base_url: expected http://host"),
        ({"base_url": "http://127.0.0.1:port/v1"}, "base_url: expected http://host"),
        ({"base_url": "http://me:pw@127.0.0.1/v1"}, "contains a user name or a password"),
        ({"base_ur": "x"}, "agent.api.verifier_agent.base_ur: no such key; did you mean 'base_url'?"),
        ({"api_key": "sk-x"}, "set the API key in the environment"),
        ({"api_key_env": "NOT_SET_ANYWHERE"}, "NOT_SET_ANYWHERE: this environment variable is not set"),
        ({"max_retries": "many"}, "agent.api.verifier_agent.max_retries=many: expected int"),
        ({"request_timeout_s": 0}, "request_timeout_s=0: expected above 0"),
        ({"request_timeout_s": "inf"}, "request_timeout_s=inf: expected above 0 and at most 2000000"),
        ({"extra_body": "{messages: x}"}, "extra_body={'messages': 'x'}: messages is set by the run"),
    ],
)
def test_an_api_that_is_not_said_right_is_one_line(
    refused: Callable[[dict[str, Any]], str], server: ChatServer, changes: dict[str, Any], message: str
) -> None:
    said = refused(api(server, **changes))
    assert message in said and "\n" not in said and "sk-x" not in said and "pw@" not in said
    assert server.bodies == []


def test_an_api_beside_keys_that_it_does_not_read_is_one_line(
    refused: Callable[[dict[str, Any]], str], server: ChatServer
) -> None:
    run = api(server)
    assert "agent.api both name agent 'Verifier Agent'" in refused(run | {"agent.frozen": "[Verifier Agent]"})
    said = refused(run | {"agent.agent_specific_parameters.rollout.top_k": "[-1,5]"})
    assert "rollout.top_k gives agent 'Verifier Agent' 5, which has no effect: it is behind an API" in said
    assert "which is behind an API, model 'x'; give it null" in refused(run | {"agent.model_ids": "[null,x]"})
    assert "is behind an API and has no policy; give it null" in refused(
        run | {"agent.specialization": "[full,lora]"}
    )
    assert "no agent 'judge'" in refused({"agent.api.judge.base_url": server.url})


def test_a_server_that_does_not_answer_at_the_start_is_one_line(
    refused: Callable[[dict[str, Any]], str], server: ChatServer
) -> None:
    server.answer = lambda body: 404
    said = refused(api(server))
    assert (
        "refuses the request with HTTP status 404" in said and SECRET not in said and len(server.bodies) == 1
    )
    server.stop()
    assert "gave no reply in one attempt: ClientConnectorError" in refused(api(server))
