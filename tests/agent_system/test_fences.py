"""The program of a reply: the block of code in any fence of Markdown, each of its characters as it was
written.
"""

from __future__ import annotations

import random

import pytest
from markdown_it import MarkdownIt

from agent_system import code_block
from agent_system.fences import fenced_blocks
from agent_system.projection import program_of
from tests.cpu_time import cpu_seconds

CODE = "def f(x):\n    if x:\n\n        return 'a'\n\treturn 2"
PYTHON = code_block("python", "py", "python3")


def indented(text: str, prefix: str) -> str:
    return "\n".join(prefix + line for line in text.split("\n"))


@pytest.mark.parametrize(
    "text",
    [
        f"So:\n```python\n{CODE}\n```",
        f"So:\n``` Python\n{CODE}\n```  \nDone.",
        f'```python title="a.py" {{1,3}}\n{CODE}\n```',
        f"```{{.python .numberLines}}\n{CODE}\n```",
        f"```{{python}}\n{CODE}\n```",
        f"```python:main.py\n{CODE}\n```",
        f"````python\n{CODE}\n````",
        f"```python\n{CODE}\n`````",
        f"~~~python\n{CODE}\n~~~",
        f"~~~~ python `x`\n{CODE}\n~~~~",
        f"```py\n{CODE}\n```\n".replace("\n", "\r\n"),
        f"1. So:\n   ```python\n{indented(CODE, '   ')}\n   ```\n2. Done",
        f"1. So:\n\n    ```python\n{indented(CODE, '    ')}\n    ```",
        f"- a\n  - b\n\n    ~~~python3\n{indented(CODE, '    ')}\n    ~~~",
        f"- ```python\n{indented(CODE, '  ')}\n  ```",
        f"12) ```python\n{indented(CODE, '    ')}\n    ```",
        f"- So:\n  ```python\n{CODE}\n  ```",
        f"> So:\n> ```python\n{indented(CODE, '> ')}\n> ```",
        f"  ```python\n{CODE}\n```",
        f"\t```python\n{indented(CODE, chr(9))}\n\t```",
        f"<answer>\n```python\n{CODE}\n```\n</answer>",
        f"So:\n```python\n{CODE}",
        f"So:\n~~~python\n{CODE}",
        f"So:\n```python\n{CODE}```",
        f"So:\n```python\n{CODE}```\n\nIt returns `a`.",
        f"So:\n```python\n{CODE}```\nAnd:\n```sh\nls\n```",
        f"```python\nold\n```\nor\n```python\n{CODE}\n```\nlike ```this``` one",
        f"```python\nnever closed\n```python\n{CODE}\n```",
        f"```text\nnever closed\n```python\n{CODE}\n```",
        f"```python\n{CODE}\n```\n```python\ncut off",
        f"The code:```python\n{CODE}\n```",
        f"<answer>```python\n{CODE}\n```</answer>",
        f"1. The code: ```python\n{indented(CODE, '   ')}\n   ```\n2. Done",
        f"Use `f` as in ```f```. The code: ````python\n{CODE}\n````"[28:],
        f"Wrap it in ```\n\n```python\n{CODE}\n```",
        f"\ufeff```python\n{CODE}\n```",
        f"\u200b```python\n{CODE}\n```",
        f"\u3000```python\n{CODE}\n```",
        f"\xa0```python\n{CODE}\n\xa0```",
        f"```python\n{CODE}\n    ```",
    ],
)
def test_every_fence_of_markdown_holds_the_program(text: str) -> None:
    assert (PYTHON(text).action, PYTHON(text).valid, program_of(text)) == (CODE, True, CODE)


@pytest.mark.parametrize("inner", ["```", 'x = """\n```\n"""', "~~~~", "    ```python", "#```"])
def test_a_shorter_or_other_fence_is_code(inner: str) -> None:
    assert PYTHON(f"````python\n{inner}\n````").action == inner


DOCUMENTED = '''def f(x):
    """Return x.

    {}
    f(1)
    {}
    """
    return x'''


@pytest.mark.parametrize("mark", ["```", "~~~", "```python", "```pycon", "````"])
@pytest.mark.parametrize("closed", [True, False])
def test_a_fence_in_the_text_that_documents_a_function_is_code(mark: str, closed: bool) -> None:
    code = DOCUMENTED.format(mark, mark.rstrip("pycthon"))
    for prefix in ("", "   "):
        reply = f"So:\n{prefix}```python\n{indented(code, prefix)}" + f"\n{prefix}```\nDone." * closed
        assert program_of(reply) == code


def test_a_program_without_a_fence_may_be_indented() -> None:
    assert program_of("\n\n    x = 1\n    if x:\n        print(x)\n") == "x = 1\nif x:\n    print(x)"


@pytest.mark.parametrize("character", [*"\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\r\t\xa0\u3000"])
def test_a_character_in_a_literal_stays_what_it_is(character: str) -> None:
    code = f"print('a{character}b')\n\x0cx = 1"
    assert PYTHON(f"```python\n{code}\n```").action == code


@pytest.mark.parametrize(
    "reply", ["print(1)", "<think>```python\n2\n```</think>\nprint(1)", "print('~~')", "Use ```x``` here"]
)
def test_a_reply_without_a_block_is_the_program(reply: str) -> None:
    assert program_of(reply) == reply.rpartition("</think>\n")[2]


@pytest.mark.parametrize(
    "name",
    [
        "python",
        "Python3",
        "py",
        "py3",
        "ipython",
        "IPython3",
        "python3.11",
        "python=3",
        "language-python",
        "lang-py",
        "[python]",
        "(Python)",
        "<python>",
        '"python"',
        "#python",
        "// python",
        "pypy3",
        "cpython",
    ],
)
def test_each_name_of_python_is_a_program(name: str) -> None:
    assert program_of(f"```{name}\n{CODE}\n```\n```text\n7\n```") == CODE


def test_a_reply_with_blocks_of_other_languages_has_no_program() -> None:
    assert program_of("~~~sh\nls\n~~~") == ""


def test_blocks_are_those_of_a_markdown_parser() -> None:
    """On texts that need none of our leniency: fences at the width of their list, each closed by a line of
    its own.
    """
    parser = MarkdownIt("zero").enable(["fence", "list", "blockquote"])
    draw = random.Random(0)
    for _ in range(300):
        text = ""
        for _ in range(draw.randint(1, 4)):
            mark = draw.choice(["```", "````", "~~~", "~~~~~"])
            code = draw.choices(
                ["x = 1", "    y", "", "\tz", "``", "~~", "'``` a'", "> q", "- i", "# t"],
                k=draw.randint(0, 4),
            )
            lines = [
                mark + draw.choice(["", "python", " py ", "python a=1"]),
                *code,
                mark + draw.choice(["", mark[0], "  "]),
            ]
            first, others = draw.choice(
                [("", ""), (" ", " "), ("   ", "   "), ("- ", "  "), ("1. ", "   "), ("> ", "> ")]
            )
            text += (
                "\nProse.\n\n"
                + "\n".join((others if i else first) + line for i, line in enumerate(lines))
                + "\n"
            )
        tokens = [token for token in parser.parse(text) if token.type == "fence"]
        assert [block.code for block in fenced_blocks(text)] == [
            token.content.removesuffix("\n") for token in tokens
        ], text
        assert [block.language for block in fenced_blocks(text)] == [
            (token.info.split() or [""])[0] for token in tokens
        ]


def test_blanks_behind_a_fence_take_time_in_proportion() -> None:
    started = cpu_seconds()
    PYTHON("x```" + " " * 100_000 + "!")
    assert cpu_seconds() - started < 5
