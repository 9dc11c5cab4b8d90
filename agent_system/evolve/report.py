"""The report of a search, as Markdown. It has no times, so the same search has the same report."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from agent_system.evolve.archive import TeamCandidate, failures, mean_score, mean_tokens
from agent_system.evolve.evaluate import PlayedEpisode
from agent_system.evolve.search import MOST_HELD_OUT, TeamSearch, final_episodes

# Returns the ends of an interval of a mean: the mean, the number of tasks, the confidence.
Interval = Callable[[float, int, float], tuple[float, float]]
CONFIDENCE = 1 - 0.05 / MOST_HELD_OUT


def write_report(search: TeamSearch, folder: Path, interval: Interval) -> Path:
    """Write report.md, best.yaml and the files of the front, and return the path of the report."""
    choice = _chosen(search)
    choice.team.save(folder / "best.yaml")
    front = folder / "front"
    front.mkdir(exist_ok=True)
    for candidate in _reported_front(search):
        candidate.team.save(front / f"{candidate.number}.yaml")
    path = folder / "report.md"
    path.write_text(report(search, interval), encoding="utf-8")
    return path


def report(search: TeamSearch, interval: Interval) -> str:
    """Return the text of the report of a search that has ended."""
    parts = [
        "# A search for a team",
        _headline(search, interval),
        "## The front",
        _front(search, interval),
        "## What it cost",
        _costs(search),
        "## All files",
        _tree(search),
        "## The edits",
        *(_edit(search, candidate) for candidate in _told(search)),
    ]
    return "\n\n".join(parts) + "\n"


def _chosen(search: TeamSearch) -> TeamCandidate:
    assert search.chosen is not None, "the search has ended"
    return search.chosen


def _reported_front(search: TeamSearch) -> list[TeamCandidate]:
    """Return the chosen file and those of the front, by number."""
    files = {c.number: c for c in (_chosen(search), *search.front())}
    return [files[number] for number in sorted(files)]


def _held_out(candidate: TeamCandidate, interval: Interval) -> str:
    if not candidate.held_out:
        return ""
    mean = mean_score(candidate.held_out)
    low, high = interval(mean, len(candidate.held_out), CONFIDENCE)
    return f"{mean:.1%} ({low:.1%} to {high:.1%})"


def _headline(search: TeamSearch, interval: Interval) -> str:
    choice = _chosen(search)
    start = search.archive.candidates[0]
    lines = []
    if choice.held_out:
        lines.append(
            f"On {len(choice.held_out)} held-out tasks the chosen file ({choice.number}) scores "
            f"**{_held_out(choice, interval)}**, the first start file {_held_out(start, interval)}; "
            f"intervals of "
            f"Wilson at {CONFIDENCE:.2%}."
        )
        lines.append(
            "Search score less held-out score (optimism): "
            f"{100 * (mean_score(choice.episodes) - mean_score(choice.held_out)):+.1f} points; "
            f"{100 * (mean_score(final_episodes(choice)) - mean_score(choice.held_out)):+.1f} with "
            f"the score that "
            "chose it."
        )
    else:
        lines.append(
            f"The chosen file is {choice.number}. No tasks are held out (`data.val_files`), so no "
            f"score here is "
            "a result: the search has chosen by all of them."
        )
    if search.stopped:
        lines.append(f"It stopped in generation {search.generation}: {search.stopped}.")
    agents = ",".join(choice.team.agents)
    if search.roles:
        folders = ", ".join(f"{role}: `{folder}`" for role, folder in sorted(search.roles.items()))
        lines.append(f"It has played with the adapters of its roles: {folders}.")
    lines.append(
        "Train it with `agent.orchestra_type=graph agent.orchestra.graph.file=best.yaml "
        f"agent.agent_ids='[{agents}]'`."
    )
    return "\n\n".join([*lines, _mermaid(choice)])


def _mermaid(candidate: TeamCandidate) -> str:
    return f"```mermaid\n{candidate.team.mermaid()}```"


def _front(search: TeamSearch, interval: Interval) -> str:
    rows = ["| file | score on fresh tasks | tokens | held out |", "|---|---|---|---|"]
    others = {c.number: c for c in search.archive.candidates if c.held_out}
    for candidate in [*_reported_front(search), *(c for c in others.values() if c.parent is None)]:
        episodes = final_episodes(candidate)
        # the score that chose the file from many on the stream is no score on fresh tasks
        fresh = f"{mean_score(candidate.confirmed):.1%}" if candidate.confirmed else ""
        row = (
            f"| {candidate.number} | {fresh} | {mean_tokens(episodes):.1f} | "
            f"{_held_out(candidate, interval)} |"
        )
        rows += [row] if row not in rows else []
    return "\n".join(rows)


def _costs(search: TeamSearch) -> str:
    counts = search.counts
    kept_share = 1 - counts.engine_calls / max(counts.calls, 1)
    lines = [
        f"- {counts.episodes:,} episodes of {len(search.archive.candidates)} files, "
        f"{sum(c.state == 'out' for c in search.archive.candidates)} of them ruled out early, "
        f"{sum(c.state == 'same' for c in search.archive.candidates)} with the scores of an earlier file, "
        "and no cheaper",
        f"- tokens of engines: {counts.proposals:,} for proposals, {counts.play:,} for play, "
        f"{counts.confirm:,} for "
        f"the finalists, {counts.held_out:,} for the tasks that are held out",
        f"- {counts.logical:,} tokens in all replies; {kept_share:.0%} of {counts.calls:,} replies "
        f"were kept ones "
        "(replay)",
    ]
    lines += _training(search) + _budget(search)
    causes = failures([e for c in search.archive.candidates for e in _all_episodes(c)])
    lines += [f"- failed episodes, which score 0: {n} x {cause}" for cause, n in sorted(causes.items())]
    return "\n".join(lines)


def _training(search: TeamSearch) -> list[str]:
    """Return a line about the training, if there is any."""
    number = search.archive.weights
    if not number:
        return []
    return [
        f"- {number} trainings of {search.settings.train_steps} steps, which generated "
        f"{search.counts.training:,} tokens; they do not count for the budget"
    ]


def _budget(search: TeamSearch) -> list[str]:
    """Return a line about the budget, if there is one."""
    budget = search.settings.budget_tokens
    if budget is None:
        return []
    tokens = search.counts.spent
    count = search.too_expensive
    left_out = f"; {count} finalists did not fit in it and played no fresh tasks" if count else ""
    return [
        f"- budget: {tokens:,} of {budget:,} tokens ({tokens / budget:.0%}); the tasks that are held out "
        f"do not count for it{left_out}"
    ]


def _all_episodes(candidate: TeamCandidate) -> Sequence[PlayedEpisode]:
    return [*candidate.episodes, *candidate.confirmed, *candidate.held_out]


def _tree(search: TeamSearch) -> str:
    """Return all files, each below the one that it was made of."""
    lines: list[str] = []

    def add(candidate: TeamCandidate, depth: int) -> None:
        lines.append(f"{'  ' * depth}- {_line(candidate)}")
        for child in search.archive.candidates:
            if child.parent == candidate.number:
                add(child, depth + 1)

    for candidate in search.archive.candidates:
        if candidate.parent is None:
            add(candidate, 0)
    return "\n".join(lines)


def _line(candidate: TeamCandidate) -> str:
    operators = "start" if candidate.parent is None else " + ".join(str(e["op"]) for e in candidate.edits)
    if not candidate.episodes:
        return f"{candidate.number}: {operators}: not played"
    scores = f"{mean_score(candidate.episodes):.3f}, {mean_tokens(candidate.episodes):.1f} tokens"
    # scores of earlier weights are told, and compared with nothing
    scores = "".join(f"{mean_score(earlier):.3f} -> " for earlier in candidate.earlier) + scores
    state = "" if candidate.state == "whole" else f", {candidate.state} after {len(candidate.episodes)} tasks"
    if candidate.state == "old":
        state = f", not played after training {candidate.episodes[-1].weights + 1}"
    fresh = f"; on fresh tasks {mean_score(candidate.confirmed):.3f}" if candidate.confirmed else ""
    causes = "".join(f"; {n} failed: {cause}" for cause, n in sorted(failures(candidate.episodes).items()))
    return f"{candidate.number}: {operators}: {scores}{state}{fresh}{causes}"


def _told(search: TeamSearch) -> list[TeamCandidate]:
    """Return the files that were edited, without those that were ruled out."""
    return [c for c in search.archive.candidates if c.parent is not None and c.state in ("whole", "old")]


def _edit(search: TeamSearch, candidate: TeamCandidate) -> str:
    assert candidate.parent is not None, "it was edited"
    before = search.archive.candidates[candidate.parent].team.text().splitlines()
    after = candidate.team.text().splitlines()
    names = (f"file {candidate.parent}", f"file {candidate.number}")
    diff = "\n".join(difflib.unified_diff(before, after, *names, lineterm="", n=1))
    edits = "\n".join(json.dumps(dict(edit)) for edit in candidate.edits)
    fence = "`" * 4  # prompts may have fences of three
    return "\n\n".join(
        [
            f"### {_line(candidate)}",
            f"{fence}json\n{edits}\n{fence}",
            f"{fence}diff\n{diff}\n{fence}",
            _mermaid(candidate),
        ]
    )
