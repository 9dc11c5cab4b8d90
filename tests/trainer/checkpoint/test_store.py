"""A checkpoint appears whole or not at all, and is only used by the team that wrote it."""

import re
from pathlib import Path

import pytest

from verl.trainer.checkpoint.store import CheckpointStore, find_checkpoint, link_models, read_state
from verl.trainer.config import ActorRolloutRefConfig, AgentConfig, TrainerConfig
from verl.trainer.plan.placement import Placement, build_placement
from verl.utils.checkpoint import CheckpointError

PLACEMENT = build_placement(AgentConfig(agent_ids=["A"], model_ids=["org/a"]), ActorRolloutRefConfig())
STATE = {"placement": PLACEMENT.signature()}


def fill(folder: Path) -> None:
    (folder / "weights").write_text("w")


def test_the_newest_complete_checkpoint_is_found_and_old_ones_go(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    assert find_checkpoint(TrainerConfig(), store) is None
    for step in (2, 9, 10):
        store.write(step, fill, STATE | {"global_step": step}, keep=2)
    assert sorted(p.name for p in tmp_path.glob("global_step_*")) == ["global_step_10", "global_step_9"]
    found = find_checkpoint(TrainerConfig(), store)
    assert found == store.path(10)
    assert read_state(found, PLACEMENT)["global_step"] == 10
    assert find_checkpoint(TrainerConfig(resume_mode="disable"), store) is None


def test_an_evaluation_without_a_checkpoint_is_an_error_unless_the_model_itself_is_meant(
    tmp_path: Path,
) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        find_checkpoint(TrainerConfig(val_only=True), CheckpointStore(tmp_path))
    assert (
        find_checkpoint(TrainerConfig(val_only=True, resume_mode="disable"), CheckpointStore(tmp_path))
        is None
    )


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.write(1, fill, STATE, keep=2)

    def full(folder: Path) -> None:
        fill(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="No space left"):
        store.write(2, full, STATE, keep=2)
    assert store.latest() == store.path(1)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "global_step_1",
        "latest_checkpointed_iteration.txt",
    ]


def test_writing_a_step_again_replaces_it_and_a_failure_brings_the_old_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path)
    store.write(1, fill, STATE, keep=2)
    store.write(1, lambda folder: (folder / "weights").write_text("newer"), STATE, keep=2)
    assert (store.path(1) / "weights").read_text() == "newer"
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.name.startswith(".writing"):
            raise OSError("cannot rename")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(CheckpointError, match="cannot rename"):
        store.write(1, fill, STATE, keep=2)
    assert (store.path(1) / "weights").read_text() == "newer"


@pytest.mark.parametrize("links", [True, False])
def test_models_of_a_checkpoint_that_is_written_again_are_the_same_files_where_that_is_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("Invalid cross-device link")

    if not links:
        monkeypatch.setattr("verl.trainer.checkpoint.store.os.link", refuse)
    weights, linked = (tmp_path / name / "actor" / "asker" / "weights" for name in ("saved", "again"))
    weights.parent.mkdir(parents=True)
    weights.write_text("of step 2")
    (tmp_path / "saved" / "data.pt").write_text("old")
    link_models(tmp_path / "saved", tmp_path / "again")
    assert weights.samefile(linked) == links and linked.read_text() == "of step 2"
    assert [path.name for path in (tmp_path / "again").iterdir()] == ["actor"]


def test_another_team_is_refused(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    folder = store.write(1, fill, STATE, keep=2)
    other = build_placement(
        AgentConfig(agent_ids=["A", "B"], model_ids=["org/a", "org/a"]), ActorRolloutRefConfig()
    )
    with pytest.raises(CheckpointError, match=r"A -> a, .*|A -> a.*B -> b"):
        read_state(folder, other)


@pytest.mark.parametrize(
    ("own", "rank", "key"),
    [
        ([4, 16], 32, "agent.agent_specific_parameters.model.lora_rank"),
        ([4, 16], 16, "agent.agent_specific_parameters.model.lora_rank"),
        ([4, None], 16, "actor_rollout_ref.model.lora_rank"),
    ],
)
def test_another_rank_is_refused_with_the_key_that_sets_it(
    tmp_path: Path, own: list[int | None], rank: int, key: str
) -> None:
    """An agent's own value goes before the common one, which would change nothing."""

    def team(ranks: list[int | None]) -> Placement:
        parameters = {"model": {"lora_rank": ranks}}
        agent = AgentConfig(agent_ids=["A", "B"], specialization="lora", agent_specific_parameters=parameters)
        base = ActorRolloutRefConfig()
        base.model.path, base.model.lora_rank = "org/a", rank
        return build_placement(agent, base)

    folder = CheckpointStore(tmp_path).write(1, fill, {"placement": team([4, 8]).signature()}, keep=2)
    with pytest.raises(
        CheckpointError,
        match=rf"with lora_rank=8, this run has lora_rank=16; set {re.escape(key)} as in training",
    ):
        read_state(folder, team(own))


@pytest.mark.parametrize(
    "mode",
    ["sometimes", "resume_path", "/no/x", "/no/global_step_3"],
)
def test_nothing_to_resume_from_is_an_error(tmp_path: Path, mode: str) -> None:
    with pytest.raises(CheckpointError, match="resume"):
        find_checkpoint(TrainerConfig(resume_mode=mode), CheckpointStore(tmp_path))


@pytest.mark.parametrize(
    "part", ["", "checkpoints", "checkpoints/global_step_2", "checkpoints/global_step_3"]
)
def test_a_run_stands_for_its_last_checkpoint(tmp_path: Path, part: str) -> None:
    other = CheckpointStore(tmp_path / "run" / "checkpoints")
    for step in (1, 2, 3):
        other.write(step, fill, STATE, keep=2)
    config = TrainerConfig(resume_mode=str(tmp_path / "run" / part))
    step = 2 if part.endswith("2") else 3
    assert find_checkpoint(config, CheckpointStore(tmp_path / "new")) == other.path(step)


@pytest.mark.parametrize(
    ("part", "has_pointer"),
    [
        ("checkpoints/global_step_1", True),
        ("checkpoints/global_step_1", False),
        ("", False),
        ("checkpoints", False),
    ],
)
def test_checkpoints_that_are_there_are_named(tmp_path: Path, part: str, has_pointer: bool) -> None:
    run = tmp_path / "run"
    other = CheckpointStore(run / "checkpoints")
    for step in (1, 2, 10):
        other.write(step, fill, STATE, keep=2)
    (other.root / "global_step_x").mkdir()
    if not has_pointer:
        (other.root / "latest_checkpointed_iteration.txt").unlink()
    with pytest.raises(CheckpointError) as error:
        find_checkpoint(TrainerConfig(resume_mode=str(run / part)), CheckpointStore(tmp_path / "new"))
    assert f"; in {other.root} there are global_step_10, global_step_2 (trainer.max_" in str(error.value)


def test_a_pointer_to_a_lost_folder_is_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("7")
    with pytest.raises(CheckpointError, match="global_step_7"):
        find_checkpoint(TrainerConfig(), CheckpointStore(tmp_path))
