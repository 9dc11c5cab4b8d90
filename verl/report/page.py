"""One HTML file with everything that a report needs."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from verl.report.choose import EpisodeGroup, tiers
from verl.report.compact import short_form
from verl.report.compact_index import compact_index
from verl.report.compact_texts import compact_chunk
from verl.report.index import Report
from verl.report.pack import Chunk, chunk_of, packed
from verl.utils.plain import printable

MEGABYTE = 1_000_000
# Bytes of the lines of a chunk's episodes: equal texts of more of them are stored once, and it is
# still opened at once.
_CHUNK_BYTES = 1_200_000
# Groups that are too large for the space that is left, after which no other is tried.
_MOST_MISSES = 20
# Bytes that the numbers of chunk and row need in the index, an episode.
_PLACE_BYTES = 3
# Files that come first and last; the others are in order of their names.
_FIRST = "core.js"
_LAST = "main.js"


@cache
def scripts() -> str:
    """Return the page's script: `core.js`, the other files in order of names, `main.js`."""
    folder = files("verl.report") / "page"
    names = sorted(
        (
            each.name
            for each in folder.iterdir()
            if each.name.endswith(".js") and not each.name.endswith(".test.js")
        ),
        key=lambda name: (name != _FIRST, name == _LAST, name),
    )
    script = "\n".join((folder / name).read_text(encoding="utf-8") for name in names)
    if "</script" in script.lower() or "<!--" in script:
        raise ValueError("a script of verl/report/page contains '</script' or '<!--', which would end it")
    return script


@cache
def _text_of(name: str) -> str:
    return (files("verl.report") / "page" / name).read_text(encoding="utf-8")


def html_page(title: str, data: dict[str, str], live: bool = False) -> str:
    """Return the HTML of a report.

    Args:
        title: of the window.
        data: element id -> JSON as `packed` returns it.
        live: the page may ask the server that it is from.
    """
    style = _text_of("style.css")
    elements = [f'<script type="text/plain" id="{name}">{text}</script>' for name, text in data.items()]
    parts = {
        # A folder's name may have bytes that are no text.
        "TITLE": html.escape(printable(title)),
        "CSP": html.escape(_policy(scripts(), style, live), quote=True),
        "STYLE": style,
        "DATA": "\n".join(elements),
        "SCRIPT": scripts(),
    }
    return re.sub(r"@@([A-Z]+)@@", lambda match: parts[match[1]], _text_of("template.html"))


def _policy(script: str, style: str, live: bool) -> str:
    """Return a content security policy by which the page runs its own script alone and loads
    nothing.
    """
    rules = [
        "default-src 'none'",
        f"script-src '{_hash_of(script)}'",
        f"style-src '{_hash_of(style)}'",
        "img-src data:",
        *(["connect-src 'self'"] if live else []),
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
    ]
    return "; ".join(rules)


def _hash_of(text: str) -> str:
    return f"sha256-{base64.b64encode(sha256(text.encode('utf-8')).digest()).decode('ascii')}"


def report_page(report: Report, max_mb: float) -> str:
    """Return the HTML of a report with as many texts as fit into `max_mb` megabytes.

    Fills in `chunk` and `row` of the episodes whose texts it has, and `left_out_texts` and a note
    in each run with others.
    """
    frame = html_page("", {})
    index = compact_index(report.to_json() | {"max_mb": max_mb})
    space = int(max_mb * MEGABYTE) - len(frame) - len(packed(index))
    space -= _PLACE_BYTES * sum(episodes.episodes.length for episodes in report.episodes)
    chunks = list(_chunks(report, space))
    why = "so that the page has at most" if space > 0 else "since figures and index alone need more than"
    _place(report, [groups for groups, _ in chunks], f"{why} {max_mb:g} MB (--max-mb)")
    # what `_place` has changed
    for run, short in zip(report.runs, index["runs"], strict=True):
        places = {name: short_form(run["episodes"][name]) for name in ("chunk", "row")}
        short |= {name: run[name] for name in ("notes", "left_out_texts")}
        short["episodes"] |= places
    data = {"index": packed(index)}
    data |= {f"chunk-{number}": text for number, (_, text) in enumerate(chunks)}
    names = ", ".join(run["name"] for run in report.runs)
    return html_page(f"{names} - verl-mas report", data)


def _chunks(report: Report, space: int) -> Iterator[tuple[list[EpisodeGroup], str]]:
    """Yield packed chunks with their groups, until `space` bytes are full."""
    used = 0
    placed: set[EpisodeGroup] = set()
    for share, groups in tiers(report.episodes):
        limit = min(space, used + int(share * space))
        misses = 0
        waiting = list(_batches(report, [group for group in groups if group not in placed]))[::-1]
        while waiting and misses < _MOST_MISSES:
            members = waiting.pop()
            text = packed(compact_chunk(_chunk_of(report, members).to_json()))
            if used + len(text) <= limit:
                used += len(text)
                placed |= set(members)
                yield members, text
            elif len(members) > 1:
                waiting += [members[len(members) // 2 :], members[: len(members) // 2]]
            else:
                misses += 1


def _batches(report: Report, groups: Sequence[EpisodeGroup]) -> Iterator[list[EpisodeGroup]]:
    """Yield lists of groups of one run whose lines have about 1.2 MB together."""
    members: list[EpisodeGroup] = []
    size = 0
    for group in groups:
        if members and (size > _CHUNK_BYTES or members[-1].run != group.run):
            yield members
            members = []
            size = 0
        members.append(group)
        size += sum(report.episodes[group.run].sizes[at] for at in group.episodes)
    if members:
        yield members


def _chunk_of(report: Report, groups: Sequence[EpisodeGroup]) -> Chunk:
    return chunk_of(
        episode for group in groups for episode in report.episodes[group.run].whole(list(group.episodes))
    )


def _place(report: Report, chunks: Sequence[Sequence[EpisodeGroup]], why: str) -> None:
    """Write into the index where the texts are, and what was left out and `why`."""
    for run_number, (run, episodes) in enumerate(zip(report.runs, report.episodes, strict=True)):
        total = episodes.episodes.length
        chunks_of = [-1] * total
        row_of = [0] * total
        for number, groups in enumerate(chunks):
            members = [at for group in groups if group.run == run_number for at in group.episodes]
            for row, at in enumerate(members):
                chunks_of[at] = number
                row_of[at] = row
        place: dict[str, Any] = {"chunk": chunks_of, "row": row_of}
        run["episodes"] = run["episodes"] | place
        run["left_out_texts"] = chunks_of.count(-1)
        if run["left_out_texts"]:
            run["notes"] = [
                *run["notes"],
                f"the texts of {run['left_out_texts']} of {total} episodes are left out, {why}; each has "
                "its file and line in the list of episodes",
            ]
