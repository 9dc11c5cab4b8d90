"""Errors that a workflow's author or user can act on, and the masking of secrets in messages."""

from __future__ import annotations

import html
import re
from urllib.parse import unquote, urlsplit


class AgentSystemError(ValueError):
    """A workflow, agent or environment is set up in a way that cannot run."""


class PromptTooLongError(RuntimeError):
    """A prompt is too long although all context has been left out."""


class SandboxError(AgentSystemError):
    """The sandbox cannot be set up as configured. A program that fails is a `RunResult`, not this
    error.
    """


def masked(text: str, *secrets: str | None) -> str:
    """Return `text` with `***` for every secret, also where its characters are escaped for JSON, a
    URL or HTML, nested escapes included.
    """
    for secret in secrets:
        if secret:
            text = re.sub("".join(map(_spellings, secret)), "***", text)
    return text


def _spellings(character: str) -> str:
    """Return a pattern for the escaped forms of a character; repetitions are bounded, so that no
    text makes the search slow.
    """
    units = character.encode("utf-16-be", "surrogatepass")
    backslash = r"(?:\\|%(?:25){0,4}5c)"
    json_code = f"{backslash}{{0,8}}".join(f"u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
    percent = "".join(f"%(?:25){{0,4}}{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))
    entity = f"&(?:amp;){{0,4}}#(?:0{{0,6}}{ord(character)}|x0{{0,6}}{ord(character):x});"
    named = re.escape(html.escape(character)).replace("&", "&(?:amp;){0,4}")
    plus = r"|\+" if character == " " else ""
    return rf"(?i:{backslash}{{0,8}})(?:{re.escape(character)}|(?i:{json_code}|{percent}|{entity})|{named}{plus})"


def password(url: str) -> str | None:
    """Return the password in a URL, decoded, or None."""
    try:
        quoted_password = urlsplit(url).password
    except ValueError:  # no URL
        return None
    return unquote(quoted_password) if quoted_password else None


def printable_key(key: str, where: str) -> str:
    """Return `key`. Raise AgentSystemError, which does not quote the key, for a character that
    cannot be in a header.
    """
    if not key.isprintable():
        place = next(place for place, character in enumerate(key) if not character.isprintable())
        raise AgentSystemError(
            f"{where}: character {place + 1} of {len(key)} of the key is a control character; is "
            "it a line break or a tab?"
        )
    return key
