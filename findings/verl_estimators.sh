#!/usr/bin/env bash
# verl 0.9.1: estimators and losses of `verl.trainer.ppo.core_algos` that are said to be the same, or to follow an option, and are not.
#
# 1. A reward on a token whose `response_mask` is 0 is lost by `gae`, `reinforce_plus_plus` and `remax`, and counted by `grpo`, `rloo` and
#    the others that sum over the row. The reward managers place it on the last token of the attention mask, which is such a token where an
#    agent loop ends a sample with a tool's answer: there the three learn from a reward of 0, whatever the episode earned.
# 2. A group of one sample: `rloo` gives its reward as the advantage, `rloo_vectorized` 0.
# 3. The losses `sapo` and `geo_mean` do not read `loss_agg_mode`: all modes give the mean over sequences of the mean over tokens.
#
# Output of the last part of this script:
#   gae: the advantage of the first sample over the second is 1.94, 0.00 where it ends with an observation
#   reinforce_plus_plus: the advantage of the first sample over the second is 1.94, 0.00 where it ends with an observation
#   remax: the advantage of the first sample over the second is 1.00, 0.00 where it ends with an observation
#   grpo: the advantage of the first sample over the second is 1.41, 1.41 where it ends with an observation
#   rloo: the advantage of the first sample over the second is 2.00, 2.00 where it ends with an observation
#   rloo: a sample without others in its group has the advantage 1.0
#   rloo_vectorized: a sample without others in its group has the advantage 0.0
#   vanilla: loss by token-mean, seq-mean-token-sum, seq-mean-token-mean [-0.4, -1.0, 0.5]
#   sapo: loss by token-mean, seq-mean-token-sum, seq-mean-token-mean [0.905, 0.905, 0.905]
#   geo_mean: loss by token-mean, seq-mean-token-sum, seq-mean-token-mean [0.5, 0.5, 0.5]
#
# The script ends with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check verl==0.9.1 torch==2.13.0 transformers==5.10.4 tensordict==0.10.0
"$folder/venv/bin/python" - 2> /dev/null <<'PYTHON'
import sys
import types

import numpy as np
import torch
from verl import DataProto
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
from verl.workers.config import FSDPActorConfig
from verl.workers.reward_manager.naive import NaiveRewardManager

GROUPS = np.array(["a", "a", "b", "b"], dtype=object)
OPTIONS = {
    "gae": lambda rewards: {"values": torch.zeros_like(rewards), "gamma": 1.0, "lam": 1.0},
    "reinforce_plus_plus": lambda rewards: {"config": types.SimpleNamespace(gamma=1.0)},
    "remax": lambda rewards: {"reward_baselines": torch.zeros(len(rewards))},
    "grpo": lambda rewards: {"index": GROUPS},
    "rloo": lambda rewards: {"index": GROUPS},
}
as_described = []

# Four samples of four tokens; the first and the third get reward 1. The first ends with two tokens of a tool's answer.
ones = torch.ones(4, 4, dtype=torch.long)
batch = DataProto.from_dict(
    tensors={"prompts": ones, "responses": ones, "attention_mask": torch.ones(4, 8, dtype=torch.long)},
    non_tensors={
        "data_source": np.array(["any"] * 4, dtype=object),
        "reward_model": np.array([{"ground_truth": value} for value in (1.0, 0.0, 1.0, 0.0)], dtype=object),
    },
)
decoder = types.SimpleNamespace(decode=lambda ids, **options: "answer")
rewards = NaiveRewardManager(decoder, 0, compute_score=lambda ground_truth, **rest: ground_truth)(batch)
own = torch.ones(4, 4)
cut = own.clone()
cut[0, 2:] = 0
for name, options in OPTIONS.items():
    estimate = get_adv_estimator_fn(name)
    seen = []
    for mask in (own, cut):
        advantages, returns = estimate(token_level_rewards=rewards.clone(), response_mask=mask, **options(rewards))
        seen.append((advantages[0, 0] - advantages[1, 0]).item())
    print(f"{name}: the advantage of the first sample over the second is {seen[0]:.2f}, {seen[1]:.2f} where it ends with an observation")
    as_described.append(seen[0] > 0.9 and (abs(seen[1]) < 1e-6) == (name in ("gae", "reinforce_plus_plus", "remax")))

single = np.array(["a", "b", "c", "d"], dtype=object)
for name, expected in (("rloo", 1.0), ("rloo_vectorized", 0.0)):
    advantages, returns = get_adv_estimator_fn(name)(token_level_rewards=rewards.clone(), response_mask=own, index=single)
    print(f"{name}: a sample without others in its group has the advantage {advantages[0, 0]:.1f}")
    as_described.append(advantages[0, 0].item() == expected)

config = FSDPActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=2, ppo_mini_batch_size=2)
mask = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0]])
advantages = torch.tensor([[1.0], [-2.0]]) * mask
log_probs = torch.full((2, 4), -1.0)
for name in ("vanilla", "sapo", "geo_mean"):
    losses = []
    for mode in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean"):
        loss, metrics = get_policy_loss_fn(name)(
            old_log_prob=log_probs, log_prob=log_probs, advantages=advantages, response_mask=mask, loss_agg_mode=mode, config=config
        )
        losses.append(round(loss.item(), 3))
    print(f"{name}: loss by token-mean, seq-mean-token-sum, seq-mean-token-mean {losses}")
    as_described.append((len(set(losses)) == 1) == (name != "vanilla"))
sys.exit(0 if all(as_described) else 1)
PYTHON
