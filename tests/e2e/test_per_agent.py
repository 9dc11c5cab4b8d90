"""A team whose agents learn by estimators of their own: trained, resumed, and refused by the command line's
own words.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Run, read_metrics, weights
from verl.protocol.generate import SamplingParams
from verl.trainer.config.spec import ConfigError, IneffectiveKeyError
from verl.workers.engine.fsdp_engine import FSDPEngine
from verl.workers.engine.micro_batch import MicroBatchRule

OWN = "algorithm.per_agent"
MIXED: dict[str, Any] = {
    f"{OWN}.asker.adv_estimator": "rae",
    f"{OWN}.asker.call_weighting": "trajectory",
    f"{OWN}.verifier_agent.adv_estimator": "rloo",
    f"{OWN}.verifier_agent.group_by": "[uid,turn]",
    "env.max_steps": 2,
    "trainer.val_before_train": False,
    "trainer.save_freq": 1,
}


def test_two_estimators_in_one_team_train_both_and_go_on_after_a_stop_to_the_bit(
    train: Run, tmp_path: Path
) -> None:
    whole = train(MIXED)
    lines = [line for line in read_metrics(tmp_path / "run") if line["step"] > 0]
    for line in lines:
        assert line["wg/asker/actor/grad_norm"] > 0
        assert line["wg/verifier_agent/actor/grad_norm"] > 0
        assert "agent/verifier_agent/turn_1/zero_signal_groups" in line
    folder = tmp_path / "again"
    train(MIXED | {"trainer.default_local_dir": folder, "trainer.total_training_steps": 1})
    resumed = train(MIXED | {"trainer.default_local_dir": folder})
    assert {json.loads(name)[1] for name in whole.steps.credit.estimator_state["rae"]} == {"Asker"}, (
        "by kind of task and role"
    )
    assert resumed.steps.credit.estimator_state == whole.steps.credit.estimator_state
    assert weights(folder, 2) == weights(tmp_path / "run", 2)


def test_agents_make_their_own_number_of_updates_a_step(train: Run, tmp_path: Path) -> None:
    """The Asker makes one of 2 in the run, the Verifier 2 mini-batches x 2 epochs of 8; the rate falls by the
    steps of each.
    """
    own = "agent.agent_specific_parameters.actor"
    changes: dict[str, Any] = {
        f"{own}.ppo_epochs": "[1,2]", f"{own}.ppo_mini_batch_size": "[null,1]",
        "trainer.val_before_train": False,
        "actor_rollout_ref.actor.optim.lr_scheduler_type": "linear"
    }  # fmt: skip
    trainer = train(changes)
    assert not trainer.steps.on_policy
    lines = [line for line in read_metrics(tmp_path / "run") if line["step"] > 0]
    rates = [[line[f"wg/{wg}/actor/lr"] / 0.001 for wg in ("asker", "verifier_agent")] for line in lines]
    assert rates == [pytest.approx([1.0, (7 + 6 + 5 + 4) / 28]), pytest.approx([0.0, (3 + 2 + 1 + 0) / 28])]


def test_agents_have_mini_and_micro_batches_of_their_own_size(
    train: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six rows per agent of 2 tasks: the Asker's one step has micro-batches of 4 rows, the Verifier's two
    steps of 2 rows at most. The pass for log-probs before it takes those of its agent.
    """
    sizes: dict[int, list[list[int]]] = {}
    cut = FSDPEngine.micro_batches

    def recorded(engine: FSDPEngine, rows: Any, rule: MicroBatchRule) -> Any:
        micros = cut(engine, rows, rule)
        if rule.token_budget is None:
            sizes.setdefault(rule.rows, []).append([len(micro["responses"]) for micro in micros])
        return micros

    monkeypatch.setattr(FSDPEngine, "micro_batches", recorded)
    own = "agent.agent_specific_parameters.actor"
    train(
        {
            f"{own}.ppo_mini_batch_size": "[2,1]",
            f"{own}.ppo_micro_batch_size_per_gpu": "[4,2]",
            "actor_rollout_ref.actor.use_dynamic_bsz": False,
            "trainer.val_before_train": False,
            "trainer.total_training_steps": 1,
        }
    )
    assert {name: [sum(step) for step in steps] for name, steps in sizes.items()} == {
        4: [6, 6], 2: [6, 3, 3]
    }  # fmt: skip
    assert {name: max(map(max, steps)) for name, steps in sizes.items()} == {4: 4, 2: 2}


UPDATES: dict[str, Any] = {
    "actor_rollout_ref.actor.optim.lr_scheduler_type": "linear",
    "agent.agent_specific_parameters.actor.ppo_mini_update_num": "[4,7]",
    "algorithm.adv_estimator": "gae",
    "critic.ppo_mini_update_num": 2,
    "critic.ppo_epochs": 2,
    "trainer.val_before_train": False,
    "trainer.save_freq": 1,
}


def test_agents_and_critics_make_as_many_updates_as_each_is_told_and_go_on_after_a_stop_to_the_bit(
    train: Run, tmp_path: Path
) -> None:
    """Six rows per agent: the Asker makes 4 of the 8 updates of its run, the Verifier 6, one per row, of 14
    that its schedule counts.
    """
    train(UPDATES)
    lines = [line for line in read_metrics(tmp_path / "run") if line["step"] > 0]
    names = (
        "wg/asker/actor/updates",
        "wg/verifier_agent/actor/updates",
        "wg/asker/critic/updates",
        "wg/verifier_agent/critic/updates",
    )
    assert [[line[name] for name in names] for line in lines] == [[4, 6, 4, 4]] * 2
    rates = [[line[f"wg/{wg}/actor/lr"] / 0.001 for wg in ("asker", "verifier_agent")] for line in lines]
    assert rates == [pytest.approx([5.5 / 7, 10.5 / 13]), pytest.approx([1.5 / 7, 3.5 / 13])]
    first, folder = tmp_path / "run" / "checkpoints" / "global_step_1", tmp_path / "again"
    train(
        UPDATES
        | {
            "trainer.default_local_dir": folder,
            "trainer.resume_mode": first,
        }
    )
    assert weights(folder, 2) == weights(tmp_path / "run", 2)


@pytest.mark.parametrize("key", ["ppo_mini_batch_size", "ppo_micro_batch_size_per_gpu"])
def test_agents_on_one_policy_cannot_have_batches_of_different_sizes(train: Run, key: str) -> None:
    shared = {"agent.specialization": "prompt", "actor_rollout_ref.actor.use_dynamic_bsz": False}
    with pytest.raises(
        ConfigError,
        match=rf"share policy .* but differ in actor\.{key} \(2 and 1\).*agent\.specialization=full",
    ):
        train(shared | {f"agent.agent_specific_parameters.actor.{key}": "[2,1]"})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("askr.adv_estimator", "rloo", "per_agent.askr: no such agent; did you mean 'asker'"),
        ("asker.adv_estimatr", "rloo", "per_agent.asker.adv_estimatr.*did you mean 'adv_estimator'"),
        ("asker.group_by", "[uid,trun]", "per_agent.asker.group_by.*did you mean 'turn'"),
    ],
)
def test_what_an_agent_cannot_have_is_refused_before_anything_starts(
    train: Run, key: str, value: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train({f"{OWN}.{key}": value})


def test_every_agent_samples_as_it_is_told_in_training_and_in_validation(compose: Callable[..., Any]) -> None:
    from agent_system.launch.checks import check_run
    from agent_system.launch.collector import build_collector

    own = "agent.agent_specific_parameters.rollout"
    config = compose(
        {
            f"{own}.temperature": "[0.9,0.8]",
            f"{own}.top_p": "[null,0.7]",
            f"{own}.top_k": "[3,null]",
            f"{own}.response_length": "[4,5]",
            f"{own}.stop": "[null,['.','</a>']]",
            f"{own}.val_kwargs.temperature": "[0.6,0]",
            f"{own}.val_kwargs.top_p": "[0.5,null]",
            f"{own}.val_kwargs.response_length": "[null,9]",
        }
    )
    run = check_run(config)
    runtimes = build_collector(config, run.plan, run.tokenizers, dict.fromkeys(run.tokenizers)).runtimes
    stop, ends = runtimes["Asker"].binding.sampling.stop_token_ids, (".", "</a>")
    assert {
        name: (runtime.binding.sampling, runtime.binding.val_sampling) for name, runtime in runtimes.items()
    } == {
        "Asker": (SamplingParams(4, 0.9, 1.0, 3, stop), SamplingParams(4, 0.6, 0.5, -1, stop)),
        "Verifier Agent": (
            SamplingParams(5, 0.8, 0.7, -1, stop, ends),
            SamplingParams(9, 0.0, 1.0, -1, stop, ends),
        ),
    }


def test_rewards_and_each_agents_own_penalty_and_limit_reach_the_collector(
    compose: Callable[..., Any],
) -> None:
    from agent_system.launch.checks import check_run
    from agent_system.launch.collector import build_collector

    own = "agent.agent_specific_parameters"
    config = compose(
        {
            f"{own}.actor.invalid_action_penalty_coef": "[null,0.25]",
            f"{own}.rollout.response_length": "[4,5]",
            "reward.alpha": 0.5,
            "reward.overlong_buffer.len": 0,
        }
    )
    run = check_run(config)
    collector = build_collector(config, run.plan, run.tokenizers, dict.fromkeys(run.tokenizers))
    assert collector.settings.reward == config.reward and config.reward.alpha == 0.5
    assert collector.settings.invalid_action_penalty == {"Verifier Agent": 0.25}
    assert {name: runtime.binding.sampling.max_tokens for name, runtime in collector.runtimes.items()} == {
        "Asker": 4,
        "Verifier Agent": 5,
    }


@pytest.mark.parametrize(
    ("common", "own", "train", "val"),
    [
        (None, "[null,null]", [("</a>",), ("</a>",)], [("</a>",), ("</a>",)]),
        ("[]", "[null,['.']]", [("</a>",), ("</a>",)], [(), (".",)]),
        ("['!']", "[null,[]]", [("</a>",), ("</a>",)], [("!",), ()]),
    ],
)
def test_texts_that_end_a_reply_may_be_others_in_validation(
    compose: Callable[..., Any],
    common: str | None,
    own: str,
    train: list[tuple[str, ...]],
    val: list[tuple[str, ...]],
) -> None:
    from agent_system.launch.checks import check_run
    from agent_system.launch.collector import build_collector

    rollout = "actor_rollout_ref.rollout"
    given = {f"{rollout}.stop": "['</a>']", "agent.agent_specific_parameters.rollout.val_kwargs.stop": own}
    config = compose(given if common is None else given | {f"{rollout}.val_kwargs.stop": common})
    run = check_run(config)
    runtimes = build_collector(
        config, run.plan, run.tokenizers, dict.fromkeys(run.tokenizers)
    ).runtimes.values()
    assert [runtime.binding.sampling.stop for runtime in runtimes] == train
    assert [runtime.binding.val_sampling.stop for runtime in runtimes] == val


@pytest.mark.parametrize(
    ("key", "values", "message"),
    [
        (
            "rollout.val_kwargs.top_p",
            "[null,0.5]",
            "val_kwargs.top_p=0.5 has no effect for agent 'Verifier Agent'",
        ),
        ("actor.kl_loss_type", "[k1,null]", "actor.kl_loss_type=k1 has no effect for agent 'Asker'"),
        ("model.lora_rank", "[4,null]", "model.lora_rank=4 has no effect for agent 'Asker'"),
    ],
)
def test_a_key_of_an_agent_that_nothing_reads_is_refused(
    train: Run, key: str, values: str, message: str
) -> None:
    greedy = {"actor_rollout_ref.rollout.val_kwargs.temperature": 0}
    with pytest.raises(IneffectiveKeyError, match=message):
        train(greedy | {f"agent.agent_specific_parameters.{key}": values})


def test_replies_of_validation_may_be_longer_than_those_of_training_and_fit_the_engine(
    train: Run, tmp_path: Path
) -> None:
    train(
        {
            "agent.agent_specific_parameters.rollout.val_kwargs.response_length": "[20,null]",
            "trainer.total_training_steps": 1,
        }
    )
    longest: dict[str, dict[str, int]] = {"train": {}, "val": {}}
    for file in (tmp_path / "run" / "trajectories").glob("*.jsonl"):
        kind = file.name.split("_")[0]
        for line in file.read_text().splitlines():
            for call in json.loads(line)["calls"]:
                longest[kind][call["agent_id"]] = max(
                    longest[kind].get(call["agent_id"], 0), call["response_tokens"]
                )
    assert longest["train"]["Asker"] <= 6 < longest["val"]["Asker"] <= 20
    assert longest["val"]["Verifier Agent"] <= 6
