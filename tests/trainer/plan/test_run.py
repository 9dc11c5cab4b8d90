"""What the plan of a run says of its agents."""

import json

from tests.plans import plan_of
from verl.trainer.config import AgentConfig, RunConfig


def team(**algorithm: object) -> RunConfig:
    config = RunConfig(agent=AgentConfig(agent_ids=["Solver", "Judge"], specialization="full"))
    for key, value in algorithm.items():
        setattr(config.algorithm, key, value)
    return config


def test_an_agent_has_the_estimator_the_groups_and_the_candidates_of_its_own_keys() -> None:
    config = team(per_agent={"judge": {"adv_estimator": "rloo", "group_by": ["uid"]}})
    config.rollout.tree.k_per_agent = {"judge": 3}
    solver, judge = plan_of(config).agents
    assert (solver.estimator, solver.group_fields, solver.averages_trajectories) == (
        "grpo",
        ["uid", "agent_id"],
        False,
    )
    assert (judge.estimator, judge.group_fields, judge.averages_trajectories) == ("rloo", ["uid"], True)
    assert (solver.candidates, judge.candidates) == (None, 3)
    assert solver.algorithm.per_agent == judge.algorithm.per_agent == {}


def test_sampling_of_validation_falls_back_on_that_of_training() -> None:
    config = team()
    rollout = config.actor_rollout_ref.rollout
    config.data.max_response_length, config.data.max_prompt_length = 70, 90
    rollout.temperature, rollout.stop, rollout.val_kwargs.temperature = 0.5, ["</a>"], 0.0
    agent = plan_of(config).agents[0]
    assert (agent.sampling.max_tokens, agent.val_sampling.max_tokens, agent.max_prompt_length) == (70, 70, 90)
    assert (agent.sampling.temperature, agent.val_sampling.temperature) == (0.5, 0.0)
    assert agent.sampling.stop == agent.val_sampling.stop == ("</a>",)
    rollout.val_kwargs.response_length, rollout.val_kwargs.stop, rollout.val_kwargs.temperature = 30, [], 1.0
    validation = plan_of(config).agents[0].val_sampling
    assert (validation.max_tokens, validation.stop) == (30, ())
    assert validation.temperature == rollout.val_kwargs.temperature


def test_the_printed_and_the_saved_plan_name_estimators_and_critics() -> None:
    config = team(per_agent={"Judge": {"adv_estimator": "gae"}})
    config.agent.api = {}
    plan = plan_of(config)
    assert plan.describe() == [
        "training of Solver: adv_estimator=grpo, groups by [uid, agent_id]",
        "training of Judge: adv_estimator=gae, with a critic",
    ]
    saved = json.loads(json.dumps(plan.to_json()))
    assert [(agent["agent_id"], agent["estimator"], agent["trained"]) for agent in saved["agents"]] == [
        ("Solver", "grpo", True),
        ("Judge", "gae", True),
    ]
    assert saved["critics"] == {"judge": ["Judge"]}
    config.trainer.val_only = True
    assert plan_of(config).describe() == [] and plan_of(config).critics == {}


def test_a_frozen_agent_and_one_behind_an_api_have_sampling_and_no_estimator() -> None:
    config = team()
    config.agent.agent_ids = ["Solver", "Judge", "Oracle"]
    config.agent.frozen = ["Judge"]
    config.agent.api = {"Oracle": {"base_url": "http://127.0.0.1:1/v1", "model": "m", "api_key_env": None}}
    saved = plan_of(config).to_json()
    assert [agent["agent_id"] for agent in saved["agents"] if "estimator" in agent] == ["Solver"]
    (remote,) = saved["api"]
    assert (remote["agent_id"], remote["model"]) == ("Oracle", "m")
    assert remote["sampling"]["max_tokens"] == config.data.max_response_length
