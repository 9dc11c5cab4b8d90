"""From samples to the `DataProto` of the workers, as wide as its longest row."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from agent_system.record import EpisodeRecord, Sample
from verl.protocol import DataProto

# Fields that are columns of the batch under their own names: of the episode, and of each sample.
EPISODE_COLUMNS = ("uid", "traj_uid", "task_id", "data_source")
SAMPLE_COLUMNS = {
    path.rpartition(".")[2]: path
    for path in (
        "agent_id", "identity.policy_id", "identity.wg_id", "identity.turn", "identity.call",
        "identity.depth", "identity.candidate", "identity.committed", "rewards.team_reward",
        "rewards.local_reward", "rewards.step_reward", "rewards.mixed_reward", "rewards.invalid_penalty",
        "rewards.overlong_penalty", "rewards.reward", "valid", "identity.anchor",
        "rewards.candidate_reward", "request.masked", "identity.design",
    )
}  # fmt: skip


def build_batch(
    episodes: Sequence[EpisodeRecord],
    critic_prompts: Sequence[Sequence[int]] | None = None,
    *,
    greedy_baselines: bool = False,
    token_rewards: bool = False,
    reward_terms: Mapping[str, Collection[str]] | None = None,
) -> DataProto | None:
    """Return one row per trained sample of the episodes that did not fail, in their order; None
    when there is no such sample.

    Tensors: `prompts` [bsz, P] left-padded, `responses` [bsz, R] right-padded, `input_ids`,
    `attention_mask`, `position_ids` [bsz, P + R], `response_mask` [bsz, R] (0 for padding and tool
    messages), `rollout_log_probs` [bsz, R] float32. P and R are the longest of the batch.
    Objects: the sample fields of `_columns`, and `repeated_reward`: of an earlier generation of a
    call its reward before penalties, which the last one has as well; 0 of others; `replies`,
    `partial_replies` and
    `partial_span`: number of its generations, of those with several weight versions, and the most
    steps between the first and the last version of one. With `critic_prompts` (see `joint_prompts`)
    also `critic_prompts` [bsz, Pc] left-padded and `critic_prompt_mask` [bsz, Pc]; with
    `token_rewards` also `token_rewards` [bsz, R] float64, 0 where a token has none. With
    `reward_terms` (agent -> names) each of these terms is a column, NaN where a call has none or
    its agent does not learn from it. With `greedy_baselines` the column `reward_baselines` has the
    reward of the greedy reply to the row's call; of a call without one, the mean reward of its
    candidates.
    """
    rows = [(e, s) for e in episodes if not e.failed for s in e.samples if s.identity.trained]
    if not rows:
        return None
    samples = [s for _, s in rows]
    pad = np.fromiter((s.request.pad_token_id for s in samples), np.int64, len(samples))[:, None]
    prompts, prompt_mask = _pack((s.request.prompt_ids for s in samples), np.int64, pad, left=True)
    responses, response_attention = _pack(
        (s.generation.token_ids for s in samples), np.int64, pad, left=False
    )
    masks = (s.response_mask or (1,) * len(s.generation.token_ids) for s in samples)
    response_mask, _ = _pack(masks, np.int64, np.zeros_like(pad), left=False)
    log_probs, _ = _pack(
        (s.generation.log_probs for s in samples), np.float32, np.zeros_like(pad), left=False
    )
    attention_mask = np.concatenate([prompt_mask, response_attention], axis=1)
    left_pad = prompts.shape[1] - prompt_mask.sum(axis=1, keepdims=True)
    positions = np.maximum(np.arange(attention_mask.shape[1])[None, :] - left_pad, 0)
    tensors = {
        "prompts": prompts,
        "responses": responses,
        "response_mask": response_mask,
        "input_ids": np.concatenate([prompts, responses], axis=1),
        "attention_mask": attention_mask.astype(np.int64),
        "position_ids": positions.astype(np.int64),
        "rollout_log_probs": log_probs,
    }
    if token_rewards:
        token_reward_rows = (s.rewards.token_rewards or (0.0,) * len(s.generation.token_ids) for s in samples)
        tensors["token_rewards"], _ = _pack(token_reward_rows, np.float64, np.zeros_like(pad), left=False)
    if critic_prompts is not None:
        tensors["critic_prompts"], critic_mask = _pack(critic_prompts, np.int64, pad, left=True)
        tensors["critic_prompt_mask"] = critic_mask.astype(np.int64)
    columns = _columns(rows)
    named = dict.fromkeys(name for names in (reward_terms or {}).values() for name in names)
    columns = {name: _term(rows, name, reward_terms or {}) for name in named} | columns
    shaped = [s.rewards.reward + s.rewards.invalid_penalty + s.rewards.overlong_penalty for s in samples]
    columns["repeated_reward"] = np.array(
        [0.0 if s.identity.ends_call else r for s, r in zip(samples, shaped, strict=True)]
    )
    spans = [[g.generation.version - g.generation.oldest_version for g in s.generations] for s in samples]
    columns["replies"] = np.array([len(version_spans) for version_spans in spans])
    columns["partial_replies"] = np.array([sum(map(bool, version_spans)) for version_spans in spans])
    columns["partial_span"] = np.array([max(version_spans) for version_spans in spans])
    if greedy_baselines:
        by_episode = {e.traj_uid: _baselines(e) for e in episodes}
        columns["reward_baselines"] = _objects([by_episode[e.traj_uid][s.identity.call_key] for e, s in rows])
    return DataProto.from_dict(
        tensors={k: torch.from_numpy(v) for k, v in tensors.items()}, non_tensors=columns
    )


def _pack(
    rows: Iterable[Sequence[Any]], dtype: Any, pad: np.ndarray, *, left: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of different lengths as one array [bsz, longest] and the mask of entries that are
    not padding.
    """
    rows = list(rows)
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    width = int(lengths.max())
    columns = np.arange(width)[None, :]
    mask = columns >= width - lengths[:, None] if left else columns < lengths[:, None]
    packed = np.broadcast_to(pad, mask.shape).astype(dtype)
    # row by row: other threads run in between
    for row, tokens in zip(packed, rows, strict=True):
        row[width - len(tokens) if left else 0 :][: len(tokens)] = np.fromiter(tokens, dtype, len(tokens))
    return packed, mask


def _columns(rows: Sequence[tuple[EpisodeRecord, Sample]]) -> dict[str, np.ndarray]:
    columns: dict[str, list[Any]] = {name: [getattr(e, name) for e, _ in rows] for name in EPISODE_COLUMNS}
    samples = [s for _, s in rows]
    columns |= {name: list(map(attrgetter(path), samples)) for name, path in SAMPLE_COLUMNS.items()}
    columns["mean_version"] = [s.mean_version for s in samples]
    for name in ("version", "oldest_version"):
        columns[name] = [getattr(s.generation, name) for s in samples]
    columns["response_clipped"] = [s.generation.stop_reason == "length" for s in samples]
    columns["prompt_clipped"] = [s.request.dropped_context > 0 for s in samples]
    return {name: _objects(values) for name, values in columns.items()}


def _term(
    rows: Sequence[tuple[EpisodeRecord, Sample]], name: str, agent_terms: Mapping[str, Collection[str]]
) -> np.ndarray:
    term_values = [e.term(s, name) if name in agent_terms.get(s.agent_id, ()) else None for e, s in rows]
    return np.array([math.nan if value is None else value for value in term_values], dtype=np.float64)


def _baselines(episode: EpisodeRecord) -> dict[tuple[int, int], float]:
    calls: dict[tuple[int, int], dict[bool, list[float]]] = {}
    for sample in episode.samples:
        calls.setdefault(sample.identity.call_key, {}).setdefault(sample.identity.greedy, []).append(
            sample.rewards.reward
        )
    return {call: float(np.mean(rewards.get(True) or rewards[False])) for call, rewards in calls.items()}


def _objects(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
