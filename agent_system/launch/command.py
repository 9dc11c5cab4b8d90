"""The command `verl-mas`: each of its subcommands is a module that `python -m` runs as well.

verl-mas train agent.orchestra_type=math ...
"""

from __future__ import annotations

import os
import runpy
import sys

# Subcommand of keys -> page of its keys; the others parse options, and say them.
KEYS = {
    "train": "docs/config.md",
    "eval": "docs/config.md",
    "check": "docs/config.md",
    "sft": "verl/trainer/sft/config.py, docs/data.md",
    "evolve": "docs/config.md, and docs/evolve.md for those under evolve",
}
HELP = ("-h", "--help")
# Subcommand -> its module, arguments inserted before the user's, and its help text.
COMMANDS = {
    "train": ("verl.trainer.main_ppo", (), "train a team: key=value ..."),
    "eval": (
        "verl.trainer.main_ppo",
        ("trainer.val_only=true",),
        "evaluate the last checkpoint of an experiment: key=value ...",
    ),
    "check": (
        "agent_system.launch.first_checks",
        (),
        "what a training would refuse before it reads a model, in a second or two: key=value ...",
    ),
    "check-model": (
        "agent_system.launch.check_model",
        (),
        "whether a model is trained and served exactly, in seconds: PATH",
    ),
    "new": ("agent_system.new", (), "write a workflow to begin with into this folder: NAME"),
    "sft": (
        "verl.trainer.sft_trainer",
        (),
        "supervised fine-tuning: model.path=DIR data.train_files=[demos.jsonl] key=value ...",
    ),
    "export": (
        "verl.model_merger",
        (),
        "write a checkpoint's policies for transformers and peft: --checkpoint DIR --out DIR",
    ),
    "report": ("verl.report.cli", (), "write the page of a run as one HTML file: RUN [RUN...]"),
    "watch": ("verl.report.watch", (), "serve the page of a run that goes on: RUN"),
    "evolve": ("agent_system.evolve", (), "search for a team: evolve.start=[team.yaml] key=value ..."),
    "audit": (
        "agent_system.audit",
        (),
        "which agent's replies mattered, and whether advantages know it: RUN",
    ),
    "serve": ("agent_system.serve", (), "ask a trained team, or serve it: CHECKPOINT [QUESTION | --openai]"),
}


def main() -> None:
    """Run the subcommand named first; for an unknown name print the list of subcommands and exit
    with status 2.
    """
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        asked_for_help = len(sys.argv) > 1 and sys.argv[1] in HELP
        stream = sys.stdout if asked_for_help else sys.stderr
        if sys.argv[1:] and not asked_for_help:
            from verl.utils.names import did_you_mean  # of a wrong name alone

            stream.write(f"no command {sys.argv[1]!r}{did_you_mean(sys.argv[1], COMMANDS)}\n\n")
        stream.write(
            "usage: verl-mas COMMAND ...\n\n"
            + "".join(f"  {name:13}{does}\n" for name, (_, _, does) in COMMANDS.items())
        )
        sys.exit(0 if asked_for_help else 2)
    name = sys.argv[1]
    module, first, does = COMMANDS[name]
    # Hydra and the loaders of keys would take it for a key, or print every value.
    if name in KEYS and any(argument in HELP for argument in sys.argv[2:]):
        what, _, form = does.partition(": ")
        sys.stdout.write(f"usage: verl-mas {name} {form}\n\n{what}\n\nkeys: {KEYS[name]}\n")
        return
    sys.argv[1:] = [*first, *sys.argv[2:]]
    # Modules of the current folder, such as agent.plugins, are found as with `python -m`.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
