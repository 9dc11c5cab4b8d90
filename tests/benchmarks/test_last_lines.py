"""Every benchmark runs at a tiny size and ends with its one JSON line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent_system.workflows.code.rows_of_sets import HUMAN_EVAL
from tests.devices import on
from tests.forked import ForkServer

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240


def run(name: str, *args: str, python: str = sys.executable, **variables: str) -> tuple[dict, str]:
    """The JSON of the last line, and everything that was written."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | variables
    script = str(ROOT / "benchmarks" / name)
    done = subprocess.run(
        [python, script, *args], env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr


@pytest.mark.parametrize("device", on(1))
def test_rollout(forked_python: str, device: str) -> None:
    sizes = (
        "--hidden",
        "128",
        "--layers",
        "2",
        "--head-dim",
        "64",
        "--vocab",
        "300",
        "--prompt",
        "9",
        "--longest",
        "12",
        "--shared",
        "70",
        "--prefix-slots",
        "4",
        "--long",
        "200",
    )
    work = ("--slots", "8", "--requests", "8", "--equal-tokens", "4", "--repeats", "1", "--device", device)
    result, console = run(
        "rollout.py", *sizes, *work, python=sys.executable if device == "cuda" else forked_python
    )
    keys = ["equal", "staggered", "prefix", "delay"]
    keys += ["equal_tokens_per_s", "staggered_tokens_per_s"] * (device == "cuda")
    assert list(result) == [*keys, "spread"] and min(result[key] for key in keys) > 0
    assert all(low <= result[key] <= high for key, (low, high) in result["spread"].items())
    assert f"{300 * 128 + 2 * (12 * 128 * 128 + 2 * 64 + 2 * 128) + 128:,} parameters" in console


@pytest.mark.parametrize("device", on(1))
def test_policy_update(forked_python: str, device: str) -> None:
    sizes = (
        "--rows",
        "12",
        "--tokens",
        "64",
        "--rounds",
        "1",
        "--device",
        device,
        "--micro-batches",
        "3",
        "--gradient-checkpointing",
    )
    result, _ = run("policy_update.py", *sizes, python=sys.executable if device == "cuda" else forked_python)
    assert result["equal_ratio"] > 0
    assert result["mixed_ratio"] > 0
    assert result["conversation_ratio"] < 1
    groups = [str(k) for k in (4, 8, 16)]
    assert result["tokens_saved"]["8"] > 0.5
    for key in ("tokens_saved", "time_saved", "prefix_grouper_time_saved", "over_prefix_grouper"):
        assert list(result[key]) == groups
    measured = result["over_prefix_grouper"].values()
    assert all(ratio is None if device == "cuda" else ratio > 0 for ratio in measured)


def test_tail_measures_both_workloads_in_both_orders(forked_python: str) -> None:
    sizes = {"--window": 2, "--tasks": 2, "--group": 2, "--epochs": 1, "--rounds": 1, "--tokens": 64}
    words = [str(word) for pair in (sizes | {"--hidden": 32}).items() for word in pair]
    result, _ = run("tail.py", *words, python=forked_python)
    ratios = ["speedup", "speedup_random", "decode", "decode_random"]
    assert list(result) == [*ratios, "update_share", "spread"]
    assert list(result["spread"]) == ratios and min(result[name] for name in ratios) > 0
    assert 0 < result["update_share"] < 1


def test_memory_compares_both_ways(forked_python: str) -> None:
    sizes = (
        "--tokens 256 --vocab 20000 --hidden 32 --layers 1 --head-dim 16 --head-hidden 32 --head-tokens 256"
    )
    result, console = run(
        "memory.py", *sizes.split(), "--repeats", "1", "--peak-repeats", "1", python=forked_python
    )
    # 20 MB of logits and as many of their gradient are not there at once.
    assert result["head_mib"] < result["logits_mib"]
    ratios = [name for name in result if "ratio" in name]
    assert len(ratios) == 5 and all(result[name] > 0 for name in ratios)
    assert list(result["spread"]) == ratios
    assert "peak, head: " in console


def test_placement_measures_all_levels_on_the_same_rows(forked_python: str) -> None:
    sizes = {"--tasks": 2, "--group": 2, "--tokens": 6, "--hidden": 32, "--steps": 1, "--rounds": 1}
    result, _ = run(
        "placement.py", *(str(word) for pair in sizes.items() for word in pair), python=forked_python
    )
    assert min(result[f"{level}_s"] for level in ("l1", "l2", "l3", "single")) > 0
    assert len(set(result["reply_tokens"].values())) == 1
    assert 0 < result["lora_sync_bytes"] < result["full_sync_bytes"]
    assert result["l2_over_single"] == pytest.approx(result["l2_s"] / result["single_s"], abs=0.01)


def test_adapters_are_compared_with_one_on_the_same_rows(forked_python: str) -> None:
    sizes = {
        "--rows": 16,
        "--few-rows": 16,
        "--prompt": 5,
        "--reply": 4,
        "--hidden": 32,
        "--head-dim": 16,
        "--layers": 1,
    }
    result, console = run(
        "adapters.py",
        *(str(word) for pair in sizes.items() for word in pair),
        "--rounds",
        "1",
        python=forked_python,
    )
    spread = result.pop("spread")
    assert {"update_4", "update_16", "update_16_few_rows", "serial_16", "decode_16"} < result.keys()
    assert result.keys() == spread.keys() and min(result.values()) > 0
    assert all(low <= result[name] <= high for name, (low, high) in spread.items())
    assert "one after the other" not in console


def test_async_training_compares_steps_of_the_same_episodes(forked_python: str) -> None:
    sizes = (
        "--tasks",
        "2",
        "--group",
        "2",
        "--tokens",
        "12",
        "--hidden",
        "32",
        "--steps",
        "1",
        "--rounds",
        "1",
    )
    chosen = ("--workloads", "tools", "--wait", "0.01", "--modes", "one_step_off")
    threads = ("trainer.num_threads=1", "actor_rollout_ref.rollout.num_threads=1")
    result, _ = run("async_training.py", *threads, *sizes, *chosen, python=forked_python)
    seconds = {mode: found["tools"] for mode, found in result["step_s"].items()}
    assert result["speedup_tools"] == pytest.approx(seconds["sync"] / seconds["one_step_off"], rel=0.05)
    assert result["control_ms_per_call"] > 0
    assert result["staleness"] == {"one_step_off": {"tools": 1}}


def test_async_simulation_predicts_every_mode_where_training_takes_as_long_as_simulated(
    forked_python: str,
) -> None:
    """So its calibration finds all costs."""
    sizes = ("--tasks", "2", "--group", "2", "--gpu-tasks", "1", "--rounds", "2")
    result, console = run("../tests/benchmarks/simulated_training.py", *sizes, python=forked_python)
    assert list(result)[:4] == ["error", "gpu_update_bound", "gpu_rollout_bound", "one_step_off"]
    assert result["error"] < 0.01
    assert min(result["gpu_update_bound"], result["gpu_rollout_bound"]) > 1
    assert console.count(": predicted ") == 9 + 6  # the runs with tools are not repeated
    rounds = {name: {len(errors) for errors in found.values()} for name, found in result["errors"].items()}
    assert rounds == {"tools": {1}, "tail": {2}, "compute": {2}}
    assert "assumed for 8 GPUs, 16 episodes x 3 calls" in console


def test_evolve_compares_searches_of_the_same_edits(forked_python: str) -> None:
    sizes = ("--searches", "1", "--generations", "3", "--truth", "64")
    result, console = run("evolve.py", *sizes, python=forked_python)
    assert list(result) == ["episodes_share", "regret", "optimism", "calls_share"]
    assert 0 < result["episodes_share"] < 1 and 0 <= result["regret"] < 1 and 0 < result["calls_share"] < 1
    assert console.count("search 0, ") == 2


def test_graph_compares_teams_that_make_as_many_calls(forked_python: str) -> None:
    sizes = ("--episodes", "16", "--replies", "40", "--rounds", "2", "--loads", "1")
    result, console = run("graph.py", *sizes, python=forked_python)
    assert list(result) == ["overhead", "high", "load_ms"]
    assert 0 < result["overhead"] <= result["high"] and result["load_ms"] > 0
    assert console.count("ms CPU per call") == 2


@pytest.mark.ray
@pytest.mark.parametrize("device", on(1))
def test_weight_sync_measures_every_way_in_the_same_run(forked_python: str, device: str) -> None:
    ways = ("object_store", "collective", "shared_memory", "cuda_ipc")
    sizes = ("--mib", "4", "--bucket-mb", "2", "--rounds", "1", "--device", device)
    forked: dict[str, str] = (
        {} if device == "cuda" else {"python": forked_python} | ForkServer.workers(forked_python)
    )
    result, _ = run("weight_sync.py", *sizes, "--ways", *ways, **forked)
    assert min(result[f"{way}{unit}"] for way in ways for unit in ("_s", "_adapter_ms")) > 0
    ratio = result["collective_s"] / result["object_store_s"]
    assert result["collective_over_object_store"] == pytest.approx(ratio, rel=0.2)


def test_advantage_measures_every_group_key_beside_a_dict_filled_by_hand(forked_python: str) -> None:
    result, console = run("advantage.py", "--quick", "--repeats", "1", "--threads", "1", python=forked_python)
    assert min(result["ms_16k"], result["ms_1m"], result["gigpo_50k_ms"]) > 0
    for key in ("uid,agent_id ", "traj_uid,agent_id,turn,call", "policy_id", "times as long"):
        assert key in console


@pytest.mark.ray
def test_train_step_counts_every_reply_of_both_teams_and_keeps_the_console_quiet(forked_python: str) -> None:
    sizes = {"tasks": 2, "group": 4, "tokens": 4, "hidden": 32, "layers": 1, "repeats": 1, "warmup": 1}
    options = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    result, console = run(
        "train_step.py", *options, "--threads", "1", python=forked_python, **ForkServer.workers(forked_python)
    )
    keys = ["ratio_1", "ratio_2", "ratio_tree_update", "ratio_tree_step"]
    assert list(result)[:5] == [*keys, "spread"]
    assert all(result["spread"][key] == [result[key], result[key]] and result[key] > 0 for key in keys)
    assert result["rows"] == {"one": 8, "two": 16}
    assert 0 < result["peak_gib"] < 10
    for noise in ("Loading weights", "Writing model shards", "Token authentication"):
        assert noise not in console


def test_report_measures_the_command_its_page_and_the_recording() -> None:
    sizes = ("--steps", "2", "--tasks", "3", "--rounds", "1", "--record-steps", "1")
    result, _ = run("report.py", *sizes)
    page = ["first_paint_ms", "filter_ms", "open_ms", "heap_mb"]
    names = ["build_s", "mb", *page, "rss_mb"]
    assert list(result) == [*names, "record_share", *(f"math_{name}" for name in names), "spread"]
    assert 0 < result["math_mb"] < 1
    assert result["spread"]["mb"] == [result["mb"]] * 2
    assert 0 < result["mb"] < 1 and 10 < result["rss_mb"] < 300 and 0 < result["record_share"] < 0.5
    assert all(result[name] is None for name in page) or all(result[name] > 0 for name in page)


def test_tree_computes_a_prompt_once_whatever_k(forked_python: str) -> None:
    result, _ = run("tree.py", "--tasks", "4", "--k", "4", "--repeats", "1", python=forked_python)
    assert result["prompt_tokens_k4"] == pytest.approx(result["prompt_limit_k4"])
    assert result["prompt_tokens_k1"] == pytest.approx(result["prompt_limit_k1"])
    assert 0 < result["fork_us"] < result["deepcopy_us_plan_path"]


def test_gateway_is_measured_beside_an_echo(forked_python: str) -> None:
    sizes = ("--rate", "40", "--delay", "0.2", "--tokens", "200", "--seconds", "0.5", "--repeats", "1")
    result, _ = run("gateway.py", *sizes, python=forked_python)
    assert list(result)[:4] == ["server_ms_p50", "server_ms_p99", "cpu_ms_per_call", "echo_ms_p50"]
    assert 0 < result["server_ms_p50"] <= result["server_ms_p99"] < 1000
    assert result["cpu_ms_per_call"] > result["echo_cpu_ms_per_call"] > 0
    assert result["open"] == 8 and 150 < result["prompt_tokens"] < 300


def test_env_workers(forked_python: str) -> None:
    sizes = ("--cpu-episodes", "2", "--blocking-episodes", "4", "--steps", "20", "--repeats", "1")
    result, _ = run("env_workers.py", *sizes, python=forked_python)
    assert min(result["cpu_speedup"], result["bare_speedup"]) > 0
    assert 0.5 <= result["blocking_2000_s"] < 60
    assert result["overhead_ms"] != 0
    assert result.pop("spread") == {name: [value, value] for name, value in result.items()}


def test_the_rule_out_keeps_its_promise_for_an_incumbent_that_was_not_chosen_alone() -> None:
    result, console = run("rule_out.py", "--runs", "400")
    assert list(result) == ["independent", "shared"]
    assert all(list(row) == ["1", "4", "10", "20"] for row in result.values())
    assert all(row["1"] <= 0.2 for row in result.values())
    assert result["independent"]["20"] > 0.25 > result["independent"]["1"]
    assert "best of 20" in console


def test_words_of_every_kind_are_found() -> None:
    result, console = run("search_words.py")
    assert list(result) == ["recall_1", "recall_3", "default_1", "default_3", "kinds"]
    assert min(ours for ours, _ in result["kinds"].values()) == 1 > result["default_3"] >= result["default_1"]
    assert all(kind in console for kind in result["kinds"])


def test_retrieval_finds_what_is_asked_for_in_so_many_words_and_batches() -> None:
    result, _ = run(
        "retrieval.py",
        "--train",
        "80",
        "--questions",
        "20",
        "--queries",
        "16",
        "--batch",
        "8",
        "--repeats",
        "1",
    )
    assert result["recall_hops_1"] == 1
    assert 0 < result["recall_question_1"] <= result["recall_question_10"] < 1
    assert min(result[f"{kind}_per_s"] for kind in ("batched", "concurrent", "single", "cached")) > 0


HELPER = {
    "task_id": "Mini/6",
    "prompt": "def twice(x):\n    return 2 * x\n\n\ndef half(x):\n",
    "entry_point": "half",
    "canonical_solution": "    return x / 2\n",
    "test": "def check(candidate):\n    assert candidate(twice(3)) == 3\n",
}


def test_code_verdicts_are_those_of_the_assertions_but_for_mutants_of_their_helpers(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in (*HUMAN_EVAL, HELPER)))
    result, console = run("code_verdicts.py", "--rows", str(rows), "--mutants", "60")
    assert (result["rows"], result["programs"], result["differ"], result["share"]) == (5, 65, 0, 100.0)
    assert 5 < result["passed"] < 60
    assert console.count("in a helper that the test calls") == result["differ_in_helpers"] > 0
    assert result["agree"] + result["differ_in_helpers"] == 65


@pytest.mark.timing
def test_sandbox_is_faster_than_fresh_interpreters_and_keeps_the_event_loop_free() -> None:
    result, _ = run("sandbox.py", "--programs", "4", "--tests", "10", "--waiting", "20", "--repeats", "1")
    assert result["speedup"] > 1
    assert 0 < result["loop_delay_ms_p99"] < 1000
    assert result["level"] in ("namespaces", "landlock", "seccomp", "rlimits")
