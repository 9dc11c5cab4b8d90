"""Parsers of replies: the pitfalls of those before us, and that nothing makes a parser raise."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_system import AgentSystemError, boxed_answer, code_block, number, raw_text, tag, verdict
from tests.cpu_time import cpu_seconds

ALL = [raw_text, tag("answer"), boxed_answer, code_block(), code_block("python"), number, verdict()]
TEXT = "<think> </think> <answer> </ANSWER> \\boxed{ { } \\} ``` ```python 1,000.5 approve <verify> </verify> 中 İ"
MARKS = TEXT.split()
PIECES = st.lists(st.sampled_from([*MARKS, "\n", "\x00", " "]) | st.text(max_size=5), max_size=30).map(
    "".join
)


@settings(max_examples=300, deadline=None)
@given(PIECES)
def test_no_text_makes_a_parser_raise_and_invalid_never_looks_like_an_answer(text: str) -> None:
    for project in ALL:
        result = project(text)
        assert isinstance(result.action, str)
        if project is boxed_answer or project is number:
            assert result.valid == bool(result.action)


@pytest.mark.parametrize(
    ("text", "action", "valid"),
    [
        ("<answer>a</answer> no, <answer>b</answer>", "b", True),
        ("<ANSWER> a </Answer>", "a", True),
        ("<answer>a <answer>b</answer>", "b", True),
        ("<answer>a</answer> <answer>b", "a", True),
        ("<think><answer>a</answer></think> hm", "", False),
        ("<think>never closed <answer>a</answer>", "", False),
        ("<answer>a</answer></think> <answer>b</answer>", "b", True),
        ("<answer>左转</answer>", "左转", True),
        ("<answer>two\nlines</answer>", "two\nlines", True),
        ("<answer></answer>", "", False),
    ],
)
def test_tag_takes_the_last_well_formed_pair_outside_the_thinking(
    text: str, action: str, valid: bool
) -> None:
    result = tag("answer")(text)
    assert (result.action, result.valid) == (action, valid)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed {7} and \boxed{8", "7"),
        (r"{ \boxed{3}", "3"),
        (r"<think>\boxed{3}</think>", ""),
        ("nothing", ""),
    ],
)
def test_boxed_takes_the_last_closed_box_with_nested_braces(text: str, action: str) -> None:
    assert (boxed_answer(text).action, boxed_answer(text).valid) == (action, bool(action))


def test_hostile_text_is_parsed_in_linear_time() -> None:

    start = cpu_seconds()
    texts = (
        r"\boxed{" * 30_000,
        "<answer>" * 30_000,
        "</think" * 30_000,
        "```python\n" * 30_000,
        "<think>" * 30_000,
        "1," * 60_000,
    )
    fences = (
        "> " * 60_000,
        "1. - > ~~~\n" * 20_000,
        "```\n~~~\n" * 20_000,
        "```a\n" + "x```" * 60_000,
        "```a\n" + "`" * 200_000,
    )
    for text in (*texts, *fences):
        for project in ALL:
            project(text)
    assert cpu_seconds() - start < 5


def test_code_block_takes_the_last_block_of_the_language() -> None:
    text = "```python\na = 1\n```\nor\n```Python\nb = 2\n```\n```sh\nls\n```\n```python\nunclosed"
    assert code_block("python")(text).action == "b = 2"
    assert code_block()(text).fields["language"] == "sh"
    assert not code_block("rust")(text).valid


@pytest.mark.parametrize(
    ("text", "action"), [("so 1,234.50 dollars", "1234.50"), ("-3", "-3"), ("a 4 b 5", "5"), ("none", "")]
)
def test_number_takes_the_last_one(text: str, action: str) -> None:
    assert number(text).action == action


@pytest.mark.parametrize(
    ("text", "approved", "parsed"),
    [
        ("<verify>approve</verify>", True, True),
        ("<Verify> REJECTED. </verify>", False, True),
        ("<verify>approve</verify> wait <verify>reject</verify>", False, True),
        ("<think><verify>approve</verify></think>", False, False),
        ("I approve", False, False),
        ("<verify>approve or reject</verify>", False, False),
    ],
)
def test_an_unclear_verdict_is_invalid_and_is_not_an_approval(
    text: str, approved: bool, parsed: bool
) -> None:
    result = verdict()(text)
    assert (result.fields["approved"], result.fields["parsed"], result.valid) == (approved, parsed, parsed)


def test_the_verdict_fallback_is_named_and_checked() -> None:
    assert verdict(fallback="approve")("?").fields["approved"]
    with pytest.raises(AgentSystemError, match="'approve' or 'reject', found 'yes'"):
        verdict(fallback="yes")
