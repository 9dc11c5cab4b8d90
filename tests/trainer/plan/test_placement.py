"""The table agent -> policy -> worker group, and what it refuses."""

from pathlib import Path
from typing import Any

import pytest

from verl.trainer.checkpoint.given_models import groups_with_fixed_models
from verl.trainer.config import ActorRolloutRefConfig, AgentConfig, RunConfig
from verl.trainer.config.spec import ConfigError
from verl.trainer.plan.derived_values import resolve_defaults
from verl.trainer.plan.placement import PlacementError, build_placement, slug
from verl.trainer.plan.run import RunPlan

TEAM = ["Solver Agent", "Verifier Agent", "Critic"]


def team(**changes) -> AgentConfig:
    return AgentConfig(**({"agent_ids": TEAM, "model_ids": ["org/a", "org/a", "org/b"]} | changes))


def groups(config: AgentConfig) -> list[tuple[str, tuple[str, ...], str]]:
    return [
        (g.wg_id, g.agent_ids, g.model_path) for g in build_placement(config, ActorRolloutRefConfig()).groups
    ]


def test_sharing_puts_agents_with_the_same_model_on_one_policy() -> None:
    assert groups(team(specialization="prompt")) == [
        ("a", ("Solver Agent", "Verifier Agent"), "org/a"),
        ("critic", ("Critic",), "org/b"),
    ]


def test_without_sharing_every_agent_has_its_own_worker_group() -> None:
    assert [g[0] for g in groups(team())] == ["solver_agent", "verifier_agent", "critic"]


def test_names_that_look_alike_get_different_worker_groups() -> None:
    config = AgentConfig(
        agent_ids=["A", "B", "C", "D"],
        model_ids=["one/x", "two/x", "one/x", "two/x"],
        specialization="prompt",
    )
    assert [g[0] for g in groups(config)] == ["x", "x_2"]
    assert slug(" Solver  Agent! ") == "solver_agent"


def test_each_agent_gets_its_own_overrides_and_the_base_is_not_touched() -> None:
    base = ActorRolloutRefConfig()
    overrides = {"actor": {"optim": {"lr": [1e-3, 2e-3, 1]}}, "rollout": {"response_length": [8, None, 16]}}
    placement = build_placement(team(agent_specific_parameters=overrides), base)
    assert [a.config.actor.optim.lr for a in placement.agents] == [1e-3, 2e-3, 1.0]
    assert [a.config.rollout.response_length for a in placement.agents] == [8, None, 16]
    assert base.actor.optim.lr == 1e-6


def test_agents_on_one_policy_may_differ_in_a_request_but_not_in_training() -> None:
    build_placement(
        team(specialization="prompt", agent_specific_parameters={"rollout": {"response_length": [8, 9, 10]}}),
        ActorRolloutRefConfig(),
    )
    with pytest.raises(PlacementError, match=r"actor\.optim"):
        build_placement(
            team(
                specialization="prompt",
                agent_specific_parameters={"actor": {"optim": {"lr": [1.0, 2.0, 3.0]}}},
            ),
            ActorRolloutRefConfig(),
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"agent_ids": []}, "empty"),
        ({"agent_ids": ["A", "A", "B"]}, "twice"),
        ({"agent_ids": ["Solver A", "B", "Solver-A"]}, "'Solver A' and 'Solver-A' both become 'solver_a'"),
        ({"agent_ids": ["求解", "验证", "B"]}, "agent '求解' becomes an empty name"),
        ({"model_ids": ["org/a"]}, "1 entries.*3"),
        ({"model_ids": []}, "no model"),
        ({"model_ids": ["/no/such/model", "org/a", "org/a"]}, "no/such/model"),
        ({"agent_specific_parameters": {"actor": {"optim": {"lr": [1.0]}}}}, "list of 3"),
        ({"agent_specific_parameters": {"actor": {"optim": {"lr": 1.0}}}}, "list of 3"),
        ({"agent_specific_parameters": {"actor": {"optim": {"learning_rate": [1, 2, 3]}}}}, "no such key"),
        ({"agent_specific_parameters": {"actor": {"optim": [1, 2, 3]}}}, "is a section"),
        ({"agent_specific_parameters": {"actor": {"grad_clip": ["a", "b", "c"]}}}, "expected float"),
    ],
)
def test_teams_that_cannot_be_placed_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_placement(team(**changes), ActorRolloutRefConfig())


def test_a_local_model_is_found(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert build_placement(
        AgentConfig(agent_ids=["A"], model_ids=[str(tmp_path)]), ActorRolloutRefConfig()
    ).groups[0].model_path == str(tmp_path)


def test_a_folder_has_one_name_however_it_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one model would be two bases, and be looked for where the command is run."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    typed = ["~/m", "m", f"{tmp_path}/m/"]
    assert groups(team(model_ids=typed, specialization="prompt")) == [("m", tuple(TEAM), str(tmp_path / "m"))]
    config = RunConfig()
    config.agent = team(
        model_ids=typed, agent_specific_parameters={"model": {"tokenizer_path": ["~/m", None, "m/"]}}
    )
    config.actor_rollout_ref.model.path = config.actor_rollout_ref.model.tokenizer_path = (
        config.critic.model.path
    ) = "./m"
    resolve_defaults(config)
    whole = str(tmp_path / "m")
    assert config.agent.model_ids == [whole] * 3
    assert config.agent.agent_specific_parameters["model"]["tokenizer_path"] == [whole, None, whole]
    common = config.actor_rollout_ref.model
    assert [common.path, common.tokenizer_path, config.critic.model.path] == [whole] * 3


LORA_TEAM = {"agent_ids": ["A", "B", "C", "D"], "model_ids": ["org/x"] * 3 + ["org/y"]}


def table(**changes) -> list[tuple[str, str, str, str | None]]:
    placement = build_placement(AgentConfig(**(LORA_TEAM | changes)), ActorRolloutRefConfig())
    return [(a.agent_id, a.policy_id, a.wg_id, a.adapter) for a in placement.agents]


def test_adapters_share_the_worker_group_of_their_base_and_are_policies_of_their_own() -> None:
    assert table(specialization="lora") == [
        ("A", "a", "x_lora", "a"), ("B", "b", "x_lora", "b"), ("C", "c", "x_lora", "c"),
        ("D", "d", "y_lora", "d"),
    ]  # fmt: skip
    placement = build_placement(AgentConfig(**LORA_TEAM, specialization="lora"), ActorRolloutRefConfig())
    assert [(g.wg_id, g.agent_ids, list(g.policies)) for g in placement.groups] == [
        ("x_lora", ("A", "B", "C"), ["a", "b", "c"]), ("y_lora", ("D",), ["d"]),
    ]  # fmt: skip


def test_levels_mix_and_a_trained_model_is_never_the_base_of_adapters() -> None:
    assert [row[1:] for row in table(specialization=["prompt", "prompt", "lora", "full"])] == [
        ("x", "x", None), ("x", "x", None), ("c", "x_lora", "c"), ("d", "d", None),
    ]  # fmt: skip
    assert [row[2] for row in table(specialization=["lora", "lora", "full", "full"])] == [
        "x_lora",
        "x_lora",
        "c",
        "d",
    ]


def test_agents_may_share_an_adapter_and_names_stay_apart() -> None:
    shared = table(specialization="lora", adapter_ids=["Both of us", "Both of us", None, None])
    assert [row[1] for row in shared] == ["both_of_us", "both_of_us", "c", "d"]
    assert [row[1:] for row in table(specialization=["lora", "lora", "lora", "full"], adapter_ids=["D", None, None, None])][::3] == [
        ("d", "x_lora", "d"), ("d_2", "d_2", None),
    ]  # fmt: skip


def test_one_value_and_a_list_of_it_mean_the_same() -> None:
    for level in ("prompt", "full"):
        assert table(specialization=level) == table(specialization=[level] * 4)
    assert table() == table(specialization="full") != table(specialization="prompt")


def test_each_adapter_has_its_own_hyper_parameters_and_what_shapes_it_is_in_the_checkpoint() -> None:
    own = {"actor": {"optim": {"lr": [1.0, 2.0, None, 3.0]}, "clip_ratio_low": [0.1, 0.2, 0.3, 0.4]},
           "model": {"lora_rank": [4, 8, 16, None], "target_modules": [["q_proj"], "all-linear", None, None]},
           "rollout": {"temperature": [0.7, 1.0, 1.0, 1.0]}}  # fmt: skip
    placement = build_placement(
        AgentConfig(**LORA_TEAM, specialization="lora", agent_specific_parameters=own),
        ActorRolloutRefConfig(),
    )
    (first, _) = placement.groups
    assert [c.actor.optim.lr for c in first.adapters.values()] == [1.0, 2.0, 1e-6]
    signature = placement.signature()
    assert [row["lora"]["lora_rank"] for row in signature] == [4, 8, 16, 32]
    assert signature[0]["lora"]["target_modules"] == ["q_proj"]
    assert all(
        "lora" not in row
        for row in build_placement(AgentConfig(**LORA_TEAM), ActorRolloutRefConfig()).signature()
    )


@pytest.mark.parametrize(
    ("changes", "own", "message"),
    [
        ({"specialization": "lorra"}, {}, "'lorra' is not one of .*did you mean 'lora'"),
        ({"specialization": 2}, {}, "agent.specialization=2: expected one of prompt, lora, full, or a list"),
        ({"specialization": True}, {}, "agent.specialization=True: expected one of"),
        ({"specialization": {"A": "lora"}}, {}, "agent.specialization={'A': 'lora'}: expected one of"),
        ({"specialization": ["lora"]}, {}, "1 entries, agent.agent_ids has 4"),
        ({"specialization": None}, {}, "agent.specialization=None: expected one of"),
        ({"specialization": "lora", "adapter_ids": ["x"]}, {}, "adapter_ids has 1 entries"),
        ({"specialization": "full", "adapter_ids": ["x", None, None, None]}, {}, "'A', whose specialization is full, adapter 'x'"),
        ({"specialization": "lora", "adapter_ids": ["B", None, None, None]}, {}, "'b' is also the own adapter of agent 'B'"),
        ({"specialization": "lora", "adapter_ids": [None, None, "z", "z"]}, {}, "'C' and 'D' claim adapter 'z' on different models"),
        ({"specialization": "lora", "adapter_ids": ["z", "z", None, None]}, {"model": {"lora_rank": [4, 8, 8, 8]}},
         r"'A' and 'B' claim adapter 'z' but differ in model.lora_rank \(4 and 8\)"),
        ({"specialization": "lora", "adapter_ids": ["z", "z", None, None]}, {"actor": {"optim": {"lr": [1.0, 2.0, 1.0, 1.0]}}},
         "claim adapter 'z' but differ in actor.optim"),
        ({"specialization": "lora"}, {"rollout": {"max_num_seqs": [8, 8, 16, 8]}},
         r"agents 'A' and 'C' share the base model 'org/x', but differ in rollout.max_num_seqs \(8 and 16\)"),
    ],
)  # fmt: skip
def test_adapters_that_cannot_be_placed_are_refused(changes: dict, own: dict, message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        build_placement(
            AgentConfig(**(LORA_TEAM | changes), agent_specific_parameters=own), ActorRolloutRefConfig()
        )


def test_a_rank_that_is_no_number_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"lora_rank=many \(agent 'A'\): expected int or null, at least 1"):
        own = {"model": {"lora_rank": ["many", 1, 1, 1]}}
        build_placement(
            AgentConfig(**LORA_TEAM, specialization="lora", agent_specific_parameters=own),
            ActorRolloutRefConfig(),
        )


@pytest.mark.parametrize(
    ("section", "key", "value", "expected"),
    [
        ("actor", "ppo_max_token_len_per_gpu", "x", r"x \(agent 'A'\): expected int or null"),
        ("rollout", "response_length", True, r"True \(agent 'A'\): expected int or null"),
        ("model", "tokenizer_path", True, r"True \(agent 'A'\): expected str or null"),
        ("model", "tokenizer_path", ["a"], r"\['a'\] \(agent 'A'\): expected str or null"),
    ],
)
def test_a_value_of_another_type_for_an_optional_key_is_refused(
    section: str, key: str, value: Any, expected: str
) -> None:
    own = {section: {key: [value, None, None, None]}}
    with pytest.raises(ConfigError, match=f"agent.agent_specific_parameters.{section}.{key}={expected}"):
        build_placement(
            AgentConfig(**LORA_TEAM, specialization="lora", agent_specific_parameters=own),
            ActorRolloutRefConfig(),
        )


def test_elements_of_a_list_are_checked_too() -> None:
    own = {"actor": {"optim": {"betas": [["a", "b"], None, None, None]}}}
    with pytest.raises(ConfigError, match=r"actor.optim.betas=\['a', 'b'\] .*: expected list\[float\]"):
        build_placement(
            AgentConfig(**LORA_TEAM, specialization="lora", agent_specific_parameters=own),
            ActorRolloutRefConfig(),
        )


def frozen(names: list[str], **changes) -> list[tuple[str, str, str | None, bool]]:
    placement = build_placement(
        AgentConfig(**(LORA_TEAM | {"frozen": names} | changes)), ActorRolloutRefConfig()
    )
    return [(a.policy_id, a.wg_id, a.adapter, a.frozen) for a in placement.agents]


def test_a_frozen_agent_has_a_model_of_its_own_or_the_base_of_adapters() -> None:
    assert frozen(["B", "c"], specialization="full") == [
        ("a", "a", None, False), ("b", "b", None, True), ("c", "c", None, True), ("d", "d", None, False),
    ]  # fmt: skip
    assert frozen(["B", "D"], specialization="lora") == [
        ("a", "x_lora", "a", False), ("x_lora", "x_lora", None, True), ("c", "x_lora", "c", False),
        ("d", "d", None, True),
    ]  # fmt: skip


def test_frozen_agents_share_their_model_among_themselves_and_with_nobody_who_learns() -> None:
    expected = [("x_frozen", "x_frozen", None, True)] * 2 + [("c", "c", None, False), ("d", "d", None, False)]
    assert frozen(["A", "B"], specialization=["prompt", "lora", "full", "full"]) == expected
    with pytest.raises(PlacementError, match="agent 'B', which shares its policy with the trained agent 'A'"):
        frozen(["B"], specialization="prompt")
    assert frozen(["A", "B", "C"], specialization="prompt")[0] == ("x_frozen", "x_frozen", None, True)


def test_a_group_that_nobody_trains_has_no_policies_and_the_table_of_a_checkpoint_says_so() -> None:
    placement = build_placement(
        AgentConfig(**LORA_TEAM, specialization="lora", frozen=["A", "D"]), ActorRolloutRefConfig()
    )
    assert [(g.wg_id, list(g.policies), g.trained) for g in placement.groups] == [
        ("x_lora", ["b", "c"], True),
        ("d", [], False),
    ]
    assert placement.policy_ids == ["b", "c"] and [row.agent_id for row in placement.trained] == ["B", "C"]
    assert [row.get("frozen", False) for row in placement.signature()] == [True, False, False, True]
    other = build_placement(
        AgentConfig(**LORA_TEAM, specialization="lora", frozen=["A"]), ActorRolloutRefConfig()
    )
    assert other.signature() != placement.signature()


def test_frozen_agents_on_one_model_may_sample_differently_but_not_on_other_engines() -> None:
    def build(overrides: dict) -> None:
        config = AgentConfig(
            **LORA_TEAM, specialization="prompt", frozen=["A", "B", "C"], agent_specific_parameters=overrides
        )
        build_placement(config, ActorRolloutRefConfig())

    build({"rollout": {"temperature": [0.1, 0.9, None, None]}})
    build({"rollout": {"max_num_seqs": [64, None, None, 64]}})
    with pytest.raises(
        PlacementError,
        match=r"agents 'A' and 'B' share the base model 'org/x', but differ in rollout\.max_num_seqs \(8 and 64\)",
    ):
        build({"rollout": {"max_num_seqs": [8, None, None, None]}})


def test_an_agent_behind_an_api_is_in_no_worker_group() -> None:
    api = {"b": {"base_url": "http://127.0.0.1:1/v1", "model": "m", "request_timeout_s": 5}}
    placement = build_placement(
        AgentConfig(agent_ids=["A", "B"], model_ids=["org/x", None], api=api), ActorRolloutRefConfig()
    )
    assert [g.agent_ids for g in placement.groups] == [("A",)]
    (row,) = placement.api
    assert (row.agent_id, row.policy_id, row.api.request_timeout_s, row.api.api_key_env) == (
        "B",
        "api:m",
        5.0,
        None,
    )
    assert placement.signature()[1] == {"agent_id": "B", "policy_id": "api", "wg_id": "api"}


def test_a_team_of_servers_shares_no_policy() -> None:
    api = {name: {"base_url": "http://127.0.0.1:1/v1", "model": "m"} for name in ("A", "B")}
    with pytest.raises(
        PlacementError, match=r"agent\.specialization=prompt has no effect: all agents are behind an API"
    ):
        build_placement(
            AgentConfig(agent_ids=["A", "B"], api=api, specialization="prompt"), ActorRolloutRefConfig()
        )
    assert build_placement(AgentConfig(agent_ids=["A", "B"], api=api), ActorRolloutRefConfig()).groups == ()


def test_models_that_are_read_again_are_those_of_adapters_frozen_agents_and_references() -> None:
    """A model that is trained whole is in the checkpoint: whoever serves it need not have what it
    began as.
    """
    config = RunConfig()
    whole = build_placement(team(), config.actor_rollout_ref)
    without = RunPlan.of(config, whole).references
    assert groups_with_fixed_models(whole) == groups_with_fixed_models(whole, without) == []
    config.algorithm.kl_ctrl.kl_coef = 0.001
    assert groups_with_fixed_models(whole, RunPlan.of(config, whole).references) == list(whole.groups)
    assert groups_with_fixed_models(whole) == []
    own = {"actor": {"kl_loss_coef": [0.001, 0.0, 0.0]}}
    one = build_placement(team(agent_specific_parameters=own), config.actor_rollout_ref)
    of_loss = RunPlan.of(RunConfig(), one).references
    assert [spec.agent_ids for spec in groups_with_fixed_models(one, of_loss)] == [(TEAM[0],)]
    adapters = build_placement(AgentConfig(**LORA_TEAM, specialization="lora"), config.actor_rollout_ref)
    assert groups_with_fixed_models(adapters) == list(adapters.groups)


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("./no/model", "(config.json expected there; looked in {folder})"),
        ("out/embedded/*/model", "(config.json expected there; looked in {folder}; a * is not expanded)"),
        ("/no/such/model", "(config.json expected there)"),
    ],
)
def test_a_model_folder_that_is_not_there_says_where_it_was_looked_for(path: str, place: str) -> None:
    base = ActorRolloutRefConfig()
    base.model.path = path
    with pytest.raises(PlacementError) as error:
        build_placement(AgentConfig(agent_ids=["A"]), base)
    assert str(error.value) == (
        f"model of agent 'A': no Hugging Face model at {path!r} {place.format(folder=Path.cwd())}"
    )
