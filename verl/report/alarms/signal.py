"""Alarms 12 to 16: nothing is learnt, or not by everyone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from verl.report.alarms.base import Reading, Rule
from verl.report.alarms.collapse import examples_of
from verl.report.alarms.facts import AgentFacts, StepFacts
from verl.report.alarms.history import History

LR_SPENT = 0.02
STEPS_LEFT = 0.2
ROOM = 0.1
SILENT = 0.6
FEWEST_GROUPS = 8
POSITIVE_LOW = 0.25
POSITIVE_HIGH = 0.9
FEWEST_ROWS = 64
GRADIENT_SHARE = 0.95
DUPLICATES = 0.2
FEWEST_PAIRS = 200
LAZY_CALLS = 200
ONE_ACTION = 0.98
UNHEARD = 0.98
COPIED = 0.9


def no_update(history: History) -> Iterator[Reading]:
    """Judge whether policies still move: learning rate, skipped updates, gradients of 0."""
    step = history.steps[-1]
    left = 1 - step / history.total_steps if history.total_steps else 0.0
    for policy, key in history.named("wg", "actor/lr"):
        rate = history.now(key)
        highest = max(history.window(key, len(history.steps)), default=0.0)
        if rate is None or highest <= 0:
            continue
        yield Reading(
            min(LR_SPENT * highest / max(rate, 1e-30), left / STEPS_LEFT, history.room() / ROOM),
            f"The learning rate of policy {policy} is {rate:.1e}, {rate / highest:.1%} of its "
            f"highest, with {left:.0%} "
            f"of the steps left and {history.room():.0%} of the success missing.",
            f"lr {policy}",
            (
                "actor_rollout_ref.actor.optim.total_training_steps",
                "actor_rollout_ref.actor.optim.min_lr_ratio=0.1",
            ),
            (key,),
        )
        advantages = [
            history.now(f"agent/{name}/advantage_abs") or 0.0 for name in _agents_of(history, policy)
        ]
        norm = history.now(f"wg/{policy}/actor/grad_norm")
        if norm is not None and rate > 0:
            yield Reading(
                float(norm == 0 and max(advantages, default=0.0) > 0),
                f"The gradient of policy {policy} is 0, though there are advantages.",
                f"norm {policy}",
                (
                    "actor_rollout_ref.actor.clip_ratio_high",
                    "algorithm.rollout_correction for masks of all tokens",
                ),
                (f"wg/{policy}/actor/grad_norm",),
            )
    for policy, key in history.named("wg", "actor/skipped_steps"):
        if (skipped := history.now(key)) is not None:
            yield Reading(
                float(skipped > 0),
                f"{skipped:.0f} updates of policy {policy} were left out in the last step: the "
                "gradient was not finite.",
                f"skipped {policy}",
                (
                    "a lower actor_rollout_ref.actor.optim.lr",
                    "actor_rollout_ref.actor.fsdp_config.dtype=float32",
                ),
                (key,),
            )


def _agents_of(history: History, policy: str) -> list[str]:
    """Return the ids, in metrics, of the agents that train a policy; of all if it is not known."""
    agents = history.policies.get(policy)
    ids = [agent_id for agent_id, name in history.names.items() if agents and name in agents]
    return ids or [agent_id for agent_id, _ in history.named("agent", "advantage_abs")]


def silent_groups(history: History) -> Iterator[Reading]:
    """Judge how many groups have no advantage, and say why."""
    facts = history.facts[-1]
    groups = len(facts.groups) if facts else int(history.number("data.train_batch_size", 16))
    why, remedies = _why_silent(facts)
    for agent_id, key in history.named("agent", "zero_signal_groups"):
        share = history.now(key)
        if share is None:
            continue
        ratio = min(share / SILENT, history.room() / ROOM)
        yield Reading(
            ratio if groups >= FEWEST_GROUPS else 0.0,
            f"{share:.0%} of the groups of {history.agent(agent_id)} have no advantage, with "
            f"{history.room():.0%} of "
            f"the success missing{why}.",
            agent_id,
            remedies,
            (key, "episode/success_rate"),
            tuple(facts.examples.get("wrong", ())) if facts else (),
        )


def _why_silent(facts: StepFacts | None) -> tuple[str, tuple[str, ...]]:
    """Return what most groups without a difference in reward have in common, and what helps."""
    common = ("algorithm.filter_groups.metric=seq_reward", "a larger env.rollout.n")
    tied = [group for group in facts.groups.values() if group.high <= group.low] if facts else []
    if not tied:
        return "", common
    kinds: Counter[str] = Counter()
    for group in tied:
        if group.replies and group.cut == group.replies:
            kinds["cut"] += 1
        elif group.successes <= 0:
            kinds["fail"] += 1
        else:
            kinds["tie"] += 1
    kind, count = kinds.most_common(1)[0]
    where = f"{count} of the {len(tied)} groups with equal rewards"
    if kind == "cut":
        return f"; in {where} every reply is cut at the length limit", ("a larger data.max_response_length",)
    if kind == "fail":
        return f"; in {where} every episode fails", (
            "easier tasks first",
            *common,
            "rollout.tree.returns=committed",
        )
    return f"; in {where} all succeed alike", (*common, "harder tasks")


def one_sided(history: History) -> Iterator[Reading]:
    """Judge whether updates push in one direction, or for one agent."""
    credit = history.credit
    for policy, total in (credit.total if credit else {}).items():
        rows = credit.rows[policy] if credit else 0
        if rows < FEWEST_ROWS or total <= 0 or credit is None:
            continue
        share = credit.positive[policy] / total
        # how far from the middle, in both directions
        ratio = max(
            POSITIVE_LOW / max(share, 1e-6) if share < 0.5 else 0.0,
            (1 - POSITIVE_HIGH) / max(1 - share, 1e-6) if share > 0.5 else 0.0,
        )
        side = "against" if share < 0.5 else "for"
        yield Reading(
            ratio,
            f"{max(share, 1 - share):.0%} of the gradient of policy {policy} is {side} replies "
            f"({rows} rows with an "
            "advantage, weighted by tokens): replies of one outcome are much longer than the others.",
            f"sign {policy}",
            (
                "algorithm.group_by=[uid,agent_id]",
                "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean",
            ),
            (),
        )
    for agent_id, key in history.named("agent", "gradient_share"):
        if (share_now := history.now(key)) is not None:
            yield Reading(
                share_now / GRADIENT_SHARE,
                f"{history.agent(agent_id)} makes {share_now:.0%} of the gradient of a policy that "
                "it shares: the others "
                "are trained as it likes.",
                f"share {agent_id}",
                ("algorithm.group_by=[uid,agent_id]", "algorithm.per_agent", "agent.specialization=full"),
                (key,),
            )


def duplicates(history: History) -> Iterator[Reading]:
    """Judge whether replies to one prompt are equal more often than their probabilities say."""
    facts = history.facts[-1]
    if facts is None:
        return
    for name, agent in sorted(facts.agents.items()):
        if agent.seeds:
            yield Reading(
                float(agent.seeds),
                f"{agent.seeds} pairs of replies of {name} to one prompt were sampled with equal "
                "seeds: a group has "
                "fewer different replies than it seems.",
                f"seeds {name}",
                ("data.seed, and the seeds that a program asks for (docs/frameworks.md)",),
                (),
                tuple(agent.examples.get("seed", ())),
                at_once=True,
            )
        expected = _expected_equal(history, agent)
        if expected is None or agent.pairs < FEWEST_PAIRS:
            continue
        share = agent.equal / agent.pairs
        yield Reading(
            (share - expected) / DUPLICATES,
            f"{share:.0%} of {agent.pairs} pairs of replies of {name} to one prompt are equal; by "
            "their probabilities "
            f"{expected:.0%} should be.",
            f"equal {name}",
            ("seeds and caches of the engine (logs/engine-*.log)", "actor_rollout_ref.rollout.temperature=1"),
            (),
            tuple(facts.examples.get("equal", ())),
        )


def _expected_equal(history: History, agent: AgentFacts) -> float | None:
    """Return the share of equal pairs that the log-probs imply: two draws from p are equal with
    probability sum of p^2, the mean of p over draws. None if most are not recorded.
    """
    if history.credit is None or not agent.row_pairs:
        return None
    log_probs = history.credit.log_probs
    weighted = [
        (weight, math.exp(min(log_probs[key], 0.0)))
        for key, weight in agent.row_pairs.items()
        if key in log_probs
    ]
    total = sum(weight for weight, _ in weighted)
    if 2 * total < sum(agent.row_pairs.values()):
        return None
    return sum(weight * probability for weight, probability in weighted) / total


def lazy(history: History) -> Iterator[Reading]:
    """Judge agents that could be left out: one action, replies that nobody reads, copies."""
    recent = history.recent_facts()
    settle = ("verl-mas audit", "a model of its own: agent.specialization=full", "reward.team_scope=call")
    for name in sorted({name for facts in recent for name in facts.agents}):
        parts = [facts.agents[name] for facts in recent if name in facts.agents]
        calls = sum(part.calls for part in parts)
        if calls < LAZY_CALLS or len(history.names) == 1:
            continue
        # as of the newest steps: the oldest ones may lie before the agent changed
        actions: Counter[str] = sum((part.actions for part in parts if not part.many_actions), Counter())
        action, count = actions.most_common(1)[0] if actions else ("", 0)
        figures = (
            ("one action", count / calls, ONE_ACTION, f"is {action!r}"),
            (
                "unheard",
                1 - sum(part.heard for part in parts) / calls,
                UNHEARD,
                "reappears in no later prompt or answer",
            ),
            (
                "copied",
                sum(part.copied for part in parts) / calls,
                COPIED,
                "copies an earlier one of another agent",
            ),
        )
        for kind, share, limit, what in figures:
            yield Reading(
                min(share / limit, history.room() / ROOM),
                f"{share:.0%} of the last {calls} replies of {name}: each {what}. It may not "
                "matter: run `verl-mas "
                "audit` to see.",
                f"{kind} {name}",
                settle,
                (),
                examples_of(
                    history, kind if kind != "one action" else "wrong", None if kind == "one action" else name
                ),
            )


RULES = (
    Rule(12, "learning rate is spent", "stuck", no_update),
    Rule(13, "silent groups", "stuck", silent_groups),
    Rule(14, "one-sided gradient", "stuck", one_sided),
    Rule(15, "duplicate replies", "stuck", duplicates),
    Rule(16, "lazy agent", "stuck", lazy),
)
