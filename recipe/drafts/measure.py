"""How many drafted tokens recorded replies would have accepted, before anybody builds drafts into
an engine.

    python recipe/drafts/measure.py RUN [RUN ...]

An engine that computes rows by eights has up to seven idle rows in the tail of a batch; a draft
could fill them with the tokens that it guesses to come next. A reply is a function of its logits
and of one random number per token, so a drafted token holds if and only if it is the one that the
reply has: the recorded replies say it exactly, without a model. Drafts are looked up: the longest 3
to 8 last tokens of the conversation (prompt and reply so far) that stood earlier in it, else in a
reply of the same agent to the same task in an earlier step; what followed there is the draft, the
latest place first.

Replies are tokenized again from their text. The last line is JSON, also in `results.json`:
`accepted` is the mean number of accepted tokens of a decode step with seven drafted ones,
`conversation` the same of the conversation alone, `one` with one drafted token; `runs` has them by
run. Worth building from 0.5 on: a step with drafts costs more than one without.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import yaml

from verl.models.loader import load_tokenizer

logger = logging.getLogger("drafts")
HERE = Path(__file__).parent
DRAFTED = 7
LONGEST, SHORTEST = 8, 3
Reply = tuple[str, Sequence[int], Sequence[int]]


class Places:
    """Where the last few tokens of a text stood before.

    Args:
        tokens: the text; more are added with `add`.
    """

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.tokens: list[int] = []
        self._next: dict[tuple[int, ...], int] = {}
        self.add(tokens)

    def add(self, tokens: Sequence[int]) -> None:
        """Add tokens at the end."""
        for token in tokens:
            for length in range(SHORTEST, LONGEST + 1):
                if len(self.tokens) >= length:
                    self._next[tuple(self.tokens[-length:])] = len(self.tokens)
            self.tokens.append(token)

    def after(self, last: Sequence[int], count: int) -> list[int]:
        """Return what followed the longest end of `last` that stood here, at most `count` tokens;
        none if none did.
        """
        for length in range(min(LONGEST, len(last)), SHORTEST - 1, -1):
            place = self._next.get(tuple(last[-length:]))
            if place is not None:
                return self.tokens[place : place + count]
        return []


def accepted(
    prompt: Sequence[int], reply: Sequence[int], earlier: Places | None, count: int
) -> tuple[int, int]:
    """Return the number of decode steps of a reply with `count` drafted tokens each, and how many
    of these were accepted.
    """
    conversation = Places(prompt)
    done = steps = hits = 0
    while done < len(reply):
        last = conversation.tokens[-LONGEST:]
        draft = conversation.after(last, count) or (earlier.after(last, count) if earlier else [])
        held = 0
        # the step samples one token behind those that hold
        while held < len(draft) and done + held < len(reply) - 1 and draft[held] == reply[done + held]:
            held += 1
        conversation.add(reply[done : done + held + 1])
        done += held + 1
        steps += 1
        hits += held
    return steps, hits


def replies_of(run: Path, tokenizer: Any) -> Iterator[list[Reply]]:
    """Yield for every step agent and task, prompt and reply of its training episodes."""
    for file in sorted((run / "trajectories").glob("train_*.jsonl")):
        replies = []
        for line in file.read_text(encoding="utf-8").splitlines():
            episode = json.loads(line)
            for call in episode["calls"]:
                ids = [
                    tokenizer(call[name], add_special_tokens=False)["input_ids"]
                    for name in ("prompt", "reply")
                ]
                replies.append((f"{call['agent_id']} {episode['task_id']}", ids[0], ids[1]))
        yield replies


def measure(run: Path) -> dict[str, float]:
    """Return the accepted tokens of a decode step of a run."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    tokenizer = load_tokenizer(config["actor_rollout_ref"]["model"]["path"])
    earlier: dict[str, Places] = {}
    counts = {"accepted": [0, 0], "conversation": [0, 0], "one": [0, 0]}
    for replies in replies_of(run, tokenizer):
        for key, prompt, reply in replies:
            store = earlier.get(key)
            for name, places, drafted in (
                ("accepted", store, DRAFTED),
                ("conversation", None, DRAFTED),
                ("one", store, 1),
            ):
                for place, number in enumerate(accepted(prompt, reply, places, drafted)):
                    counts[name][place] += number
        # Replies of one step are written at the same time, so they draft for later steps only.
        for key, prompt, reply in replies:
            earlier.setdefault(key, Places()).add([*prompt[-LONGEST:], *reply])
    return {name: round(hits / max(steps, 1), 3) for name, (steps, hits) in counts.items()}


def main() -> None:
    """Measure the runs of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs with trajectories")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    runs = {}
    for run in args.runs:
        runs[run.name] = measure(run)
        logger.info("%s: %s", run.name, runs[run.name])
    means = {
        name: round(sum(result[name] for result in runs.values()) / len(runs), 3)
        for name in ("accepted", "conversation", "one")
    }
    line = json.dumps(means | {"runs": runs})
    (HERE / "results.json").write_text(line + "\n", encoding="utf-8")
    logger.info(line)


if __name__ == "__main__":
    main()
