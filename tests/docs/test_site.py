"""The site of the documentation builds without a warning, and a link to nowhere is one."""

import json
import re
from pathlib import Path

import pytest

from scripts import docs_site


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("docs")


@pytest.fixture(scope="module")
def navigation(project: Path) -> list[object]:
    return docs_site.stage(project / "pages")


def test_every_page_and_the_public_classes_are_in_the_site(project: Path, navigation: list[object]) -> None:
    site = docs_site.build(project, navigation)
    pages = {path.relative_to(project / "pages") for path in (project / "pages").rglob("*.md")}
    homes = {page.parent if page.stem == "README" else page.with_suffix("") for page in pages}
    assert (
        len(homes) > 30 and [str(home) for home in homes if not (site / home / "index.html").is_file()] == []
    )
    found = json.dumps(json.loads((site / "search.json").read_text()))
    assert all(
        f"agent_system.{name}" in found
        for name in ("agent.BaseAgent", "turn.Turn.act", "environment.BaseEnv.step")
    )


def test_a_link_to_nowhere_is_an_error(
    project: Path, navigation: list[object], capfd: pytest.CaptureFixture[str]
) -> None:
    page = project / "pages" / "docs" / "contributing.md"
    page.write_text(page.read_text() + "\n[gone](nowhere.md)\n")
    with pytest.raises(SystemExit):
        docs_site.build(project, navigation)
    said = capfd.readouterr()
    assert "nowhere.md" in re.sub(r"\x1b\[[\d;]*m", "", said.out + said.err)
