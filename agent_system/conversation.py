"""Questions of a person to a team: one episode per question, its replies printed on the terminal."""

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
    """Independent questions to one team.

    Args:
        collector: the team.
        env: its environment class, which turns a question into a task.
        greedy: decode greedily.

    Raises AgentSystemError for an environment that takes no questions.
    """

    def __init__(self, collector: Collector, env: type[BaseEnv], greedy: bool = False) -> None:
        if env.question("?") is None:
            raise AgentSystemError(
                f"{env.__name__} takes no questions: it has no question(); define "
                f"{env.__name__}.question(text) -> Task to allow them"
            )
        self._collector = collector
        self._env = env
        self._greedy = greedy
        self._numbers = count(1)

    async def ask(self, question: str) -> EpisodeRecord:
        """Play the episode of a question and return its record, also when the episode failed."""
        task = self._env.question(question)
        assert task is not None
        result = await self._collector.collect(
            [task], 1, step=next(self._numbers), validate=True, greedy=self._greedy
        )
        return result.episodes[0]


def show(record: EpisodeRecord, console: Console) -> None:
    """Print every reply under its agent's name, then the answer, or the reason why there is none."""
    names = list(dict.fromkeys(s.agent_id for s in record.committed))
    for sample in (generation for joined in record.committed for generation in joined.generations):
        colour = COLOURS[names.index(sample.agent_id) % len(COLOURS)]
        notes = [f"turn {sample.identity.turn}"] if record.turns > 1 else []
        notes += ["summary for its memory"] if sample.identity.summary else []
        notes += [] if sample.valid else ["not in the form that was asked for"]
        console.print(Panel(Text(_reply_text(sample)), title=Text(sample.agent_id), subtitle=Text(", ".join(notes)) if notes else None,
                            title_align="left", subtitle_align="right", border_style=colour))  # fmt: skip
    if record.failure is not None:
        console.print(Text(f"No answer: {printable(record.failure)}", style="bold red"))
    else:
        console.print(Text.assemble(("Answer: ", "bold"), printable(record.answer) or "(none)"))


def questions(argument: str | None, console: Console, read_all: Callable[[], str] | None) -> Iterator[str]:
    """Yield the questions: the argument, the whole of a pipe, or the lines that a person types,
    until an empty line.

    Args:
        argument: the question on the command line, or None.
        console: prompts the person.
        read_all: reads the pipe; None when the input is a terminal.
    """
    if argument is not None:
        yield argument
    elif read_all is not None:
        yield from filter(None, [read_all().strip()])
    else:
        while question := _read_line(console):
            yield question


def printable(text: str) -> str:
    """Return `text` with control characters, which a terminal would interpret, replaced."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _reply_text(sample: Sample) -> str:
    return printable(sample.text) or "(nothing)"


def _read_line(console: Console) -> str:
    try:
        return console.input("question (an empty line ends): ").strip()
    except EOFError:
        return ""
