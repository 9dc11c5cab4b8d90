"""Conversations in published templates go on with the templates' own tokens, or are counted as rendered anew
for a true reason.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from agent_system.rollout.chat_template import ChatTemplate
from agent_system.tools.formats import OfferedTools, split_calls
from tests.templates.conversations import (
    CONVERSATIONS,
    RIGHT,
    TOOLS,
    Played,
    play,
    play_rounds,
    vocabulary_for,
)
from tests.templates.published import byte_tokenizer, templates
from tests.templates.test_calls import MOST_USED, PAGE

BEGIN, END = "<!-- conversations -->\n", "<!-- end of conversations -->\n"
# Templates that show what their models cannot write, or no conversation: see the page.
NOT_AS_WRITTEN = {
    "trl/gemma4_v2", "trl/muse_glimmer", "trl/muse_glimmer_training", "llama.cpp/Kimi-K3",
    "ollama/llama-guard3:8b", "ollama/llama4:latest",
}  # fmt: skip
ROUNDS = ("tool", "parallel", "text and tool", "thinking and tool", "two rounds")


def is_right(played: Played) -> bool:
    return (
        not played.wrong
        and set(played.turns) <= {*RIGHT, "r"}
        and ("r" not in played.turns or bool(played.refused))
    )


def test_conversations_in_the_most_used_templates_go_on_or_are_counted() -> None:
    known = templates(("trl", "xinference"))
    wrong: dict[str, dict[str, Played]] = {}
    letters: Counter[str] = Counter()
    for name in MOST_USED:
        chat = ChatTemplate(byte_tokenizer(known[name]))
        played = {title: play(chat, steps) for title, steps in CONVERSATIONS.items()}
        played |= {f"rounds: {title}": play_rounds(chat.tokenizer, CONVERSATIONS[title]) for title in ROUNDS}
        letters.update("".join(p.turns for p in played.values()))
        if bad := {title: p for title, p in played.items() if not is_right(p)}:
            wrong[name] = bad
    assert not wrong, {
        name: {title: (p.turns, p.wrong) for title, p in bad.items()} for name, bad in wrong.items()
    }
    assert letters["c"] > letters["a"] > 0


@pytest.mark.timeout(3600)
def test_all_templates_with_published_vocabularies(request: pytest.FixtureRequest) -> None:
    """Two tables of the page: what became of every kind of conversation, and the templates in which something
    differs.
    """
    if not request.config.getoption("--all-levels"):
        pytest.skip("plays some six thousand conversations: needs --all-levels")
    known = templates()
    assert len(known) >= 250
    counts = {
        title: Counter[str]() for title in (*CONVERSATIONS, *(f"ToolAgent: {title}" for title in ROUNDS))
    }
    odd: dict[str, list[str]] = {}
    with_rounds = 0
    for name, source in known.items():
        chat = ChatTemplate(vocabulary_for(source))
        played = {title: play(chat, steps) for title, steps in CONVERSATIONS.items()}
        rounds = {
            f"ToolAgent: {title}": play_rounds(chat.tokenizer, CONVERSATIONS[title]) for title in ROUNDS
        }
        with_rounds += any(p.turns for p in rounds.values())
        for title, one in (played | rounds).items():
            counts[title].update(one.turns if is_right(one) else "!")
            counts[title].update("-" if not one.turns and is_right(one) else "")
            if not is_right(one):
                odd.setdefault(name, []).append(title)
    assert with_rounds >= 100
    assert set(odd) <= NOT_AS_WRITTEN
    table = _table(counts, odd, len(known), with_rounds)
    text = PAGE.read_text(encoding="utf-8")
    shown = text[text.index(BEGIN) + len(BEGIN) : text.index(END)]
    if shown != table:
        Path(f"{PAGE}.new").write_text(text.replace(shown, table), encoding="utf-8")
    assert shown == table, f"the page is another; see {PAGE}.new"


def _table(counts: dict[str, Counter[str]], odd: dict[str, list[str]], total: int, with_rounds: int) -> str:
    heads = {
        "c": "goes on",
        "x": "goes on, other tokens",
        "a": "anew, counted",
        "r": "refused",
        "-": "not shown",
        "!": "differs",
    }
    lines = [f"{total} templates; {with_rounds} show calls to `ToolAgent`.\n", "\n"]
    lines += [f"| conversation | {' | '.join(heads.values())} |\n", f"|---|{'---|' * len(heads)}\n"]
    lines += [
        f"| {title} | {' | '.join(str(found[letter]) for letter in heads)} |\n"
        for title, found in counts.items()
    ]
    names = "; ".join(
        f"{name} ({', '.join(titles) if len(titles) < 4 else len(titles)})" for name, titles in odd.items()
    )
    return "".join([*lines, f"\nSomething differs in {len(odd)} templates: {names or 'none'}.\n"])


@pytest.mark.parametrize("name", ["trl/qwen3", "trl/llama3_1", "trl/gptoss", "trl/glm4moe", "trl/gemma4"])
@pytest.mark.timeout(60)
def test_long_replies_of_markup_and_blanks_are_read_in_linear_time(name: str) -> None:
    """Quadratic time would be minutes for each of them."""
    chat = ChatTemplate(byte_tokenizer(templates(("trl",))[name]))
    offered = OfferedTools.of(TOOLS)
    parts = {
        " ",
        "\n",
        "[",
        "{",
        '"',
        "<",
        "<think>",
        "</think>",
        "<tool_call>",
        '{"name":',
        "price(fruit=",
        chat.marks.begin,
        chat.marks.end,
    }
    for part in parts | {text for syntax in chat.syntaxes for text in (syntax.begin, syntax.before)} - {""}:
        for tail in ("", "</think>x</think>"):
            text = part * (100_000 // len(part)) + tail
            chat.prepared([{"role": "assistant", "content": text}])
            split_calls(chat._read(text, False), chat.syntaxes, offered)
