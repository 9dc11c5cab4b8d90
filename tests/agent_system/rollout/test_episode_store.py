"""Files of episodes: that of a sample before it had parts is read, and written in the same way."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from agent_system.record import EpisodeRecord, RewardTerms, Sample, SampleIdentity, SampleRequest
from agent_system.rollout.episode_store import EPISODES, TENSORS, TOKENS, load_episodes, save_episodes
from verl.protocol.generate import Generation

EARLIER = (
    '{"class": "EpisodeRecord", "uid": "u", "traj_uid": "u#0", "task_id": "t", "data_source": "d", "index": 0, '
    '"samples": [{"class": "Sample", "agent_id": "Solver", "policy_id": "solver", "wg_id": "group", "turn": 1, '
    '"call": 1, "candidate": 2, "prompt_text": "2+2?", "prompt_ids": 3, "generation": {"class": "Generation", '
    '"token_ids": 2, "log_probs": 2, "stop_reason": "stop", "version": 3, "earlier": [[2, 1]]}, "text": "4 ", '
    '"action": "4", "valid": true, "fields": {"parsed": true}, "dropped_context": 1, "pad_token_id": 10, '
    '"seed": 11, "max_tokens": 16, "anchor": "2+2", "act_reward": 0.5, "local_reward": 0.25, '
    '"local_given": true, "team_reward": 1.0, "step_reward": 0.75, "mixed_reward": 1.25, '
    '"invalid_penalty": 0.125, "overlong_penalty": 0.0625, "reward": 1.0625, "prior_replies": 1, "order": 2, '
    '"committed": true, "fork_reward": 0.5, "candidate_reward": 0.875, "episode_local": 0.375, '
    '"greedy": false, "trained": true, "reward_terms": {"style": 1.0}, "token_rewards": 2, "tools": null, '
    '"final_call": 2, "summary": false, "messages": [{"role": "user", "content": "2+2?"}], "rounds": [], '
    '"response_mask": 0, "masked": true}], "team_reward": 1.0, "turns": 1, "info": {}, "failure": null, '
    '"turn_rewards": [], "left_out": 0, "answer": "", "task": null, "reward_terms": {}, "unheard": []}'
)
NUMBERS = {
    "prompt_ids": [5, 6, 7],
    "response_mask": [],
    "token_ids": [8, 9],
    "log_probs": [-0.5, -0.25],
    "token_rewards": [0.0, 0.25],
}
SAMPLE = Sample(
    agent_id="Solver",
    text="4 ",
    action="4",
    valid=True,
    fields={"parsed": True},
    identity=SampleIdentity(
        policy_id="solver",
        wg_id="group",
        turn=1,
        call=1,
        candidate=2,
        anchor="2+2",
        prior_replies=1,
        order=2,
        final_call=2,
    ),
    request=SampleRequest(
        prompt_text="2+2?",
        prompt_ids=(5, 6, 7),
        messages=({"role": "user", "content": "2+2?"},),
        dropped_context=1,
        seed=11,
        max_tokens=16,
        masked=True,
        pad_token_id=10,
    ),
    generation=Generation((8, 9), (-0.5, -0.25), "stop", version=3, earlier=((2, 1),)),
    rewards=RewardTerms(
        act_reward=0.5,
        local_reward=0.25,
        local_given=True,
        token_rewards=(0.0, 0.25),
        fork_reward=0.5,
        candidate_reward=0.875,
        episode_local=0.375,
        team_reward=1.0,
        step_reward=0.75,
        mixed_reward=1.25,
        invalid_penalty=0.125,
        overlong_penalty=0.0625,
        reward=1.0625,
    ),
    reward_terms={"style": 1.0},
)
EPISODE = EpisodeRecord(
    uid="u",
    traj_uid="u#0",
    task_id="t",
    data_source="d",
    index=0,
    samples=(SAMPLE,),
    team_reward=1.0,
    turns=1,
)


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A folder as it was written before samples had parts."""
    (tmp_path / EPISODES).write_text(EARLIER + "\n")
    tensors = {name: torch.tensor(NUMBERS[name], dtype=dtype) for name, dtype in TENSORS.items()}
    save_file(tensors, tmp_path / TOKENS)
    return tmp_path


def test_a_file_of_an_earlier_version_is_read(earlier: Path) -> None:
    assert load_episodes(earlier) == [EPISODE]


def test_the_file_has_the_keys_and_values_of_earlier_versions(tmp_path: Path) -> None:
    save_episodes([EPISODE], tmp_path)
    expected = json.loads(EARLIER)
    expected["samples"][0] |= {"depth": 0, "design": "", "repeated": False}  # added since
    assert json.loads((tmp_path / EPISODES).read_text()) == expected
    assert load_episodes(tmp_path) == [EPISODE]
