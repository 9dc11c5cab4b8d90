"""A page that code, a script, an error message or a test names exists, with the heading that it names; and
the guide to training is short.
"""

import re
import subprocess
from functools import cache

from tests.docs.pages import anchors, pages
from tests.house.source import ROOT

REFERENCE = re.compile(r"(?<![\w/.-])docs/(?P<page>\w+\.md)(?:#(?P<anchor>[\w-]+))?")
# Longest page of each kind, in lines; the pages that are generated or list every case are not limited.
GUIDE, LIMIT = 250, 400
SUBJECTS = (
    "checkpoints", "credit", "data", "devices", "metrics", "policies", "rewards", "sampling", "updates",
)  # fmt: skip


@cache
def files() -> dict[str, str]:
    """Path from the root to text, of every file of code under version control or about to be."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py", "*.sh", "*.toml", "*.yaml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    names = listed.stdout.split() or [
        str(path.relative_to(ROOT))
        for folder in ("verl", "agent_system", "tests", "scripts", "examples")
        for path in (ROOT / folder).rglob("*.py")
    ]
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in names if (ROOT / name).is_file()}


def test_the_pages_that_code_names_exist_with_their_headings() -> None:
    gone = []
    for name, text in files().items():
        for number, line in enumerate(text.splitlines(), 1):
            for reference in REFERENCE.finditer(line):
                page = pages().get(f"docs/{reference['page']}")
                if page is None or (reference["anchor"] and reference["anchor"] not in anchors(page)):
                    gone.append(f"{name}:{number}: {reference[0]}")
    assert not gone, "write the page and heading that these mean now:\n" + "\n".join(gone)
    assert sum(bool(REFERENCE.search(text)) for text in files().values()) > 20


def test_the_guide_can_be_read_in_ten_minutes_and_leads_to_every_subject() -> None:
    guide = pages()["docs/training.md"]
    assert len(guide.splitlines()) <= GUIDE
    assert [name for name in SUBJECTS if f"]({name}.md)" not in guide] == []
    lengths = {name: len(pages()[f"docs/{name}.md"].splitlines()) for name in SUBJECTS}
    assert [name for name, lines in lengths.items() if lines > LIMIT] == []
