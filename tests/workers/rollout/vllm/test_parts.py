"""The parts of the `vllm` engine that need no vLLM process: arguments, environment, shared files, seeds, and
the order of its calls.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing.connection
import multiprocessing.spawn
import multiprocessing.synchronize
import os
import re
import signal
import subprocess
import sys
import time
import typing
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from verl.models.lora import LoraSpec
from verl.protocol.generate import EngineGoneError, RolloutError
from verl.trainer.config import ActorRolloutRefConfig, ModelConfig, RolloutConfig
from verl.workers.rollout.vllm import arguments, engine, fork_server, process
from verl.workers.weight_transfer.base import ReceivedWeights, send_bucket, transfer_name
from verl.workers.weight_transfer.shared_memory import PREFIX, SharedMemory, Spool

Call = tuple[str, dict[str, Any]]


def made(device: str, adapters: dict[str, LoraSpec], path: Path, **rollout: Any) -> dict[str, Any]:
    from transformers import AutoConfig

    config = ActorRolloutRefConfig(
        model=ModelConfig(path=str(path)), rollout=RolloutConfig(name="vllm", **rollout)
    )
    model = AutoConfig.from_pretrained(path)
    return arguments.engine_arguments(
        config, model, max_model_len=300, device=device, seed=3, adapters=adapters
    )


def test_arguments_on_a_cpu(wide_heads_model_dir: Path) -> None:
    found = made("cpu", {"a": LoraSpec(4, 8), "b": LoraSpec(9, 8)}, wide_heads_model_dir, max_num_seqs=8)
    assert found["dtype"] == "float32" and found["enforce_eager"] and "enable_sleep_mode" not in found
    assert (found["max_loras"], found["max_cpu_loras"], found["max_lora_rank"]) == (3, 3, 16)
    per_token = 2 * 2 * 2 * 32 * 4  # keys and values, layers, heads, channels, bytes
    assert found["kv_cache_memory_bytes"] >= 8 * 300 * per_token


@pytest.mark.parametrize(
    ("device", "keys", "tokens", "chunked"),
    [
        ("cpu", {}, 2048, False),
        ("cpu", {"max_num_seqs": 2}, 600, False),  # no more than all replies at their longest
        ("cpu", {"max_num_seqs": 3000}, 3000, False),
        ("cpu", {"max_num_batched_tokens": 320}, 320, False),
        ("cuda", {}, 2048, True),
        ("cuda", {"max_num_batched_tokens": 100, "max_num_seqs": 100}, 100, True),
        ("cuda", {"enable_chunked_prefill": False}, 2048, False),
    ],
)
def test_a_step_has_room_for_every_reply_and_without_chunks_for_a_longest_prompt(
    wide_heads_model_dir: Path, device: str, keys: dict[str, Any], tokens: int, chunked: bool
) -> None:
    found = made(device, {}, wide_heads_model_dir, **keys)
    assert (found["max_num_batched_tokens"], found["enable_chunked_prefill"]) == (tokens, chunked)


def test_arguments_on_a_gpu(wide_heads_model_dir: Path) -> None:
    found = made("cuda", {}, wide_heads_model_dir, gpu_memory_utilization=0.3)
    assert found["dtype"] == "bfloat16" and not found["enforce_eager"] and found["enable_sleep_mode"]
    assert (
        found["gpu_memory_utilization"] == 0.3
        and "kv_cache_memory_bytes" not in found
        and "enable_lora" not in found
    )
    assert not made("cuda", {}, wide_heads_model_dir, free_cache_engine=False)["enable_sleep_mode"]


def test_arguments_of_an_engine_over_two_devices(wide_heads_model_dir: Path) -> None:
    from verl.workers.rollout.vllm.executor import MultiDeviceExecutor

    one, two = (
        made("cpu", {}, wide_heads_model_dir, max_num_seqs=8, tensor_model_parallel_size=n) for n in (1, 2)
    )
    assert (one["tensor_parallel_size"], one["distributed_executor_backend"]) == (1, "uni")
    assert two["tensor_parallel_size"] == 2
    assert resolve_name(two["distributed_executor_backend"]) is MultiDeviceExecutor
    assert two["kv_cache_memory_bytes"] * 2 == one["kv_cache_memory_bytes"], (
        "each process has half of the heads"
    )


@pytest.mark.parametrize(
    ("sizes", "tp", "said"),
    [
        ({"num_attention_heads": 4, "num_key_value_heads": 2}, 2, None),
        ({"num_attention_heads": 8, "num_key_value_heads": 2}, 4, None),
        ({"num_attention_heads": 4, "num_key_value_heads": 1}, 4, None),
        (
            {"num_attention_heads": 14, "num_key_value_heads": 2},
            4,
            "split the model's 14 attention heads evenly; choose a divisor",
        ),
        (
            {"num_attention_heads": 12, "num_key_value_heads": 6},
            4,
            "=4 cannot split the model's 6 key-value heads",
        ),
        (
            {"num_attention_heads": 6, "num_key_value_heads": 6},
            3,
            r"512 tokens \(500, padded to a multiple of 64\) and 128 interm",
        ),
    ],
)
def test_a_model_that_cannot_be_split_is_refused(sizes: dict[str, int], tp: int, said: str | None) -> None:
    from transformers import Qwen3Config

    model = Qwen3Config(vocab_size=500, intermediate_size=128, **sizes)
    arguments.check_split(model, 1)
    with nullcontext() if said is None else pytest.raises(RolloutError, match=said):
        arguments.check_split(model, tp)


def test_an_engine_sees_the_gpus_of_its_ranks() -> None:
    gpus = arguments.visible_gpus(["2", "3"])
    with process.environment(process.engine_environment("cuda", 0, gpus)):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "CUDA_VISIBLE_DEVICES" not in process.engine_environment("cuda", 0)
    for held in (["0,1", "0,1"], ["not set", "1"], ["", "1"], ["1", "1"]):
        with pytest.raises(
            RolloutError, match=rf"{held[0]!r}, {held[1]!r}; expected a different single GPU in each"
        ):
            arguments.visible_gpus(held)


def test_what_vllm_cannot_serve_is_refused(tiny_model_dir: Path, wide_heads_model_dir: Path) -> None:
    with pytest.raises(
        RolloutError, match=r"heads have 8 channels; vLLM on a CPU serves 32, 64.*rollout\.name=hf"
    ):
        made("cpu", {}, tiny_model_dir)
    made("cuda", {}, tiny_model_dir)
    with pytest.raises(RolloutError, match="adapter 'b' has rank 600; vLLM serves at most 512"):
        made("cpu", {"a": LoraSpec(1, 1), "b": LoraSpec(600, 1)}, wide_heads_model_dir)


def test_limits_are_those_of_the_installed_vllm() -> None:
    from vllm.config.lora import MaxLoRARanks
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    assert typing.get_args(MaxLoRARanks) == arguments.LORA_RANKS
    assert tuple(CPUAttentionBackend.get_supported_head_sizes()) == arguments.CPU_HEAD_SIZES


def test_the_environment_is_for_the_engine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.delenv("VLLM_HOST_IP", raising=False)
    before = dict(os.environ)
    with process.environment(process.engine_environment("cpu", 2)):
        assert (
            os.environ["OMP_NUM_THREADS"] == "2"
            and os.environ["VLLM_HOST_IP"] == "127.0.0.1"
            and "RANK" not in os.environ
        )
        assert os.environ["GLOO_SOCKET_IFNAME"] == os.environ["NCCL_SOCKET_IFNAME"] == "lo", (
            "wherever the host's name points to"
        )
    assert dict(os.environ) == before


UNNAMED = """
import multiprocessing
from pathlib import Path
from verl.workers.rollout.vllm.process import unlink_semaphores
lock = multiprocessing.get_context("spawn").Lock()
name = Path("/dev/shm/sem." + lock._semlock.name.lstrip("/"))
assert name.exists()
unlink_semaphores()
with lock:
    assert not name.exists()
"""


def test_semaphores_of_a_killed_engine_leave_no_name() -> None:
    done = subprocess.run([sys.executable, "-c", UNNAMED], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, ""), "and who keeps account of them has heard of it"


CHILD = """
import time
from verl.workers.rollout.vllm.process import end_with_parent
end_with_parent()
print("up", flush=True)
time.sleep(60)
"""
STARTER = f"""
import os, subprocess, sys
os.environ["VERL_MAS_ENGINE_PARENT"] = str(os.getpid())
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


def test_an_engine_process_ends_with_the_one_that_started_it() -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    starter.kill()
    starter.wait(60)
    assert asyncio.run(_gone(pid))


MIDDLE = f"""
import os, subprocess, sys
from verl.workers.rollout.vllm.process import adopt_children, end_with_parent
end_with_parent()
adopt_children()
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(os.getpid(), child.pid, flush=True)
child.wait()
"""
OUTER = (
    STARTER.split("child =")[0]
    + f"""
middle = subprocess.Popen([sys.executable, "-c", {MIDDLE!r}])
middle.wait()
"""
)


def test_a_process_of_an_engine_over_several_devices_ends_with_the_worker_too() -> None:
    starter = subprocess.Popen([sys.executable, "-c", OUTER], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    pids = [int(pid) for pid in starter.stdout.readline().split()]
    assert len(pids) == 2
    starter.kill()
    starter.wait(60)
    assert all(asyncio.run(_gone(pid)) for pid in pids)


def test_the_processes_of_an_engine_over_several_devices_are_forked_from_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.utils.system_utils import get_mp_context
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    from verl.workers.rollout.vllm import executor

    used: list[str] = []
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # as the engine's process has it
    monkeypatch.setenv(process.PARENT, "")
    monkeypatch.setattr(executor, "unlink_semaphores", lambda: None)
    monkeypatch.setattr(
        MultiprocExecutor, "_init_executor", lambda self: used.append(get_mp_context().get_start_method())
    )
    monkeypatch.setattr(MultiprocExecutor, "__init__", lambda self: self._init_executor())
    executor.MultiDeviceExecutor()
    assert (used, os.environ["VLLM_WORKER_MULTIPROC_METHOD"]) == (["fork"], "spawn")


def orphan(found: multiprocessing.connection.Connection, go_on: multiprocessing.synchronize.Event) -> None:
    """Calls `end_with_parent` after its parent has died."""
    found.send(os.getpid())
    go_on.wait(60)
    process.end_with_parent()
    time.sleep(60)


def early_death(
    found: multiprocessing.connection.Connection, go_on: multiprocessing.synchronize.Event
) -> None:
    """Starts a process for an engine and dies before that is up."""
    process.adopt_children()
    multiprocessing.get_context("spawn").Process(target=orphan, args=(found, go_on)).start()
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_whose_parent_died_while_it_came_up_ends() -> None:
    context = multiprocessing.get_context("spawn")
    (receiver, sender), go_on = context.Pipe(duplex=False), context.Event()
    parent = context.Process(target=early_death, args=(sender, go_on))
    parent.start()
    parent.join(60)
    assert receiver.poll(60)
    pid = receiver.recv()
    assert Path(f"/proc/{pid}").exists()
    go_on.set()
    assert asyncio.run(_gone(pid))


async def _gone(pid: int, within_s: float = 30.0) -> bool:
    for _ in range(round(within_s / 0.05)):
        try:
            if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        await asyncio.sleep(0.05)
    return False


TELLS = """
import json, os
names = {"log": "VERL_MAS_ENGINE_LOG", "tmpdir": "TMPDIR", "threads": "OMP_NUM_THREADS"}
told = {"parent": os.getppid()} | {key: os.environ.get(name) for key, name in names.items()}
print(json.dumps(told), flush=True)
"""


@pytest.fixture
def light_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Servers of the test's own, which import little."""
    monkeypatch.setattr(fork_server, "PRELOADED", process.__name__)
    servers: dict[Any, fork_server.ForkServer] = {}
    monkeypatch.setattr(fork_server, "_servers", servers)
    yield
    for server in servers.values():
        server.let_go()


@pytest.mark.usefixtures("light_servers")
def test_processes_of_engines_are_forked_from_one_server_for_an_environment(tmp_path: Path) -> None:
    told = []
    for name, threads in (("first", 1), ("second", 1), ("third", 2)):
        log = process.EngineLog(str(tmp_path / f"{name}.log"))
        scratch = tmp_path / name
        variables = process.engine_environment("cpu", threads, log=log.path, scratch=scratch)
        with process.environment(variables):
            started = fork_server.Context().Process(target=exec, args=(TELLS,))
            started.start()
        started.join(60)
        assert started.exitcode == 0
        told.append(json.loads(log.path.read_text()))
        assert (told[-1]["log"], told[-1]["tmpdir"]) == (str(log.path), str(scratch))
    assert [one["threads"] for one in told] == ["1", "1", "2"]
    parents = [one["parent"] for one in told]
    assert parents[0] == parents[1] != parents[2], "what libraries read when they load needs another server"
    assert os.getpid() not in parents


@pytest.mark.usefixtures("light_servers")
def test_a_server_beyond_the_most_ends_with_its_last_engine() -> None:
    started = []
    for threads in range(1, fork_server.MOST_SERVERS + 2):
        with process.environment(process.engine_environment("cpu", threads)):
            started.append(fork_server.Context().Process(target=time.sleep, args=(60,)))
            started[-1].start()
    servers = [psutil.Process(one.pid).ppid() for one in started]
    assert len({*servers}) == len(servers) and all(one.is_alive() for one in started)
    started[0].kill()
    assert asyncio.run(_gone(servers[0])) and not asyncio.run(_gone(servers[1], within_s=0.5))
    for one in started[1:]:
        one.kill()
        one.join(30)


@pytest.mark.usefixtures("light_servers")
def test_an_engine_that_is_killed_says_so_and_the_next_one_has_a_server_although_it_was_killed() -> None:

    def start() -> Any:
        with process.environment(process.engine_environment("cpu", 0)):
            started = fork_server.Context().Process(target=time.sleep, args=(60,))
            started.start()
        return started

    killed, orphaned = start(), start()
    killed.kill()
    killed.join(30)
    assert killed.exitcode == -signal.SIGKILL
    os.kill(psutil.Process(orphaned.pid).ppid(), signal.SIGKILL)
    orphaned.join(30)
    assert asyncio.run(_gone(orphaned.pid)) and orphaned.exitcode not in (0, None)
    after = start()
    assert after.is_alive()
    after.terminate()
    after.join(30)
    assert after.exitcode == -signal.SIGTERM


def end_of_the_parent() -> bool:
    """Kill the parent, and return once it is gone."""
    parent = os.getppid()
    os.kill(parent, signal.SIGKILL)
    while os.getppid() == parent:
        time.sleep(0.01)
    return True


class EndsTheServer:
    """What is read in a forked process before the process is one of its engine."""

    def __reduce__(self) -> tuple[Any, ...]:
        return end_of_the_parent, ()


@pytest.mark.usefixtures("light_servers")
def test_a_process_whose_server_is_killed_before_it_is_prepared_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    data = multiprocessing.spawn.get_preparation_data
    monkeypatch.setattr(
        "multiprocessing.spawn.get_preparation_data", lambda name: data(name) | {"ends": EndsTheServer()}
    )
    with process.environment(process.engine_environment("cpu", 0)):
        started = fork_server.Context().Process(target=time.sleep, args=(60,))
        started.start()
    assert asyncio.run(_gone(started.pid))


FORKING = """
import os, threading, time
from verl.workers.rollout.vllm import fork_server, process
fork_server.PRELOADED = process.__name__
started = []
def start():
    with process.environment(process.engine_environment("cpu", 0)):
        started.append(fork_server.Context().Process(target=time.sleep, args=(60,)))
        started[0].start()
thread = threading.Thread(target=start)
thread.start()
thread.join()
time.sleep(0.5)
assert started[0].is_alive(), "the server does not end with the thread that needed it"
print(started[0].pid, flush=True)
time.sleep(60)
"""


def test_a_forked_engine_ends_with_a_killed_worker_and_not_with_the_thread_that_started_it() -> None:
    worker = subprocess.Popen([sys.executable, "-c", FORKING], stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    pid = int(worker.stdout.readline())
    server = psutil.Process(pid).ppid()
    assert psutil.Process(server).ppid() == worker.pid
    worker.kill()
    worker.wait(60)
    assert asyncio.run(_gone(pid)) and asyncio.run(_gone(server))


def test_engines_on_a_gpu_are_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.engine import utils

    for _ in range(2):
        fork_server.fork_engines()
    for device, method in (("cpu", "forkserver"), ("cuda", "spawn")):
        with process.environment(process.engine_environment(device, 1)):
            assert utils.get_mp_context().get_start_method() == method


ENGINE_PROCESS = """
import os, sys
sys.path[:] = os.environ["TEST_PATH"].split(os.pathsep)
from verl.workers.rollout.vllm.process import VLLM_STREAM
print("a warning of some library", file=sys.stderr)
print("out")
VLLM_STREAM.write("(EngineCore pid=7) ERROR 11-24 20:09:37 [core.py:1512] RuntimeError: CPU Generator does not use offset\\n")
os.kill(os.getpid(), 9) if len(sys.argv) > 1 else None
"""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], r"^RuntimeError: CPU Generator does not use offset; its log is .*engine-math\.log$"),
        (
            ["killed"],
            r"^killed by SIGKILL \(.*memory is exhausted: lower .*max_num_seqs.*\); its log is "
            r".*engine-math\.log$",
        ),
    ],
)
def test_what_an_engine_process_writes_is_in_its_log_which_says_why_it_died(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    path = tmp_path / "logs" / "engine-math.log"
    path.parent.mkdir()
    path.write_text("ValueError: of an engine before this one\n")
    log = process.EngineLog(str(path))
    assert log.last_error() == ""
    with process.environment(
        process.engine_environment("cpu", 1, log=log.path) | {"TEST_PATH": os.pathsep.join(sys.path)}
    ):
        found = subprocess.run(
            [sys.executable, "-c", ENGINE_PROCESS, *arguments], capture_output=True, timeout=240
        )
    assert (found.stdout, found.stderr) == (b"", b""), "nothing reaches the terminal"
    written = path.read_text()
    assert (
        written.startswith("ValueError")
        and "a warning of some library" in written
        and "[core.py:1512] RuntimeError" in written
    )
    assert re.search(said, log.exit_cause(found.returncode or None)) and "\n" not in log.exit_cause(1)
    log.close()
    assert path.exists(), "the log of a run is kept"


def test_a_temporary_log_is_kept_for_a_dead_engine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process.tempfile, "gettempdir", lambda: str(tmp_path))
    for asked in (False, True):
        log = process.EngineLog()
        log.path.write_text("INFO all is well\n")
        if asked:
            assert log.exit_cause(3) == f"it ended with status 3 and logged no error; its log is {log.path}"
        log.close()
        assert list(tmp_path.iterdir()) == ([log.path] if asked else [])


def test_output_of_this_process_stays_and_vllm_is_silent_here(tmp_path: Path) -> None:
    """vLLM's messages about an engine that died do not reach the terminal."""
    with process.environment(process.engine_environment("cpu", 1, log=tmp_path / "engine.log")):
        assert (
            process._vllm_stream().write("AsyncLLM output_handler failed")
            and not (tmp_path / "engine.log").exists()
        )
        assert resolve_name(os.environ["VLLM_LOGGING_STREAM"].removeprefix("ext://")) is process.VLLM_STREAM


def test_sockets_and_temporary_files_lie_in_a_folder_that_goes_with_the_spool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spool = Spool(1)
    on_cpu, on_gpu = (
        process.engine_environment(device, 1, scratch=spool.scratch) for device in ("cpu", "cuda")
    )
    assert (
        on_cpu["TMPDIR"] == on_cpu["VLLM_RPC_BASE_PATH"] == on_gpu["VLLM_RPC_BASE_PATH"] == str(spool.scratch)
    )
    (spool.scratch / "vllm_dist_1").touch()
    spool.close()
    assert not spool.scratch.exists() and not spool.folder.exists()
    long = Path("/", "a" * 90)
    assert "VLLM_RPC_BASE_PATH" not in process.engine_environment("cpu", 1, scratch=long), (
        "no socket can have a path as long as that"
    )


def test_a_spool_holds_tensors_that_share_memory_and_removes_those_of_dead_processes() -> None:
    first = Spool(1)
    dead = first.folder.with_name(f"{PREFIX}-99999999-{'a' * 12}")
    dead.mkdir()
    other = Spool(1)
    assert not dead.exists() and first.folder.exists()
    tensor = torch.arange(6.0)
    path = other.write({"whole": tensor, "part": tensor[:3], "turned": tensor.view(2, 3).T})
    found = load_file(path)
    assert torch.equal(found["part"], tensor[:3]) and torch.equal(found["turned"], tensor.view(2, 3).T)
    assert path.parent.stat().st_mode & 0o077 == 0
    other.close()
    assert not path.exists()
    first.close()


def test_replies_of_neighbouring_seeds_have_seeds_of_their_own() -> None:
    seeds = {engine.reply_seed(seed, index) for seed in (-1, 0, 1, 2, 2**63) for index in range(4)}
    assert len(seeds) == 20 and all(0 <= seed < 2**63 for seed in seeds)


class Recorder:
    """The control calls of `AsyncLLM`, recorded."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.engine_core = SimpleNamespace(set_weight_version_async=self._label)

    async def _label(self, label: str) -> None:
        """Labels of weights are not recorded."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> list[str]:
            self.calls.append(
                (
                    f"{name} {args[0]}" if name == "collective_rpc" else name,
                    {k: v for k, v in kwargs.items() if k != "args"},
                )
            )
            return [""]

        return call

    def shutdown(self, timeout: float) -> None:
        """Nothing runs."""

    def names(self) -> list[str]:
        found = [name for name, _ in self.calls]
        self.calls.clear()
        return found


@pytest.fixture
def on_gpu(
    monkeypatch: pytest.MonkeyPatch, wide_heads_model_dir: Path
) -> Callable[..., tuple[engine.VLLMEngine, Recorder]]:
    """An engine with the settings of a GPU over a recorder."""
    recorder = Recorder()

    async def start(given: Any) -> Recorder:
        assert given["enable_sleep_mode"]
        return recorder

    monkeypatch.setattr(engine, "_start", start)

    def make(adapters: dict[str, LoraSpec] | None = None) -> tuple[engine.VLLMEngine, Recorder]:
        config = ActorRolloutRefConfig(
            model=ModelConfig(path=str(wide_heads_model_dir)), rollout=RolloutConfig(name="vllm")
        )
        made = engine.VLLMEngine(
            config, max_model_len=64, device="cuda", num_threads=0, seed=0, adapters=adapters
        )
        assert recorder.names() == ["collective_rpc verl_prepare"]
        return made, recorder

    return make


def all_weights(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path / "model.safetensors")


def test_a_sleeping_engine_takes_weights_first_and_then_the_cache(
    on_gpu: Callable[..., Any], wide_heads_model_dir: Path
) -> None:
    sleeper, recorder = on_gpu()
    sleeper.sleep()
    sleeper.sleep()
    assert recorder.calls == [("sleep", {"level": 2})]
    recorder.names()
    sleeper.update_weights(all_weights(wide_heads_model_dir), version=3)
    assert recorder.calls[0] == ("wake_up", {"tags": ["weights"]})
    update = [
        "pause_generation",
        *(f"collective_rpc verl_{what}" for what in ("start_update", "load_bucket", "finish_update")),
    ]
    assert recorder.names() == ["wake_up", *update], "sampling begins when the cache is there"
    sleeper.wake()
    assert recorder.calls == [("wake_up", {"tags": ["kv_cache"]})] and sleeper.version == 3
    recorder.names()
    sleeper.update_weights(all_weights(wide_heads_model_dir), version=4)
    assert recorder.names() == [*update, "resume_generation"]
    sleeper.close()


def test_weights_that_reach_the_processes_of_the_model_are_not_received_here(
    on_gpu: Callable[..., Any], wide_heads_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, recorder = on_gpu()
    told: list[Any] = []
    answers = [""]

    async def collective_rpc(method: str, args: Any = ()) -> list[str]:
        told.extend(args)
        return answers

    monkeypatch.setattr(recorder, "collective_rpc", collective_rpc, raising=False)
    sender, receiver, tensors = SharedMemory(), SharedMemory(), all_weights(wide_heads_model_dir)
    bucket = send_bucket(sender, tensors)
    monkeypatch.setattr(receiver, "receive", lambda handle: pytest.fail("the model is elsewhere"))
    made.update_weights(ReceivedWeights(receiver, bucket.handle, bucket.shapes), version=1)
    assert (
        told[:2] == [transfer_name(sender), bucket.handle]
        and set(told[2]) == set(tensors)
        and Path(bucket.handle).exists()
    )
    answers.append("the sender is gone")
    with pytest.raises(EngineGoneError, match="the sender is gone"):
        made.update_weights(ReceivedWeights(receiver, bucket.handle, bucket.shapes), version=2)
    sender.release(bucket.handle)
    made.close()


def test_the_base_of_adapters_is_kept_while_the_engine_sleeps(on_gpu: Callable[..., Any]) -> None:
    sleeper, recorder = on_gpu({"a": LoraSpec(2, 2, ["q_proj"])})
    sleeper.sleep()
    assert recorder.calls == [("sleep", {"level": 1})]
    recorder.names()
    shapes = sleeper._adapters._inbox._shapes["a"]
    sleeper.update_weights(
        {name: torch.ones(shape) for name, shape in shapes.items()}, adapter="a", version=1
    )
    assert recorder.names() == ["wake_up", "add_lora"]
    sleeper.wake()
    assert recorder.names() == ["wake_up"] and sleeper.version_of("a") == 1
    sleeper.close()


def test_an_update_while_paused_stays_paused(on_gpu: Callable[..., Any], wide_heads_model_dir: Path) -> None:
    paused, recorder = on_gpu()
    paused.pause()
    paused.update_weights(all_weights(wide_heads_model_dir), version=1)
    assert "resume_generation" not in recorder.names()
    paused.resume()
    assert recorder.names() == ["resume_generation"]
    paused.close()


def test_adapter_folders_are_what_peft_reads(on_gpu: Callable[..., Any], wide_heads_model_dir: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    writer, _ = on_gpu({"a": LoraSpec(2, 6, ["q_proj", "down_proj"])})
    for version in (1, 2, 3):
        tensors = {
            name: torch.full(shape, float(version))
            for name, shape in writer._adapters._inbox._shapes["a"].items()
        }
        writer.update_weights(tensors, adapter="a", version=version)
    kept = [folder.name for folder in sorted(writer._spool.folder.iterdir())]
    assert kept == ["1-2", "1-3"], "the one in use and the one before it"
    folder = writer._adapters.request("a").lora_path
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(wide_heads_model_dir, dtype=torch.float32), folder
    )
    lora = {name: p for name, p in model.named_parameters() if "lora_" in name}
    assert len(lora) == 2 * 2 * 2 and all((p == 3.0).all() for p in lora.values())
    assert model.base_model.model.model.layers[0].self_attn.q_proj.scaling == {"default": 3.0}
    writer.close()
    assert not Path(folder).exists()
