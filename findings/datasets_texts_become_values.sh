#!/usr/bin/env bash
# datasets 5.2.0: where the rows of a column have several types (an answer that is a text here and a list there, a chat whose content is
# parts in one message), the column gets the type `Json`, and texts in it that can be read as JSON become what they read as: the content
# "7" is the number 7, "null" is None, the answer "3.10" is 3.1, "007" is 7, "NaN" is None. It happens in `load_dataset("json")` and in
# `map`, on which scripts that prepare rows for RL are built, without a warning, and the same texts in a column of texts alone are left as
# they are. A reward that compares texts then fails on right answers, and chat templates show `True` for "true".
#
# `to_parquet` writes such a cell as JSON: the answer "Paris" has its quotes in the file for a reader that does not look at the type of
# the column, such as pandas, and "7" has none.
#
# Output of the last part of this script:
#   texts alone: ['7', '007', '3.10', '1e3', 'true', 'null', 'NaN', '[1]', '"a"', 'Paris']
#   load_dataset, beside a list: [7, 7, 3.1, 1000.0, True, None, None, [1], 'a', 'Paris']
#   map, beside a list: [7, 7, 3.1, 1000.0, True, None, None, [1], 'a', 'Paris']
#   content beside parts: [7, 'Plums?', [{'type': 'text', 'text': '7'}]]
#   parquet, read by pandas: ['7', '007', '3.10', '1e3', 'true', 'null', 'NaN', '[1]', '"a"', '"Paris"', '["x"]']
#
# The script ends with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check datasets==5.2.0 pyarrow==26.0.1 pandas==3.1.1
cd "$folder"
HF_HOME="$folder/hf" HF_HUB_OFFLINE=1 HF_DATASETS_DISABLE_PROGRESS_BARS=1 "$folder/venv/bin/python" - <<'PYTHON'
import json
import sys
from pathlib import Path

import pandas
from datasets import Dataset, load_dataset

TEXTS = ["7", "007", "3.10", "1e3", "true", "null", "NaN", "[1]", '"a"', "Paris"]
READ = [7, 7, 3.1, 1000.0, True, None, None, [1], "a", "Paris"]
CHAT = [
    {"role": "tool", "content": "7"},
    {"role": "user", "content": "Plums?"},
    {"role": "user", "content": [{"type": "text", "text": "7"}]},
]


def loaded(name, values):
    Path(f"{name}.jsonl").write_text("".join(json.dumps({"value": value}) + "\n" for value in values))
    return load_dataset("json", data_files=f"{name}.jsonl", split="train")


as_described = []


def shown(name, values, seen):
    print(f"{name}: {values}")
    as_described.append(repr(list(values)) == repr(list(seen)))


shown("texts alone", list(loaded("alone", TEXTS)["value"]), TEXTS)
shown("load_dataset, beside a list", list(loaded("mixed", [*TEXTS, ["x"]])["value"])[:-1], READ)
rows = [*TEXTS, ["x"]]
mapped = Dataset.from_dict({"row": list(range(len(rows)))}).map(lambda each: {"value": rows[each["row"]]})
shown("map, beside a list", list(mapped["value"])[:-1], READ)
contents = [message["content"] for message in loaded("chat", [CHAT])[0]["value"]]
shown("content beside parts", contents, [7, *(message["content"] for message in CHAT[1:])])
mapped.to_parquet("rows.parquet")
shown("parquet, read by pandas", list(pandas.read_parquet("rows.parquet")["value"]), [*TEXTS[:-1], '"Paris"', '["x"]'])
sys.exit(0 if all(as_described) else 1)
PYTHON
