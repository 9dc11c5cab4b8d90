"""Checkpoints of the engine: resume to the bit, survive a full disk, open elsewhere."""

import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.workers.engine.builders import ONE_PIECE, full_loss, make_engine, make_rows
from verl.models.loader import load_tokenizer
from verl.trainer.config import ActorConfig, OptimConfig
from verl.utils.checkpoint import CheckpointError, stored_weights
from verl.workers.engine import FSDPEngine, UpdatePlan, update_policy
from verl.workers.engine.state import load_engine, save_engine, write_hugging_face

COSINE = OptimConfig(lr=1e-2, lr_scheduler_type="cosine")


def train(engine: FSDPEngine, seeds: range, config: ActorConfig | None = None) -> None:
    for seed in seeds:
        plan = UpdatePlan(temperature=1.0, num_mini_batches=2, shuffle_seed=seed)
        update_policy(engine, config or full_loss(), make_rows(7, seed=seed), plan, ONE_PIECE)


def new_engine(model: Path) -> FSDPEngine:
    return make_engine(model, optim=COSINE)


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """No file can grow over `limit` bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_resumed_run_equals_an_uninterrupted_one_to_the_last_bit(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    whole = new_engine(tiny_model_dir)
    whole.set_total_steps(20)
    train(whole, range(3))
    save_engine(whole, tmp_path / "saved", None)
    torch.rand(5)
    resumed = new_engine(tiny_model_dir)
    resumed.score_all(make_rows(3), 1.0, ONE_PIECE)
    load_engine(resumed, tmp_path / "saved")
    noise = torch.rand(5)
    load_engine(resumed, tmp_path / "saved")
    assert torch.equal(noise, torch.rand(5)), "the random state comes back"
    assert resumed.digest() == whole.digest() and resumed.trainable_of(None).lr == whole.trainable_of(None).lr
    for engine in (whole, resumed):
        train(engine, range(3, 6))
    assert resumed.digest() == whole.digest()


def test_the_hugging_face_copy_opens_in_plain_transformers(tiny_model_dir: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    engine = new_engine(tiny_model_dir)
    engine.set_total_steps(20)
    train(engine, range(1))
    save_engine(engine, tmp_path / "saved", load_tokenizer(str(tiny_model_dir)))
    folder = tmp_path / "saved" / "huggingface"
    assert AutoTokenizer.from_pretrained(folder).encode("2+2") == AutoTokenizer.from_pretrained(
        tiny_model_dir
    ).encode("2+2")
    plain = AutoModelForCausalLM.from_pretrained(folder)
    assert type(plain).__name__ == "Qwen3ForCausalLM" and plain.config.architectures == ["Qwen3ForCausalLM"]
    assert plain.config._attn_implementation == "sdpa" and plain.dtype == torch.float32
    expected = dict(engine.weights())
    assert all(torch.equal(value, expected[name]) for name, value in plain.named_parameters())
    rows = make_rows(2)
    ids = rows["input_ids"][0][rows["attention_mask"][0].bool()][None]
    logits = torch.log_softmax(plain(ids).logits[0, :-1], -1).gather(-1, ids[0, 1:, None])
    scored = engine.score_all(rows, 1.0, ONE_PIECE).log_probs[0]
    assert (logits[-int(rows["attention_mask"][0, 7:].sum()), 0] - scored[0]).abs() < 1e-5


@pytest.mark.parametrize("limit", [100, 20_000])
def test_a_full_disk_leaves_the_old_checkpoint(tiny_model_dir: Path, tmp_path: Path, limit: int) -> None:
    engine, path = new_engine(tiny_model_dir), tmp_path / "saved"
    engine.set_total_steps(20)
    save_engine(engine, path, None)
    old = engine.digest()
    train(engine, range(1))
    with full_disk(limit), pytest.raises(CheckpointError, match=r"was not written .* is intact"):
        save_engine(engine, path, load_tokenizer(str(tiny_model_dir)))
    assert [p.name for p in tmp_path.iterdir()] == ["saved"]
    load_engine(engine, path)
    assert engine.digest() == old
    train(engine, range(1))
    save_engine(engine, path, None)


@pytest.mark.parametrize("limit", [100, 3_000, 60_000])
def test_a_disk_that_fills_up_during_the_hugging_face_copy_is_an_os_error(
    tiny_model_dir: Path, tmp_path: Path, limit: int
) -> None:
    with full_disk(limit), pytest.raises(OSError, match=r"[Ff]ile too large"):
        write_hugging_face(
            make_engine(tiny_model_dir), tmp_path / "copy", load_tokenizer(str(tiny_model_dir))
        )


def test_a_death_between_the_two_renames_loses_nothing(tiny_model_dir: Path, tmp_path: Path) -> None:
    engine = new_engine(tiny_model_dir)
    save_engine(engine, tmp_path / "saved", None)
    (tmp_path / "saved").rename(tmp_path / ".saved.old")
    load_engine(engine, tmp_path / "saved")


def test_what_is_no_checkpoint_of_this_model_is_refused(tiny_model_dir: Path, tmp_path: Path) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    engine = new_engine(tiny_model_dir)
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        load_engine(engine, tmp_path / "nothing")
    save_engine(engine, tmp_path / "saved", None)
    config = Qwen3Config.from_pretrained(tiny_model_dir, num_hidden_layers=1, layer_types=["full_attention"])
    Qwen3ForCausalLM(config).save_pretrained(tmp_path / "other")
    with pytest.raises(CheckpointError, match="another model"):
        load_engine(new_engine(tmp_path / "other"), tmp_path / "saved")
    shutil.rmtree(tmp_path / "saved" / "shards")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_engine(engine, tmp_path / "saved")


def test_the_parameters_of_a_checkpoint_are_read_in_pieces_and_without_ranks(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    engine = new_engine(tiny_model_dir)
    save_engine(engine, tmp_path / "saved", None)
    pieces = list(stored_weights(tmp_path / "saved", 8 << 10))
    read = {name: value for piece in pieces for name, value in piece.items()}
    expected = dict(engine.weights())
    assert len(pieces) > 2 and set(read) == set(expected)
    assert all(torch.equal(read[name], value) for name, value in expected.items())
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        next(stored_weights(tmp_path / "nothing", 1))
    (shard,) = (tmp_path / "saved" / "shards").glob("*.distcp")
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="cannot be read"):
        list(stored_weights(tmp_path / "saved", 1 << 20))
