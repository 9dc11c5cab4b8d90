#!/usr/bin/env bash
# tensordict 0.15.3: of what a batch holds besides tensors, a list is divided with the rows, and a NumPy array of texts or objects is not.
# The array is one value for the whole batch: `batch[order]`, `split`, `repeat_interleave` and boolean masks move the tensors and leave it as
# it is, without a warning, while a list of the same texts, and an array of numbers, follow. verl's `DataProto` holds such columns, the `uid`
# of a group among them, as arrays of objects (its `to_tensordict` takes them apart). Put into a TensorDict as they are, rewards are compared
# within wrong groups as soon as the rows are shuffled or balanced, since the lengths still agree.
#
# Output of the last part of this script:
#   list: rows [2, 0, 3, 1], uids ['b', 'a', 'b', 'a'], mean reward by uid {'b': 1.0, 'a': 0.0}
#   array of texts: rows [2, 0, 3, 1], uids ['a', 'a', 'b', 'b'], mean reward by uid {'a': 0.5, 'b': 0.5}
#   array of objects: rows [2, 0, 3, 1], uids ['a', 'a', 'b', 'b'], mean reward by uid {'a': 0.5, 'b': 0.5}
#   array of numbers: rows [2, 0, 3, 1], uids [1, 0, 1, 0], mean reward by uid {1: 1.0, 0: 0.0}
#   each twice: 8 rows; uids of the list 8, of the array 4
#   the second half: 2 rows; uids of the list ['b', 'b'], of the array ['a', 'a', 'b', 'b']
#
# The script ends with 1 if any of this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 tensordict==0.15.3 numpy==2.3.5
"$folder/venv/bin/python" - <<'PYTHON'
import sys
from collections import defaultdict

import numpy as np
import torch
from tensordict import TensorDict

UIDS = ["a", "a", "b", "b"]
FORMS = {
    "list": UIDS,
    "array of texts": np.array(UIDS),
    "array of objects": np.array(UIDS, dtype=object),
    "array of numbers": np.array([0, 0, 1, 1]),
}
ORDER = torch.tensor([2, 0, 3, 1])


def batch_of(uids):
    return TensorDict({"row": torch.arange(4), "reward": torch.tensor([0.0, 0.0, 1.0, 1.0]), "uid": uids}, batch_size=[4])


def uids_of(batch):
    uids = batch["uid"]
    return uids.tolist() if hasattr(uids, "tolist") else list(uids)


def means(batch):
    groups = defaultdict(list)
    for uid, reward in zip(uids_of(batch), batch["reward"].tolist()):
        groups[uid].append(reward)
    return {uid: sum(rewards) / len(rewards) for uid, rewards in groups.items()}


seen = {}
for name, uids in FORMS.items():
    moved = batch_of(uids)[ORDER]
    seen[name] = (uids_of(moved), means(moved))
    print(f"{name}: rows {moved['row'].tolist()}, uids {seen[name][0]}, mean reward by uid {seen[name][1]}")
of_list, of_array = (batch_of(FORMS[name]) for name in ("list", "array of objects"))
twice = [len(uids_of(batch.repeat_interleave(2))) for batch in (of_list, of_array)]
print(f"each twice: {len(of_list.repeat_interleave(2))} rows; uids of the list {twice[0]}, of the array {twice[1]}")
halves = [uids_of(batch.split(2)[1]) for batch in (of_list, of_array)]
print(f"the second half: {len(of_list.split(2)[1])} rows; uids of the list {halves[0]}, of the array {halves[1]}")
stays = (UIDS, {"a": 0.5, "b": 0.5})
expected = {
    "list": (["b", "a", "b", "a"], {"b": 1.0, "a": 0.0}),
    "array of texts": stays,
    "array of objects": stays,
    "array of numbers": ([1, 0, 1, 0], {1: 1.0, 0: 0.0}),
}
sys.exit(0 if seen == expected and twice == [8, 4] and halves == [["b", "b"], UIDS] else 1)
PYTHON
