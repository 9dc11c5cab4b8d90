"""`verl-mas check-model PATH`: the numbers of a model, its tokenizer, and what its chat template
shows.
"""

from __future__ import annotations

from agent_system.rollout.template_check import template_facts
from verl.models.loader import ModelPathError, load_tokenizer
from verl.trainer import check_model
from verl.trainer.check_model import EXACT, NOTE, REFUSED, CheckRow


def template_rows(path: str, trust_remote_code: bool) -> list[CheckRow]:
    """Return the rows about the tokenizer of a model folder or hub id and its chat template."""
    try:
        tokenizer = load_tokenizer(path, trust_remote_code=trust_remote_code)
    except ModelPathError as error:
        return [CheckRow("tokenizer", REFUSED, str(error), needed=False)]
    rows = [
        CheckRow(
            "tokenizer",
            EXACT,
            f"{type(tokenizer).__name__}, {len(tokenizer):,} tokens: blanks, line ends and digits come back",
        )
    ]
    for fact in template_facts(tokenizer):
        rows.append(CheckRow(fact.name, EXACT if fact.is_right else NOTE, fact.text, needed=False))
    return rows


def main() -> None:
    """Print the table and the verdict."""
    check_model.main(template_rows)


if __name__ == "__main__":
    main()
