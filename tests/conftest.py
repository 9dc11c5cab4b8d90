"""Marks, and fixtures that every test may use; nothing here reaches the network."""

import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import omegaconf.base
import pytest

from tests.forked import ForkServer
from tests.house.source import ROOT
from tests.thorough import is_thorough

# Property tests draw the same examples in every run; `bash scripts/test.sh fuzz` searches for new ones.
hypothesis.settings.register_profile("fixed", derandomize=True)
FUZZ_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "2000"))
hypothesis.settings.register_profile(
    "fuzz", max_examples=FUZZ_EXAMPLES, derandomize=False, deadline=None, print_blob=True
)
hypothesis.settings.load_profile("fixed")

# Whole runs, scripts, recipes, commands of the docs, vLLM, Ray, hostile programs, servers, graders and judges
# in processes of their own.
INTEGRATION = (
    "tests/agent_system/evolve/test_kills.py",
    "tests/agent_system/gateway/test_command.py",
    "tests/agent_system/rollout/test_endpoint.py",
    "tests/agent_system/sandbox/",
    "tests/agent_system/tools/test_mcp.py",
    "tests/agent_system/workflows/code/test_env.py",
    "tests/agent_system/workflows/code/test_prepare.py",
    "tests/agent_system/workflows/code/test_runs.py",
    "tests/agent_system/workflows/math/test_grader_pool.py",
    "tests/agent_system/workflows/search/test_client.py",
    "tests/agent_system/workflows/search/test_routing.py",
    "tests/agent_system/workflows/search/test_server.py",
    "tests/agent_system/workflows/test_programs.py",
    "tests/benchmarks/test_controller.py",
    "tests/benchmarks/test_last_lines.py",
    "tests/docs/test_commands.py",
    "tests/docs/test_site.py",
    "tests/e2e/",
    "tests/examples/",
    "tests/patches/",
    "tests/recipe/",
    "tests/report/test_page_browser.py",
    "tests/report/test_page_live.py",
    "tests/report/test_page_screenshots.py",
    "tests/single_controller/test_worker_group.py",
    "tests/trainer/plan/test_registry.py",
    "tests/trainer/plan/test_check_keys.py",
    "tests/workers/rollout/test_conformance.py",
    "tests/workers/rollout/vllm/",
)
# Other files that take two and a half seconds or more on one core, except those of the rules for the project
# and of the configuration: model families, properties over many examples, and tests that wait.
# `scripts/test.sh fast` leaves them out, and single tests of other files that are marked so.
SLOW = (
    "tests/agent_system/evolve/test_edits.py",
    "tests/agent_system/evolve/test_search.py",
    "tests/agent_system/gateway/test_bad_input.py",
    "tests/agent_system/gateway/test_frameworks.py",
    "tests/agent_system/gateway/test_history.py",
    "tests/agent_system/gateway/test_program_error.py",
    "tests/agent_system/gateway/test_protocol.py",
    "tests/agent_system/gateway/test_served.py",
    "tests/agent_system/gateway/test_team.py",
    "tests/agent_system/replay/test_effects.py",
    "tests/agent_system/replay/test_restore.py",
    "tests/agent_system/rollout/test_env_workers.py",
    "tests/agent_system/rollout/test_reward_functions.py",
    "tests/agent_system/rollout/test_reward_models.py",
    "tests/agent_system/rollout/test_runner.py",
    "tests/agent_system/rollout/test_tied_candidates.py",
    "tests/agent_system/rollout/test_tokens.py",
    "tests/agent_system/rollout/test_tree_concurrency.py",
    "tests/agent_system/rollout/test_tree_engine.py",
    "tests/agent_system/rollout/test_tree_properties.py",
    "tests/agent_system/test_main_thread.py",
    "tests/agent_system/test_projection.py",
    "tests/agent_system/test_terminal_log.py",
    "tests/agent_system/tools/test_formats.py",
    "tests/agent_system/tools/test_syntaxes.py",
    "tests/agent_system/workflows/code/test_team.py",
    "tests/agent_system/workflows/farama/test_env.py",
    "tests/agent_system/workflows/farama/test_team.py",
    "tests/agent_system/workflows/graph/test_bad_files.py",
    "tests/agent_system/workflows/graph/test_equality.py",
    "tests/agent_system/workflows/graph/test_play.py",
    "tests/agent_system/workflows/math/test_env.py",
    "tests/agent_system/workflows/math/test_equality.py",
    "tests/agent_system/workflows/math/test_reward.py",
    "tests/agent_system/workflows/plan_path/test_program.py",
    "tests/agent_system/workflows/search/test_env.py",
    "tests/agent_system/workflows/search/test_team.py",
    "tests/agent_system/workflows/sokoban/test_conformance.py",
    "tests/agent_system/workflows/test_data_source.py",
    "tests/compat/test_verl_commands.py",
    "tests/compat/test_verl_names.py",
    "tests/house/test_imports.py",
    "tests/models/test_adapter_families.py",
    "tests/models/test_every_class.py",
    "tests/models/test_gguf.py",
    "tests/models/test_miniature.py",
    "tests/models/test_trainer.py",
    "tests/report/alarms/test_hysteresis.py",
    "tests/report/alarms/test_robust.py",
    "tests/report/alarms/test_rules.py",
    "tests/templates/test_calls.py",
    "tests/templates/test_conversations.py",
    "tests/trainer/ppo/asynchronous/test_group_queue.py",
    "tests/trainer/ppo/core_algos/policy_losses/test_invariance.py",
    "tests/trainer/ppo/core_algos/test_closed_forms.py",
    "tests/trainer/ppo/core_algos/test_properties.py",
    "tests/trainer/test_declarations.py",
    "tests/trainer/test_memory_plan.py",
    "tests/trainer/test_sft.py",
    "tests/trainer/test_sft_templates.py",
    "tests/utils/test_loop_thread.py",
    "tests/utils/tracking/test_tracking.py",
    "tests/workers/engine/test_adapters.py",
    "tests/workers/engine/test_exactness.py",
    "tests/workers/engine/test_shared_prefixes.py",
    "tests/workers/engine/test_policy_losses.py",
    "tests/workers/engine/test_state.py",
    "tests/workers/engine/test_value_update.py",
    "tests/workers/rollout/test_adapters.py",
    "tests/workers/rollout/test_classifier.py",
    "tests/workers/rollout/test_families.py",
    "tests/workers/rollout/test_hf_engine.py",
    "tests/workers/rollout/test_server.py",
    "tests/workers/rollout/test_structure.py",
    "tests/workers/test_adapters.py",
    "tests/workers/test_losses_train.py",
    "tests/workers/test_policy_worker.py",
    "tests/workers/test_weight_change.py",
    "tests/workers/weight_transfer/test_collective.py",
)
FAST = "not integration and not slow"
# Files that keep one process busy for minutes; they begin first, beside the tests that start vLLM.
LONGEST = (
    "tests/e2e/test_training.py",
    "tests/e2e/test_nodes.py",
)
# Tests that parse all sources, which one process does once.
READ_SOURCES = ("tests/house/", "tests/docs/test_architecture.py")
HAS_VLLM = find_spec("vllm") is not None
# What commands and libraries set for their whole process, which is that of other tests here.
OUR_LOGGERS = ("agent_system", "verl", "recipe", "benchmarks")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1)

pytest.register_assert_rewrite("tests.agent_system.sandbox.arena")
# With Python's own 700, collections are a fifth of the time in which modules are imported and tests
# collected.
gc.set_threshold(50_000)


def _set_root_level(logger: logging.Logger, level: int | str) -> None:
    """Leave a level that does not change as it is: pytest sets that of its configuration twelve times in a
    test, and every time Python empties the caches of some thousand loggers, a tenth of the fast tests' time.
    """
    if logging.getLevelName(logger.level) != level and logger.level != level:
        _SET_LEVEL(logger, level)


def _note_and_set_level(logger: logging.Logger, level: int | str) -> None:
    """Note the level that a logger of ours has had since the test began."""
    if logger.name.startswith(OUR_LOGGERS):
        _levels_before.setdefault(logger, logger.level)
    _SET_LEVEL(logger, level)


_SET_LEVEL = logging.Logger.setLevel
_levels_before: dict[logging.Logger, int] = {}
logging.Logger.setLevel = _note_and_set_level  # type: ignore[method-assign]
logging.RootLogger.setLevel = _set_root_level  # type: ignore[method-assign]
# OmegaConf parses the thirty interpolations of a configuration anew for each composition, in half of its
# time.
omegaconf.base.parse = lru_cache(maxsize=1024)(omegaconf.base.parse)
# Ray gives its workers a low priority; beside other tests they would hardly run.
os.environ.setdefault("RAY_worker_niceness", "0")
# Ray looks for new log files ten times a second, and collects figures for a dashboard that no test has: 4 %
# of a core for each cluster.
os.environ.setdefault("RAY_LOG_MONITOR_MANY_FILES_THRESHOLD", "0")
os.environ.setdefault("LOG_NAME_UPDATE_INTERVAL_S", "2")
os.environ.setdefault("REPORTER_UPDATE_INTERVAL_MS", "60000")
# Dozens of processes import torch or vLLM; compiling their modules anew in each takes longer than the imports
# themselves.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
    # Test processes share the cores; threads that wait for each other's cores would take several times as
    # long.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of this suite; here, so that they are known however pytest is called."""
    parser.addoption(
        "--all-levels",
        action="store_true",
        help="also tests/thorough.py; every level with every engine on every controller; more runs of "
        "test_stale_samples.py; and what needs packages of its own",
    )
    parser.addoption(
        "--timing",
        choices=("with", "without", "only"),
        default="with",
        help="whether tests that measure time (mark timing) run",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import nothing of what `FAST` leaves out by its path: that takes longer than many tests."""
    path = f"{collection_path}/".removeprefix(f"{ROOT}/")
    left_out = (*INTEGRATION, *SLOW)
    return True if config.getoption("-m") == FAST and path.startswith(left_out) else None


def is_integration(item: pytest.Item) -> bool:
    """Whether a test is in `INTEGRATION`, is marked as one that starts Ray or a run, or forks commands."""
    by_mark = item.get_closest_marker("ray") or item.get_closest_marker("e2e")
    return (
        item.nodeid.startswith(INTEGRATION)
        or bool(by_mark)
        or "fork_server" in getattr(item, "fixturenames", ())
    )


def draw_more(test: Callable[..., Any]) -> None:
    """Give a property test as many examples as `FUZZ_EXAMPLES`, where its own `@settings` ask for fewer."""
    own = getattr(test, "_hypothesis_internal_use_settings", None)  # `@settings` may stand there once only
    if own is not None and own.max_examples < FUZZ_EXAMPLES:
        test._hypothesis_internal_use_settings = hypothesis.settings(own, max_examples=FUZZ_EXAMPLES)  # type: ignore[attr-defined]


def needs_vllm(item: pytest.Item) -> bool:
    """Whether a test starts vLLM: by its file, or by the engine that it is a case for."""
    files = ("tests/e2e/test_vllm.py", "tests/workers/rollout/vllm/", "tests/patches/test_vllm")
    if item.nodeid.startswith((*files, "tests/e2e/test_verl_commands.py::test_a_recorded_command_for_gsm8k")):
        return True
    case = getattr(item, "callspec", None)
    return case is not None and any(
        case.params.get(name) in ("vllm", "vllm-2") for name in ("name", "engine")
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark integration tests, and say which process runs a test: a file stays in one, tests that start vLLM
    in one, which imports it, and other `spread` tests go to the next that is free.

    What takes long begins first, so that the processes end at about the same time: tests that start vLLM and
    `LONGEST`, `spread` tests, other files with integration tests, then the rest.
    """
    everything = config.getoption("--all-levels")
    for item in items:
        if not everything and is_thorough(item.nodeid):
            item.add_marker(pytest.mark.skip(reason="thorough (tests/thorough.py): needs --all-levels"))
        if is_integration(item):
            item.add_marker(pytest.mark.integration)
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
        if needs_vllm(item):
            item.add_marker(pytest.mark.xdist_group("vllm"))
            if not HAS_VLLM:
                item.add_marker(pytest.mark.skip(reason="needs vllm: bash scripts/setup.sh cpu-vllm"))
        if config.getoption("--hypothesis-profile") == "fuzz" and isinstance(item, pytest.Function):
            draw_more(item.function)
    if (timing := config.getoption("--timing")) != "with":
        chosen = [
            item for item in items if (item.get_closest_marker("timing") is not None) == (timing == "only")
        ]
        config.hook.pytest_deselected(items=list(set(items) - set(chosen)))
        items[:] = chosen
        gc.collect()
        # else a collection of the whole session's objects stops what is measured for most of a second
        gc.freeze()
    for item in items:
        if not item.get_closest_marker("spread") and not needs_vllm(item):
            of_sources = item.nodeid.startswith(READ_SOURCES)
            item.add_marker(pytest.mark.xdist_group("sources" if of_sources else item.nodeid.split("::")[0]))
    integration = {item.path for item in items if item.get_closest_marker("integration")}

    def place(item: pytest.Item) -> int:
        if needs_vllm(item) or item.nodeid.startswith(LONGEST):
            return 0
        return 1 if item.get_closest_marker("spread") else 2 if item.path in integration else 3

    items.sort(key=place)


def pytest_sessionfinish() -> None:
    gc.unfreeze()


def is_idle(within_s: float) -> bool:
    """Whether the cluster has no actor, no placement group and all its resources, after so many seconds at
    most.
    """
    import ray
    from ray.util import list_named_actors, placement_group_table

    deadline = time.monotonic() + within_s
    while True:
        groups = [group for group in placement_group_table().values() if group["state"] != "REMOVED"]
        resources = ("CPU", "GPU")
        free, whole = ray.available_resources(), ray.cluster_resources()
        if (
            not groups
            and not list_named_actors(all_namespaces=True)
            and all(free.get(r) == whole.get(r) for r in resources)
        ):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)


@pytest.fixture(autouse=True)
def _process_stays_as_it_was() -> Iterator[None]:
    """Give the process its handlers of signals, levels of our loggers and default type of tensors back, so
    that no test depends on what ran before it in this process.
    """
    _levels_before.clear()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    disabled = logging.root.manager.disable
    dtype = torch.get_default_dtype() if (torch := sys.modules.get("torch")) else None
    yield
    for number, handler in handlers.items():
        # None: it was not set from Python
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)
    for logger, level in list(_levels_before.items()):
        if logger.level != level:
            _SET_LEVEL(logger, level)
    if logging.root.manager.disable != disabled:
        logging.disable(disabled)
    if torch is not None and torch.get_default_dtype() != dtype:
        torch.set_default_dtype(dtype)


@pytest.fixture(scope="session")
def _cluster_of_the_session() -> Iterator[None]:
    yield
    import ray

    ray.shutdown()


@pytest.fixture
def ray_cluster(forked_python: str, _cluster_of_the_session: None) -> Iterator[None]:
    """A Ray cluster of 4 CPUs with nothing on it, whose workers are forked; a run with
    `trainer.controller=ray` in this process joins it.

    Tests share it, unless one leaves something there: the next then has a new one.
    """
    import ray

    from verl.single_controller.ray.start import start_private_cluster
    from verl.trainer.ppo.controller import RAY_SYSTEM_CONFIG

    if not ray.is_initialized():
        options = {
            "object_store_memory": 500 * 2**20,
            "log_to_driver": False,
            "_system_config": dict(RAY_SYSTEM_CONFIG),
        }
        start_private_cluster(num_cpus=4, runtime_env={"py_executable": forked_python}, **options)
    yield
    if ray.is_initialized() and not is_idle(within_s=60):
        ray.shutdown()


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    with tempfile.TemporaryDirectory() as folder:  # a socket's path has 108 characters at most
        server = ForkServer(Path(folder))
        yield server
        server.close()


@pytest.fixture(scope="session")
def forked_python(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program that takes the arguments of `python` and starts with torch, transformers and verl imported
    (tests/forked.py).
    """
    path = tmp_path_factory.mktemp("forked") / "python"
    fork_server.write_client(path)
    return str(path)


@pytest.fixture(scope="session")
def mcp_python() -> Iterator[str]:
    """As `forked_python`, with the SDK of MCP imported instead."""
    pytest.importorskip("mcp")
    with tempfile.TemporaryDirectory() as folder:
        server = ForkServer(Path(folder), ("mcp.server.mcpserver", "mcp.types"))
        server.write_client(path := Path(folder) / "python")
        yield str(path)
        server.close()


@pytest.fixture
def checkout(fork_server: ForkServer, tmp_path: Path) -> Path:
    """A copy of what the example scripts and recipes need; set-up does nothing there, and `.venv/bin/python`
    is that of tests/forked.py.
    """
    folder = tmp_path / "checkout"
    for name in ("scripts", ".venv/bin"):
        (folder / name).mkdir(parents=True)
    for name in ("agent_system", "verl", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("examples", "recipe"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "scripts" / "setup.sh").touch()
    (folder / ".venv" / "bin" / "activate").write_text(f'PATH="{folder}/.venv/bin:$PATH"\n')
    fork_server.write_client(folder / ".venv" / "bin" / "python", starts_itself=True)
    return folder


CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% "
    "endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def save_tokenizer(folder: Path) -> int:
    """Write a byte-level tokenizer (one token a byte, no merges) with a chat template; returns the vocabulary
    size.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: i for i, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
    )
    fast.save_pretrained(folder)
    return len(fast)


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder: random two-layer Qwen3 (about 50k parameters, fp32) with a byte-level tokenizer
    and chat template.

    The weights come from seed 0, so every session sees the same model. Copy the folder before changing it.
    """
    return save_tiny_model(tmp_path_factory.mktemp("tiny_qwen3", numbered=False))


@pytest.fixture(scope="session")
def wide_heads_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `tiny_model_dir`, with attention heads as wide as vLLM needs them on a CPU."""
    return save_tiny_model(tmp_path_factory.mktemp("wide_heads_qwen3", numbered=False), head_dim=32)


def tiny_config(vocab_size: int, **changes: Any) -> Any:
    """The configuration of a Qwen3 of two layers."""
    from transformers import Qwen3Config

    settings: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 1024,
        "bos_token_id": None,
        "eos_token_id": vocab_size - 1,
        "pad_token_id": vocab_size - len(SPECIAL_TOKENS),
    }
    return Qwen3Config(vocab_size=vocab_size, **(settings | changes))


def save_peft_adapter(model: Path, folder: Path, **changes: Any) -> Path:
    """Write a LoRA adapter with random weights, made by plain PEFT, on the model in a folder; `changes` are
    fields of `LoraConfig`.
    """
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    config = LoraConfig(
        **(
            {"r": 3, "lora_alpha": 12, "target_modules": ["q_proj", "down_proj"], "init_lora_weights": False}
            | changes
        )
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        get_peft_model(
            AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), config
        ).save_pretrained(folder)
    return folder


def save_tiny_model(folder: Path, **changes: Any) -> Path:
    """Write the model, whose configuration has `changes`, and the tokenizer; returns the folder."""
    import torch
    from transformers import Qwen3ForCausalLM

    config = tiny_config(save_tokenizer(folder), tie_word_embeddings=True, **changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    return folder


LLAMA_TEMPLATE = (
    "<|begin_of_text|>{% for message in messages %}<|start_header_id|>{{ message['role'] "
    "}}<|end_header_id|>\n\n{{ message['content'] }}<|eot_id|>{% endfor %}{% if add_generation_prompt "
    "%}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
LLAMA_TOKENS = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
]


@pytest.fixture(scope="session")
def tiny_llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another family beside `tiny_model_dir`: a random Llama with untied weights and a tokenizer with merges
    and other special tokens.

    As in the models of that family, texts end with a token that is not the one that ends a turn, which the
    generation config names.
    """
    return save_tiny_llama(tmp_path_factory.mktemp("tiny_llama"))


@pytest.fixture(scope="session")
def wide_heads_llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `tiny_llama_dir`, with attention heads as wide as vLLM needs them on a CPU."""
    return save_tiny_llama(tmp_path_factory.mktemp("tiny_llama"), head_dim=32)


def save_tiny_llama(folder: Path, head_dim: int = 8) -> Path:
    """Write the model and the tokenizer; returns the folder."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=LLAMA_TOKENS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(
        ["Ask: Judge: user assistant system verify approve reject the answer is"] * 2, trainer
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=LLAMA_TOKENS[0],
        eos_token=LLAMA_TOKENS[1],
        chat_template=LLAMA_TEMPLATE,
    )
    fast.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=head_dim,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=[1, 4],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return folder
