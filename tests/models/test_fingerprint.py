"""A model that changed on disk is noticed."""

import shutil
from pathlib import Path

from verl.models.fingerprint import model_fingerprint


def test_a_copy_is_the_same_and_any_change_of_weights_or_shape_is_another(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny_model_dir, copy)
    first = model_fingerprint(str(tiny_model_dir))
    assert first is not None and model_fingerprint(str(copy)) == first
    (copy / "tokenizer_config.json").write_text("{}")
    assert model_fingerprint(str(copy)) == first, "only what the adapters were trained on counts"
    weights = copy / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(bytes(changed))
    assert model_fingerprint(str(copy)) != first


def test_of_a_large_file_blocks_up_to_its_end_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    file = tmp_path / "model.safetensors"
    with open(file, "wb") as stream:
        stream.truncate(40 << 20)
    found = {model_fingerprint(str(tmp_path))}
    for place in (0, 20 << 20, (40 << 20) - 1):
        with open(file, "r+b") as stream:
            stream.seek(place)
            stream.write(b"\1" * min(200 << 10, (40 << 20) - place))
        found.add(model_fingerprint(str(tmp_path)))
    assert len(found) == 4


def test_a_hub_id_that_was_never_loaded_has_none() -> None:
    assert model_fingerprint("no-such-owner/no-such-model") is None
