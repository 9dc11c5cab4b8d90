"""Records of episodes and of their samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from numbers import Real
from typing import Any

import numpy as np

from agent_system.agent import Message
from agent_system.environment import Task
from agent_system.errors import AgentSystemError
from agent_system.tool_use import ToolUse
from verl.protocol.generate import Generation

# in the info of an episode: the error that a program raised because of a reply
PROGRAM_ERROR = "program_error"
NUMBERS = (bool, int, float, np.number, np.bool_)
# Fields of a sample's parts in trajectory files, in their order there.
IDENTITY_IN_FILES = ("policy_id", "turn", "call", "candidate", "committed", "greedy")
REWARDS_IN_FILES = (
    "act_reward", "fork_reward", "candidate_reward", "local_reward", "local_given", "team_reward",
    "step_reward", "mixed_reward", "invalid_penalty", "overlong_penalty", "reward",
)  # fmt: skip


def plain(value: Any) -> Any:
    """Return `value` in JSON types: numpy scalars as Python numbers, values of other types as
    `str(value)`.
    """
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (np.number, np.bool_)):
        return value.item()
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def finite(value: Any, name: str, where: str) -> float:
    """Return a reward as a float. Raise AgentSystemError, naming `where` it came from, unless it is
    a finite number.
    """
    number = float(value) if isinstance(value, Real) or hasattr(value, "__float__") else math.nan
    if not math.isfinite(number):
        raise AgentSystemError(f"{where} gave {name}={value!r}; rewards must be finite numbers")
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTimes:
    """When a call was made, in seconds from the start of its episode.

    Attributes:
        began: its prompt was ready.
        ended: its reply arrived.
        waited: seconds between them in which it waited for a slot of the gateway
            (`gateway.max_open_calls`) or of a server (`max_concurrent_requests`).
    """

    began: float
    ended: float
    waited: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleIdentity:
    """Which reply of an episode a sample is.

    Attributes:
        policy_id, wg_id: the policy that the sample trains, and its worker group.
        turn: environment step, from 1.
        call: call inside the turn, from 0.
        candidate: index among the replies sampled for this call, from 0.
        anchor: the state that the call acted on: `Observation.info["anchor"]`, else the text of
            this agent's observation; for a later round of a `ToolAgent` with the tool calls and
            results before it, for a summary with that word.
        prior_replies: the `order` of the next reply when this call's prompt was built: it may have
            read replies of a lower one.
        order: index of this reply in the episode, by time of arrival, from 0; the candidates of a
            call share it.
        committed: the episode continued with this reply. False for the other candidates of a tree.
        greedy: a greedy reply to the call of a tree, tried on a fork for its reward alone (ReMax);
            neither committed nor trained.
        trained: it is a row of a training batch; False for agents that are frozen or behind an API.
        final_call: for an earlier generation of a call (a round of a `ToolAgent`, a summary), the
            number of the last one in the turn, which `act` followed; else None.
        summary: it is a summary that the agent wrote for its memory.
        depth: number of spawns around its call; 0 outside of children.
        design: key of the team file whose steps made the call; empty without one.
        repeated: the same reply of another episode is trained instead (`rollout.repeat_calls`).
        explored: the episode of a tree went on with it by chance (`rollout.tree.epsilon`).
    """

    policy_id: str
    wg_id: str
    turn: int
    call: int
    candidate: int = 0
    anchor: str = ""
    prior_replies: int = 0
    order: int = 0
    committed: bool = True
    greedy: bool = False
    trained: bool = True
    final_call: int | None = None
    summary: bool = False
    depth: int = 0
    design: str = ""
    repeated: bool = False
    explored: bool = False

    @property
    def call_key(self) -> tuple[int, int]:
        """Turn and number of the call."""
        return self.turn, self.call

    @property
    def whole_call(self) -> tuple[int, int]:
        """Turn and number of the call that the generation belongs to; the number is that of its
        last generation.
        """
        return self.turn, self.call if self.final_call is None else self.final_call

    @property
    def ends_call(self) -> bool:
        """Whether it is the last generation of its call."""
        return self.final_call is None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """What the engine or server was asked for.

    Attributes:
        prompt_text: the prompt as given to the tokenizer.
        prompt_ids: its token ids.
        messages: chat messages of the prompt, for reward models; not in trajectory files.
        dropped_context: entries of the team context or memory left out, or cut, so that the prompt
            fits.
        seed: seed of the request.
        max_tokens: longest reply of the agent, in tokens, also where a program asked for a shorter
            one.
        masked: the tokens were sampled under a mask (`SamplingParams.structure`).
        pad_token_id: padding token of the row in a batch.
        program: facts of a request to the gateway, for trajectory files, in JSON types: `api`; where
            they exist `parent` (turn and number of the call whose conversation it goes on with),
            `shared` (tokens of that prompt and reply that the prompt begins with), `rewritten` (why
            tokens were rendered anew), `choice` (its number among the replies of the request) and
            `overridden` (fields for which the run's values were used).
    """

    prompt_text: str
    prompt_ids: tuple[int, ...]
    messages: tuple[Message, ...] = ()
    dropped_context: int = 0
    seed: int = 0
    max_tokens: int = 0
    masked: bool = False
    pad_token_id: int = 0
    program: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardTerms:
    """The rewards of a sample: those that arrived, and those that `assign_rewards` computes of
    them.

    Attributes:
        act_reward: `Outcome.team` of the `act` that followed this call; None when the environment
            has no `act`, and for a candidate that was not committed.
        local_reward: reward that the environment gave to this call alone; 0 where it gave none.
        local_given: the environment gave a local reward, possibly 0.
        token_rewards: the part of `local_reward` that belongs to single tokens, one number per
            token; empty if there is none.
        fork_reward: tree sampling: team reward of `act` and `score` on this candidate's own fork of
            the environment, else None.
        candidate_reward: tree sampling: `alpha * team + local` of `act` and `score` on this
            candidate's own fork; 0 otherwise.
        episode_local: tree sampling: local reward of the committed reply in the episode as played,
            where `score` gives none.
        team_reward: the team reward credited to this call, by `reward.team_scope` or
            `reward.propagation`.
        step_reward: `alpha` * the team rewards that arrived between this call and the agent's next
            one, plus `local_reward`, less both penalties.
        mixed_reward: `alpha * team_reward + local_reward`, before shaping.
        invalid_penalty: subtracted because the reply could not be parsed.
        overlong_penalty: subtracted because the reply came near the length limit.
        reward: `mixed_reward` shaped, less both penalties.
    """

    act_reward: float | None = None
    local_reward: float = 0.0
    local_given: bool = False
    token_rewards: tuple[float, ...] = ()
    fork_reward: float | None = None
    candidate_reward: float = 0.0
    episode_local: float = 0.0
    team_reward: float = 0.0
    step_reward: float = 0.0
    mixed_reward: float = 0.0
    invalid_penalty: float = 0.0
    overlong_penalty: float = 0.0
    reward: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One reply of one agent: a trainable row.

    Its own fields are the reply as a reward function reads it (`docs/rewards.md`), and what a
    `ToolAgent` adds.

    Attributes:
        agent_id: the agent.
        text: the reply as text, special tokens left out.
        action, valid, fields: result of the projection.
        reward_terms: named terms that reward functions reported for this call.
        identity: which reply of the episode it is, and of which policy.
        request: the prompt and how a reply to it was sampled.
        generation: the sampled tokens with their log-probs.
        rewards: its rewards.
        tools: tool calls of the reply of a `ToolAgent`, else None.
        rounds: the generations that are joined in this sample (`tool_samples=sequence`), without
            rewards of their own; empty for one.
        response_mask: 1 for the sampled tokens of `generation`, 0 for those of tool messages
            between them; empty: all are sampled.
        times: when its call was made; None where that is not recorded. No part of equality: a seed
            does not determine it.
    """

    agent_id: str
    text: str
    action: str
    valid: bool
    fields: Mapping[str, Any]
    identity: SampleIdentity
    request: SampleRequest
    generation: Generation
    rewards: RewardTerms = RewardTerms()
    reward_terms: Mapping[str, float] = field(default_factory=dict)
    tools: ToolUse | None = None
    rounds: tuple[Sample, ...] = ()
    response_mask: tuple[int, ...] = ()
    times: CallTimes | None = field(default=None, compare=False)

    @property
    def generations(self) -> tuple[Sample, ...]:
        """The generations of the sample, each with its own prompt and reply; the sample itself if
        it has one.
        """
        return self.rounds or (self,)

    def with_identity(self, **changes: Any) -> Sample:
        """Return the sample with other values in `identity`."""
        return replace(self, identity=replace(self.identity, **changes))

    def with_rewards(self, **changes: Any) -> Sample:
        """Return the sample with other values in `rewards`."""
        return replace(self, rewards=replace(self.rewards, **changes))

    @property
    def mean_version(self) -> float:
        """Version of the weights, averaged over the tokens that they sampled."""
        replies = [s.generation for s in self.generations]
        return sum(reply.mean_version * len(reply.token_ids) for reply in replies) / sum(
            len(reply.token_ids) for reply in replies
        )

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt; behind an API the server's count, 0 when it gives none."""
        return int(getattr(self.generation, "prompt_tokens", len(self.request.prompt_ids)))

    @property
    def response_tokens(self) -> int:
        """Sampled tokens of the reply; behind an API the server's count, 0 when it gives none."""
        sampled = sum(self.response_mask) if self.response_mask else len(self.generation.token_ids)
        return int(getattr(self.generation, "reply_tokens", sampled))

    def to_json(self) -> dict[str, Any]:
        """Return the entry of this call in a trajectory file."""
        return {
            "agent_id": self.agent_id,
            **{name: getattr(self.identity, name) for name in IDENTITY_IN_FILES},
            "prompt": self.request.prompt_text,
            "reply": self.text,
            "action": self.action,
            "valid": self.valid,
            "fields": plain(self.fields),
            **{name: getattr(self.rewards, name) for name in REWARDS_IN_FILES},
            "prompt_tokens": self.prompt_tokens,
            "response_tokens": self.response_tokens,
            "trained": self.identity.trained,
            "stop_reason": self.generation.stop_reason,
            "dropped_context": self.request.dropped_context,
            "version": self.generation.version,
            "seed": self.request.seed,
            "anchor": self.identity.anchor,
            **({"reward_terms": dict(self.reward_terms)} if self.reward_terms else {}),
            **({"token_rewards": list(tokens)} if (tokens := self.rewards.token_rewards) else {}),
            **({} if self.tools is None else {"tools": asdict(self.tools)}),
            **({"summary": True} if self.identity.summary else {}),
            **({"masked": True} if self.request.masked else {}),
            **({"depth": self.identity.depth} if self.identity.depth else {}),
            **({"design": self.identity.design} if self.identity.design else {}),
            **({"repeated": True} if self.identity.repeated else {}),
            **self._details(),
            **({"rounds": [s._round() for s in self.rounds]} if self.rounds else {}),
        }

    def _details(self) -> dict[str, Any]:
        """Return what few calls have, and what is recorded for readers: when the call was made, and by
        which request of a program.
        """
        identity = self.identity
        times = self.times
        final = identity.final_call
        spans = self.generation.spans if self.generation.earlier else ()
        return {
            **({} if final is None else {"final_call": final}),
            **({"explored": True} if identity.explored else {}),
            **({"versions": [list(span) for span in spans]} if spans else {}),
            **(
                {}
                if times is None
                else {
                    "order": identity.order,
                    "prior_replies": identity.prior_replies,
                    "began": round(times.began, 3),
                    "ended": round(times.ended, 3),
                    **({"waited": waited} if (waited := round(times.waited, 3)) else {}),
                    **({"request": dict(program)} if (program := self.request.program) else {}),
                }
            ),
        }

    def _round(self) -> dict[str, Any]:
        """Return the entry of one of several generations."""
        entry = self.to_json()
        names = (
            "reply",
            "action",
            "valid",
            "fields",
            "prompt_tokens",
            "response_tokens",
            "stop_reason",
            "version",
            "seed",
            "tools",
        )
        times = ("began", "ended", "waited", "versions")
        return {name: entry[name] for name in (*names, *(name for name in times if name in entry))}


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """One finished or failed episode.

    Attributes:
        uid: id of the group: all episodes of one task in one step.
        traj_uid: id of this episode.
        task_id, data_source: the task.
        index: number of the episode in its group, from 0.
        samples: its calls, in order; with tree sampling all candidates of each call.
        team_reward: summed over the episode, in order of calls and turns.
        turns: number of turns played.
        info: values reported by environment and orchestra; later turns overwrite earlier ones.
        failure: why the episode was left out, or None.
        turn_rewards: `Outcome.team` of `step`, one per turn; 0 for a turn that `act` ended.
        left_out: number of candidates of a tree that could not be sampled or scored.
        left_out_causes: the same by cause.
        answer: the action that the orchestra passed to the environment at the end of the last turn,
            as text; empty if `act` ended it.
        task: the task with its ground truth and extra data, for reward functions; not in trajectory
            files.
        reward_terms: named terms that a reward function reported for the episode.
        unheard: replies to a program that no client got (`agent_system.gateway`), and rounds of a
            `ToolAgent`'s call that failed; they are neither rewarded nor trained.
        started: when it began, in seconds since the epoch; 0 where that is not recorded. No part of
            equality.
        states: what `BaseEnv.render` returned after the reset and after every turn, in JSON types;
            empty where it was not asked.
    """

    uid: str
    traj_uid: str
    task_id: str
    data_source: str
    index: int
    samples: tuple[Sample, ...]
    team_reward: float
    turns: int
    info: Mapping[str, Any] = field(default_factory=dict)
    failure: str | None = None
    turn_rewards: tuple[float, ...] = ()
    left_out: int = 0
    answer: str = ""
    task: Task | None = None
    reward_terms: Mapping[str, float] = field(default_factory=dict)
    unheard: tuple[Sample, ...] = ()
    left_out_causes: Mapping[str, int] = field(default_factory=dict)
    started: float = field(default=0.0, compare=False)
    states: tuple[Any, ...] = ()

    @property
    def committed(self) -> tuple[Sample, ...]:
        """The committed samples of the episode, one per call."""
        return tuple(s for s in self.samples if s.identity.committed)

    @property
    def branched(self) -> bool:
        """Whether it is an episode of tree sampling."""
        return any(s.rewards.fork_reward is not None for s in self.samples)

    def term(self, sample: Sample, name: str) -> float | None:
        """Return a named term of a reward: that of the sample, of its final call, or of the
        episode; None if none of these has it.
        """
        identity = sample.identity
        # only an earlier generation has another final call: looking for that of every sample would
        # take a long episode its square
        final = [
            s.reward_terms
            for s in (() if identity.ends_call else self.committed)
            if s.identity.call_key == (identity.turn, identity.final_call)
        ]
        return next(
            (terms[name] for terms in (sample.reward_terms, *final, self.reward_terms) if name in terms), None
        )

    def with_team_reward(self, team: float) -> EpisodeRecord:
        """Return the episode with another team reward, which arrives at its end."""
        samples = tuple(
            s if s.rewards.act_reward is None else s.with_rewards(act_reward=0.0) for s in self.samples
        )
        return replace(
            self,
            team_reward=team,
            turn_rewards=(*(0.0 for _ in self.turn_rewards[1:]), team),
            samples=samples,
        )

    def as_played(self) -> EpisodeRecord:
        """Return the committed replies of a tree as an episode of parallel sampling."""
        samples = tuple(
            s
            if s.rewards.fork_reward is None
            else s.with_rewards(fork_reward=None, local_reward=s.rewards.episode_local)
            for s in self.committed
        )
        return replace(self, samples=samples)

    @property
    def failed(self) -> bool:
        """Whether the episode ended in an error; it is then in no batch."""
        return self.failure is not None

    @property
    def reply_tokens(self) -> int:
        """Tokens generated by engines of the run, candidates that were not committed and unheard
        replies included.
        """
        return sum(len(g.generation.token_ids) for s in (*self.samples, *self.unheard) for g in s.generations)

    @property
    def scores(self) -> dict[str, float]:
        """`team_reward` and every number (or boolean) of `info`, such as `success`."""
        return {
            "team_reward": self.team_reward,
            **{k: float(v) for k, v in self.info.items() if isinstance(v, NUMBERS)},
        }

    def to_json(self) -> dict[str, Any]:
        """Return the line of a trajectory file."""
        return {
            "uid": self.uid,
            "traj_uid": self.traj_uid,
            "task_id": self.task_id,
            "data_source": self.data_source,
            "index": self.index,
            "turns": self.turns,
            "team_reward": self.team_reward,
            "turn_rewards": list(self.turn_rewards),
            "info": plain(self.info),
            "failure": self.failure,
            "left_out": self.left_out,
            **({"left_out_causes": dict(self.left_out_causes)} if self.left_out_causes else {}),
            "answer": self.answer,
            **({"started": round(self.started, 3)} if self.started else {}),
            **({"reward_terms": dict(self.reward_terms)} if self.reward_terms else {}),
            "calls": [s.to_json() for s in self.samples],
            **({"unheard": [s.to_json() for s in self.unheard]} if self.unheard else {}),
            **({"states": list(self.states)} if self.states else {}),
        }
