"""The lists of tests by path name what is there: a renamed file or test would run where it has no time, or
not at all.
"""

from __future__ import annotations

import re

import pytest

from tests.conftest import INTEGRATION, LONGEST, SLOW
from tests.house.source import ROOT
from tests.thorough import THOROUGH, THOROUGH_CASES, is_thorough


@pytest.mark.parametrize("path", sorted({*INTEGRATION, *SLOW, *LONGEST, *THOROUGH_CASES}))
def test_a_file_or_folder_of_a_list_is_there(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("entry", THOROUGH)
def test_a_thorough_test_is_there(entry: str) -> None:
    path, _, name = entry.partition("::")
    function, bracket, _ = name.partition("[")
    functions = re.findall(
        r"^(?:async )?def (test_\w+)", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE
    )
    found = [other for other in functions if (other == function if bracket else other.startswith(function))]
    assert len(found) == 1, f"{entry} begins {len(found)} tests"


def test_an_entry_is_the_beginning_of_an_id_and_a_case_its_end() -> None:
    assert is_thorough("tests/e2e/test_vllm.py::test_it_samples_beside_updates_and_more[x]@group")
    assert not is_thorough(
        "tests/e2e/test_vllm.py::test_a_family_is_exact_after_updates_of_all_weights[qwen3_moe]"
    )
    assert is_thorough("tests/workers/rollout/test_conformance.py::test_it_fits_the_protocol[vllm-2]")
    assert not is_thorough("tests/workers/rollout/test_conformance.py::test_it_fits_the_protocol[vllm]")
