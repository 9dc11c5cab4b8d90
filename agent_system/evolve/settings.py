"""The keys of `verl-mas evolve`, beside those of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from verl.trainer.config.spec import key, section, texts


@dataclass
class EvolveSettings:
    """The keys under `evolve`."""

    start: list[str] = key(
        [],
        "files of teams from which the search starts; tokens are priced in episodes of the first",
        check=texts,
    )
    parts: list[str] = key(
        [], "files of teams that are not played: edits take their agents, steps and prompts", check=texts
    )
    policy: str = key(
        "evolution",
        "which files are edited: evolution (tournaments among the best files of each size) | tree "
        "(draws among all files, better ones more often) | random (all files alike, those that were ruled "
        "out as well: what a search finds that learns nothing from scores)",
        choices=("evolution", "tree", "random"),
    )
    children: int = key(
        4, "files that a generation plays to the end; those that fall early make room for others", ge=1, le=64
    )
    generations: int = key(10, "number of generations, fewer if budget_tokens is spent before", ge=3)
    tasks: int = key(64, "training tasks that a new file plays, unless it is ruled out before", ge=16)
    confirm: int = key(
        256, "training tasks after those that the finalists play; only these scores choose", ge=16
    )
    margin: float = key(
        0.01, "difference of scores below which the file with fewer tokens is the better one", ge=0, lt=1
    )
    price: float = key(
        0.005, "score that as many tokens cost as an episode of the first start file has", ge=0
    )
    budget_tokens: Optional[int] = key(
        None,
        "tokens that engines may generate for proposals, training tasks and finalists; those for "
        "data.val_files do not count; the last batch, and the finalists that are always played (the "
        "best file and the first start file), may exceed it; null: no limit",
        ge=1,
    )
    proposer: Optional[str] = key(
        None,
        "agent of agent.agent_ids that writes edits, one behind agent.api for example; null: edits are "
        "drawn at random",
        check=texts,
    )
    train_steps: int = key(
        0,
        "training steps between generations: one run trains the best files together, an adapter for "
        "every role, and they play again with what it has learned; 0: no weights change",
        ge=0,
    )
    score: str = key("team_reward", "number of an episode that counts, from 0 to 1", check=texts)
    max_calls: int = key(32, "largest number of calls in a turn that an edit may lead to", ge=1, le=1000)


@dataclass
class EvolveConfig:
    """The sections that only `verl-mas evolve` has."""

    evolve: EvolveSettings = section(EvolveSettings)
