"""Every prompt of the search workflow, by style. Literal braces are written twice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PromptStyle:
    """The wording for one kind of model.

    Attributes:
        verifier, search, answer: templates with `{env_prompt}` (the question), `{memory}` (searches so far), `{team_context}` and `{step}`.
        entry: how a reply of this turn is quoted, with `{role}` (first word of the agent's name) and `{text}`.
        separator: between replies.
        nobody_spoke: stands for an empty discussion.
    """

    verifier: str
    search: str
    answer: str
    entry: str
    separator: str
    nobody_spoke: str


_QUESTION = """\
# Question
{env_prompt}

# Searches so far
Each with its query between <search> and </search>, and what came back between <information> and </information>. None if empty.
{memory}
"""

FULL = PromptStyle(
    verifier=f"""\
You are the Verifier Agent in a team of three that answers a question with a search engine. You decide what happens next: another search, \
or the answer.

{_QUESTION}
# Your part
This is turn {{step}}. Look at the searches: what does the question still need, did a query miss or repeat something, and does what came \
back settle the answer? Reason briefly. End with <verify>yes</verify> if what is known is enough to answer, or <verify>no</verify> if \
something is missing.""",
    search=f"""\
You are the Search Agent in a team of three that answers a question with a search engine. The Verifier Agent has found that something is \
missing.

{_QUESTION}
# Said in this turn
{{team_context}}

# Your part
This is turn {{step}}. Decide which single fact is needed next and write one query for it: short, with the names that matter, and unlike \
the queries that have failed. Do not answer the question. End with <search>your query</search>.""",
    answer=f"""\
You are the Answer Agent in a team of three that answers a question with a search engine. The Verifier Agent has found that enough is known.

{_QUESTION}
# Said in this turn
{{team_context}}

# Your part
This is turn {{step}}. Draw the answer from what the searches brought. End with <answer>the answer alone</answer>: a name, a date, a few \
words, and no sentence around it.""",
    entry="[{role}]\n{text}",
    separator="\n\n",
    nobody_spoke="(nothing)",
)

SHORT = PromptStyle(
    verifier="Verify: {env_prompt}\n{memory}",
    search="Search: {env_prompt}\n{memory}",
    answer="Answer: {env_prompt}\n{memory}",
    entry="",
    separator="",
    nobody_spoke="",
)

STYLES = {"full": FULL, "short": SHORT}
