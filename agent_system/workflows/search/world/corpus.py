"""Documents in the format of Search-R1: one JSON object per line, with `id` and `contents`, or with
`title` and `text`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from agent_system.errors import AgentSystemError

EXPECTED = 'expected {"id": ..., "contents": "\\"Title\\"\\nText"} or {"id": ..., "title": ..., "text": ...}'


class CorpusError(AgentSystemError):
    """A corpus that cannot be searched: the file is missing or empty, or a line lacks its fields."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document.

    Attributes:
        id: id in the corpus, or else the line number.
        title: may be empty.
        text: the text without the title.
    """

    id: str
    title: str
    text: str

    @property
    def contents(self) -> str:
        """The indexed text, in the format of Search-R1: the title in quotes on the first line, then
        the text.
        """
        return f'"{self.title}"\n{self.text}' if self.title else self.text


def split_contents(contents: str) -> tuple[str, str]:
    """Return (title, text) of Search-R1's `contents`; the title is empty unless the first line is
    in quotes.
    """
    first, newline, rest = contents.partition("\n")
    title = first.strip()
    if newline and rest.strip() and len(title) > 1 and title[0] == title[-1] == '"':
        return title[1:-1], rest.strip()
    return "", contents.strip()


def load_corpus(path: str | Path) -> list[Document]:
    """Read a `.jsonl` or `.jsonl.gz` file.

    Raises:
        CorpusError: the file cannot be read; the message names the file, the line, its content and
            the expected form.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise CorpusError(f"no corpus {file} (looked in {Path.cwd()}); name a jsonl file, a document a line")
    try:
        with _open(file) as lines:
            documents = list(_documents(file, lines))
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise CorpusError(f"the corpus {file} cannot be read: {type(error).__name__}: {error}") from error
    if not documents:
        raise CorpusError(f"the corpus {file} holds no document; {EXPECTED} on each line")
    return documents


def _open(file: Path) -> IO[str]:
    return gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8")


def _documents(file: Path, lines: Iterator[str] | IO[str]) -> Iterator[Document]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _document(f"{file}, line {number}", number, line)


def _document(where: str, number: int, line: str) -> Document:
    try:
        row: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise CorpusError(f"{where}: not JSON ({error}); {EXPECTED}") from error
    if not isinstance(row, dict):
        raise CorpusError(f"{where}: found {type(row).__name__}; {EXPECTED}")
    name = str(row.get("id", number))
    if isinstance(row.get("contents"), str) and row["contents"].strip():
        return Document(name, *split_contents(row["contents"]))
    if isinstance(row.get("text"), str) and row["text"].strip():
        return Document(name, str(row.get("title") or "").strip(), row["text"].strip())
    raise CorpusError(
        f"{where}: found the fields {', '.join(map(str, row)) or 'none'}, of which none is a text; {EXPECTED}"
    )
