"""The Markdown pages of the project, taken apart: fenced blocks, code spans, links, headings and tables."""

import re
import subprocess
from dataclasses import dataclass
from functools import cache

from tests.house.source import ROOT

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A fenced block; `marker` is the HTML comment on the line above it, such as `run: draft_team`."""

    page: str
    language: str
    text: str
    marker: str


@cache
def pages() -> dict[str, str]:
    """Path from the root to text, of every Markdown page under version control or about to be."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    names = listed.stdout.split() or [
        str(p.relative_to(ROOT)) for p in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
    ]
    return {
        name: (ROOT / name).read_text(encoding="utf-8") for name in sorted(names) if (ROOT / name).is_file()
    }


def blocks(language: str) -> list[Block]:
    """Every fenced block of a language, indentation taken off."""
    found = []
    for page, text in pages().items():
        for fence in FENCE.finditer(text):
            if fence["language"] == language:
                above = text[: fence.start()].rstrip("\n").rsplit("\n", 1)[-1]
                comment = re.fullmatch(r"<!-- (.*) -->", above)
                body = re.sub(f"^{fence['indent']}", "", fence["text"], flags=re.MULTILINE)
                found.append(Block(page, language, body, comment[1] if comment else ""))
    return found


def commands() -> list[tuple[str, str]]:
    """(page, command) of every bash block that is not marked to be run whole; comments and line continuations
    taken out.
    """
    found = []
    for block in blocks("bash"):
        if not block.marker.startswith("run:"):
            lines = block.text.replace("\\\n", " ").splitlines()
            found += [
                (block.page, " ".join(line.split("  #")[0].split()))
                for line in lines
                if line.strip() and line[0] != "#"
            ]
    return found


def prose(text: str) -> str:
    """The page without fenced blocks."""
    return FENCE.sub("", text)


def code_spans(text: str) -> list[str]:
    """What stands between backticks outside fenced blocks."""
    return re.findall(r"`([^`\n]+)`", prose(text))


def links(text: str) -> list[str]:
    """Targets of links and images that stay inside the project."""
    return [
        target
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(text))
        if not target.startswith(("http:", "https:", "mailto:"))
    ]


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of the headings."""
    headings = re.findall(r"^#+ +(.+)$", prose(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def first_column(text: str, heading: str) -> list[str]:
    """Code spans of the first column of the table under a heading."""
    section = prose(text).split(f"# {heading}\n", 1)[1].split("\n#", 1)[0]
    return [
        span
        for line in section.splitlines()
        if line.startswith("| `")
        for span in re.findall(r"`([^`]+)`", line.split(" | ")[0])
    ]
