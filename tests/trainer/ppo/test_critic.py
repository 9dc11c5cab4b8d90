"""Who has a critic, what it reads, and what cannot be used."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.plans import plan_of
from verl.models.loader import load_tokenizer
from verl.protocol import DataProto
from verl.trainer.config import AgentConfig, AlgorithmConfig, RunConfig
from verl.trainer.config.spec import ConfigError
from verl.trainer.model_checks import check_critic
from verl.trainer.plan.checks import check_critic_keys
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est
from verl.trainer.ppo.critic import (
    critic_rows,
    critic_signature,
    value_metrics,
)


def make_run(model: Path, sharing: bool = False, **algorithm: Any) -> RunConfig:
    level = "prompt" if sharing else "full"
    config = RunConfig(agent=AgentConfig(agent_ids=["Solver", "Judge"], specialization=level))
    config.actor_rollout_ref.model.path = str(model)
    config.algorithm = replace(config.algorithm, **algorithm)
    return config


def test_a_group_has_a_critic_when_one_of_its_agents_needs_values(tiny_model_dir: Path) -> None:
    def agents(
        sharing: bool = False, enable: bool | None = None, **algorithm: Any
    ) -> dict[str, tuple[str, ...]]:
        config = make_run(tiny_model_dir, sharing, **algorithm)
        config.critic.enable = enable
        return dict(plan_of(config).critics)

    assert agents() == {}
    assert agents(adv_estimator="gae") == {"solver": ("Solver",), "judge": ("Judge",)}
    mixed = {"adv_estimator": "grpo", "per_agent": {"Judge": {"adv_estimator": "gae"}}}
    assert agents(**mixed) == {"judge": ("Judge",)}
    assert list(agents(sharing=True, **mixed).values()) == [("Judge",)]
    assert agents(enable=True) == {"solver": ("Solver",), "judge": ("Judge",)}
    assert agents(enable=False) == {}
    config = make_run(tiny_model_dir, adv_estimator="gae")
    config.trainer.val_only = True
    assert plan_of(config).critics == {} and critic_signature(config.critic, plan_of(config)) == {}, (
        "an evaluation needs no critic"
    )


def test_an_estimator_of_ones_own_gets_a_critic_by_naming_values() -> None:
    @register_adv_est("reads_values")
    def reads_values(token_level_rewards: Any, response_mask: Any, values: Any) -> None: ...

    try:
        needs = {
            name: plan_of(RunConfig(algorithm=AlgorithmConfig(adv_estimator=name))).needs_critic
            for name in ("reads_values", "gae", "grpo")
        }
        assert needs == {"reads_values": True, "gae": True, "grpo": False}
    finally:
        del ADV_ESTIMATOR_REGISTRY["reads_values"]


def test_a_critic_starts_from_the_policys_model_and_keeps_its_tokenizer(tiny_model_dir: Path) -> None:
    config = make_run(tiny_model_dir)
    config.critic.model.enable_gradient_checkpointing = True
    own = plan_of(config).groups[0].critic.model
    assert (own.path, own.tokenizer_path, own.enable_gradient_checkpointing) == (
        str(tiny_model_dir),
        str(tiny_model_dir),
        True,
    )
    config.critic.model.path = "other/model"
    other = plan_of(config).groups[0].critic.model
    assert (other.path, other.tokenizer_path) == ("other/model", str(tiny_model_dir))


def make_batch() -> DataProto:
    """Two rows: prompts of 2 and 1 tokens, replies of 1 and 2; the critics' prompts have 3 and 1."""
    attention = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]])
    tensors = {
        "prompts": torch.tensor([[5, 6], [0, 7]]),
        "responses": torch.tensor([[8, 0], [9, 10]]),
        "response_mask": torch.tensor([[1, 0], [1, 1]]),
        "input_ids": torch.tensor([[5, 6, 8, 0], [0, 7, 9, 10]]),
        "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
        "critic_prompts": torch.tensor([[4, 5, 6], [0, 0, 7]]),
        "critic_prompt_mask": torch.tensor([[1, 1, 1], [0, 0, 1]]),
        "values": torch.tensor([[1.0, 0.0], [2.0, 4.0]]),
        "returns": torch.tensor([[9.0, 0.0], [2.0, 3.0]]),
        "advantages": torch.zeros(2, 2),
        "token_level_scores": torch.zeros(2, 2),
        "token_level_rewards": torch.zeros(2, 2),
    }
    columns = {
        "wg_id": np.array(["a", "b"], dtype=object),
        "agent_id": np.array(["Solver", "Judge"], dtype=object),
    }
    return DataProto.from_dict(tensors=tensors, non_tensors=columns)


def test_the_joint_view_puts_the_transcript_before_the_reply() -> None:
    rows = critic_rows(make_batch(), ["Solver", "Judge"]).batch
    assert rows["input_ids"].tolist() == [[4, 5, 6, 8, 0], [0, 0, 7, 9, 10]]
    assert rows["attention_mask"].tolist() == [[1, 1, 1, 1, 0], [0, 0, 1, 1, 1]]
    assert rows["position_ids"].tolist() == [[0, 1, 2, 3, 3], [0, 0, 0, 1, 2]]
    assert rows["prompts"].tolist() == [[4, 5, 6], [0, 0, 7]] and rows["response_mask"].tolist() == [
        [1, 0],
        [1, 1],
    ]


def test_rows_of_agents_without_values_are_padding_to_the_critics() -> None:
    batch = make_batch()
    assert critic_rows(batch, ["Judge"]).batch["response_mask"].tolist() == [[0, 0], [1, 1]]
    assert batch.batch["response_mask"].tolist() == [[1, 0], [1, 1]], "the batch itself stays"


def test_metrics_of_values_are_those_of_the_rows_that_have_some() -> None:
    """Judge: values 2 and 4, returns 2 and 3: var(errors 0, -1) = 0.5, var(returns) = 0.5."""
    metrics = value_metrics(make_batch(), {"b": ("Judge",)})
    assert metrics["critic/values/mean"] == 3.0 and metrics["wg/b/critic/values/max"] == 4.0
    assert metrics["critic/vf_explained_var"] == pytest.approx(0.0, abs=1e-4)
    assert value_metrics(make_batch(), {"c": ("Nobody",)}) == {}


def refuse(config: RunConfig, words: str) -> None:
    plan = plan_of(config)
    tokenizers = {g.wg_id: load_tokenizer(g.model_path) for g in plan.groups}
    with pytest.raises(ConfigError, match=words):
        check_critic_keys(config.critic, plan)
        check_critic(config.critic, plan, tokenizers)


def test_values_that_nobody_makes_are_refused_naming_both_keys(tiny_model_dir: Path) -> None:
    config = make_run(tiny_model_dir, per_agent={"judge": {"adv_estimator": "gae"}})
    config.critic.enable = False
    refuse(config, r"adv_estimator=gae of agent 'Judge'.*critic\.enable=false")


def test_a_critic_that_no_estimator_reads_is_refused(tiny_model_dir: Path) -> None:
    config = make_run(tiny_model_dir, adv_estimator="gae", per_agent={"judge": {"adv_estimator": "grpo"}})
    config.critic.enable = True
    refuse(config, r"critic\.enable=true.*adv_estimator=grpo of agent 'Judge' reads no values")


def test_a_transcript_too_short_for_the_prompt_is_refused(tiny_model_dir: Path) -> None:
    config = make_run(tiny_model_dir, adv_estimator="gae")
    config.critic.joint_prompt_length, config.data.max_prompt_length = 50, 60
    refuse(config, r"critic\.joint_prompt_length=50.*'Solver'.*60 tokens")


def test_a_model_that_is_missing_or_speaks_other_tokens_is_refused(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    from verl.models.tiny import TinyModelSize, make_tiny_model

    config = make_run(tiny_model_dir, adv_estimator="gae")
    config.critic.model.path = "/no/such/model"
    refuse(config, r"critic\.model\.path='/no/such/model' \(critic of 'solver'\).*does not exist")
    size = TinyModelSize(hidden_size=16, intermediate_size=16, num_layers=1, num_heads=2, num_kv_heads=1)
    config.critic.model.path = str(make_tiny_model(tmp_path / "other", ["abc"], size=size, vocab_size=300))
    refuse(config, r"another vocabulary than the policy 'solver'")
