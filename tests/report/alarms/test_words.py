"""What the texts of alarms name exists: keys, metrics, pages."""

import ast
import re

from tests.docs.pages import pages
from tests.house.source import ROOT
from verl.report.alarms import ALL_RULES
from verl.trainer.config import RunConfig
from verl.trainer.config.spec import keys

FOLDER = ROOT / "verl" / "report" / "alarms"
KEYS = set(keys(RunConfig))
SECTIONS = tuple(sorted({key.split(".")[0] for key in KEYS}))
# Metrics that environments report, and what stands for a name in the page of metrics.
OF_ENVIRONMENTS = {"env/agreed"}
TERMS = {"local_reward/mean"}  # `agent/<id>/<term>/mean` in the page


def texts() -> list[tuple[str, str]]:
    """(file, text) of every string in the code, docstrings left out."""
    found = []
    for path in sorted(FOLDER.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docs = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        found += [
            (path.name, node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
        ]
    return found


def test_every_key_that_is_named_is_declared() -> None:
    named = {
        (file, name.rstrip("."))
        for file, text in texts()
        for name in re.findall(rf"(?<![\w/])(?:{'|'.join(SECTIONS)})\.[\w.]+", text)
    }
    assert len(named) > 20
    wrong = {
        (file, name)
        for file, name in named
        if name not in KEYS
        and not any(key.startswith(f"{name}.") for key in KEYS)
        and name != "env.params.verdict_reward"
        and not name.startswith(("async_training.per_policy", "docs"))
    }
    assert not wrong


def metric_names() -> str:
    return pages()["docs/metrics.md"]


def test_every_metric_that_is_read_is_in_the_page_of_metrics() -> None:
    page = re.sub(r"<\w+>", "*", metric_names())
    listed = set(re.findall(r"`([\w*./@]+)`", page)) | OF_ENVIRONMENTS
    of_all = ("agent/*/", "wg/*/", "gateway/*/")
    leaves = TERMS | {name.split("/", 2)[2] for name in listed if name.startswith(of_all)}
    wrong = []
    for file, text in texts():
        if not re.fullmatch(r"[a-z_0-9]+(/[a-z_0-9]+)+", text) or text.startswith(
            ("docs/", "reward/model_score")
        ):
            continue
        if (
            text not in listed
            and text not in leaves
            and not any(entry.endswith("/*") and text.startswith(entry[:-1]) for entry in listed | leaves)
        ):
            wrong.append((file, text))
    assert not wrong


def test_the_page_has_a_row_for_every_alarm() -> None:
    page = pages()["docs/alarms.md"]
    rows = set(re.findall(r"^\| (\d+) ([^|(]+?) (?:\(|\|)", page, flags=re.M))
    assert rows == {(str(rule.number), rule.name) for rule in ALL_RULES}


def test_numbers_are_distinct_and_levels_in_order() -> None:
    numbers = [rule.number for rule in ALL_RULES]
    assert numbers == sorted(set(numbers)) == list(range(1, 20))
