#!/usr/bin/env bash
# bfcl-eval 2026.3.23 (BFCL v4): rows of the single-turn Python categories that no model can pass, or none that keeps to the function's
# schema.
#
# 1. Four rows refuse every call: the reference needs a parameter that the schema has not (live_multiple_862-181-3), or has not the one that
#    the schema requires (live_multiple_964-207-0), or lists no value for parameters that are required (live_simple_106-63-0,
#    live_simple_112-68-0).
# 2. In twelve more rows every value that the schema's `enum` permits is refused, and so is a call without the parameter: a reference of
#    True or 2 beside an enum of the texts "True" or "2", or a value that is not in the list. A model under constrained decoding, or one
#    that reads the schema, scores 0 there; the expected value breaks the schema.
#
# The checker is run as it is; the module with the clients of all vendors, which it imports for the names of models, is replaced by an empty
# one, so that the package is installed without its requirements.
#
# Output of the last part of this script:
#   live_multiple_87-38-4: type ['openai'], enum ['all', 'postgres', 'openapi']
#   live_multiple_552-153-1: is_unisex [True], enum ['True', 'False', 'dontcare']
#   live_multiple_595-158-1: number_of_rooms [2], enum ['1', '2', '3']
#   ... (nine more)
#   2351 rows; no call passes in ['live_simple_106-63-0', 'live_simple_112-68-0', 'live_multiple_862-181-3', 'live_multiple_964-207-0']
#   no permitted value passes in 12 rows
#
# The script ends with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check tree-sitter==0.21.3 tree-sitter-java==0.21.0 tree-sitter-javascript==0.21.4
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps bfcl-eval==2026.3.23
"$folder/venv/bin/python" - <<'PYTHON'
import collections
import json
import pathlib
import sys
import types

models = types.ModuleType("bfcl_eval.constants.model_config")
models.MODEL_CONFIG_MAPPING = collections.defaultdict(lambda: types.SimpleNamespace(underscore_to_dot=False))
sys.modules[models.__name__] = models

import bfcl_eval
from bfcl_eval.constants.enums import Language
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker

DATA = pathlib.Path(bfcl_eval.__file__).parent / "data"
CATEGORIES = ["simple_python", "multiple", "parallel", "parallel_multiple", "live_simple", "live_multiple", "live_parallel",
              "live_parallel_multiple"]
LEFT_OUT = object()


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def first(options):
    return next((one for one in options if one != ""), "" if options else [])


def plain(value):
    """A value as a model writes it: the reference lists the alternatives for each key of a dict."""
    if isinstance(value, dict):
        return {key: plain(first(options)) if isinstance(options, list) else options for key, options in value.items() if options != [""]}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [plain(part) for part in value]
    return value


def passes(function, name, arguments, expected):
    call = {key: value for key, value in arguments.items() if value is not LEFT_OUT}
    return ast_checker([function], [{name: call}], [expected], Language.PYTHON, "simple", "any")["valid"]


def choice(options, required):
    return LEFT_OUT if "" in options and not required else plain(first(options))


refused, outside = [], []
rows = 0
for category in CATEGORIES:
    functions = {row["id"]: row["function"] for row in read(DATA / f"BFCL_v4_{category}.json")}
    for row in read(DATA / "possible_answer" / f"BFCL_v4_{category}.json"):
        rows += 1
        for expected in row["ground_truth"]:
            (name, answers), = expected.items()
            function = next(one for one in functions[row["id"]] if one["name"] == name)
            properties, required = function["parameters"]["properties"], function["parameters"]["required"]
            reference = {key: choice(options, key in required) for key, options in answers.items()}
            if not passes(function, name, reference, expected):
                refused.append(row["id"])
                continue
            for key, options in answers.items():
                choices = properties.get(key, {}).get("enum", [])
                as_lists = properties.get(key, {}).get("type") == "array"
                tried = [*choices, LEFT_OUT]
                if choices and not as_lists and not any(passes(function, name, {**reference, key: one}, expected) for one in tried):
                    print(f"{row['id']}: {key} {options}, enum {choices[:3]}")
                    outside.append(row["id"])
print(f"{rows} rows; no call passes in {refused}")
print(f"no permitted value passes in {len(outside)} rows")
REFUSED = ["live_multiple_862-181-3", "live_multiple_964-207-0", "live_simple_106-63-0", "live_simple_112-68-0"]
sys.exit(rows != 2351 or sorted(refused) != REFUSED or len(outside) != 12)
PYTHON
