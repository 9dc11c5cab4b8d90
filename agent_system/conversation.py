"""A person asks, the team answers: one episode a question, and who said what on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from agent_system.environment import BaseEnv
from agent_system.errors import AgentSystemError
from agent_system.record import EpisodeRecord, Sample
from agent_system.rollout.collector import Collector

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


class Conversation:
    """Questions to one team; none remembers another.

    Args:
        collector: the team.
        env: its environment, which says what task a question is.
        greedy: always take the likeliest token.

    Raises AgentSystemError for an environment that cannot be asked.
    """

    def __init__(self, collector: Collector, env: type[BaseEnv], greedy: bool = False) -> None:
        if env.question("?") is None:
            raise AgentSystemError(
                f"{env.__name__} plays worlds of its own and takes no questions; define {env.__name__}.question(text) -> Task if it does"
            )
        self._collector, self._env, self._greedy = collector, env, greedy
        self._numbers = count(1)

    async def ask(self, question: str) -> EpisodeRecord:
        """Play the episode of a question; a failed one is returned as well."""
        task = self._env.question(question)
        assert task is not None
        result = await self._collector.collect([task], 1, step=next(self._numbers), validate=True, greedy=self._greedy)
        return result.episodes[0]


def show(record: EpisodeRecord, console: Console) -> None:
    """Print every reply under its speaker's name, then the answer, or why there is none."""
    names = list(dict.fromkeys(s.agent_id for s in record.committed))
    for sample in record.committed:
        colour = COLOURS[names.index(sample.agent_id) % len(COLOURS)]
        notes = [f"turn {sample.turn}"] if record.turns > 1 else []
        notes += [] if sample.valid else ["not in the form that was asked for"]
        console.print(Panel(Text(_said(sample)), title=Text(sample.agent_id), subtitle=Text(", ".join(notes)) if notes else None,
                            title_align="left", subtitle_align="right", border_style=colour))  # fmt: skip
    if record.failure is not None:
        console.print(Text(f"No answer: {printable(record.failure)}", style="bold red"))
    else:
        console.print(Text.assemble(("Answer: ", "bold"), printable(record.answer) or "(none)"))


def questions(given: str | None, console: Console, read_all: Callable[[], str] | None) -> Iterator[str]:
    """Yield what is asked: the argument, all of a pipe, or line by line what a person types, until an empty line.

    Args:
        given: on the command line.
        console: asks the person.
        read_all: reads the pipe; None when there is a person.
    """
    if given is not None:
        yield given
    elif read_all is not None:
        yield from filter(None, [read_all().strip()])
    else:
        while asked := _typed(console):
            yield asked


def printable(text: str) -> str:
    """Text without characters that a terminal would obey."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _said(sample: Sample) -> str:
    return printable(sample.text) or "(nothing)"


def _typed(console: Console) -> str:
    try:
        return console.input("question (an empty line ends): ").strip()
    except EOFError:
        return ""
