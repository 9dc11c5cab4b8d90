"""A mistake of the user is one line on stderr that names key, value and fix, before Ray starts and before any
model loads.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_system.launch import train
from agent_system.sandbox import close_shared
from tests.e2e.conftest import Run
from tests.house.source import ROOT

Refuse = Callable[..., str]
MODEL = "actor_rollout_ref"
TP = f"{MODEL}.rollout.tensor_model_parallel_size"
ROLES = "agent.role_policies"
EVAL = {"trainer.val_only": True}
BYPASS = {"algorithm.rollout_correction.bypass_mode": True}


@pytest.fixture
def refuse(
    overrides: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Refuse:
    """Run the command line with changes; returns the one line it ends with."""

    def never(_: Any) -> None:
        raise AssertionError("a controller was built: workers would start")

    def go(changes: Mapping[str, Any]) -> str:
        monkeypatch.setattr(train, "build_controller", never)
        monkeypatch.setattr(sys, "argv", ["main_ppo", *overrides(changes)])
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
        monkeypatch.setenv("HOME", str(tmp_path))  # no key of wandb's in ~/.netrc
        for name in ("NETRC", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE"):
            monkeypatch.delenv(name, raising=False)
        capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            train.cli()
        assert stopped.value.code == 1
        lines = [
            line for line in capfd.readouterr().err.splitlines() if not line.startswith(("WARNING", "INFO"))
        ]
        assert len(lines) == 1, lines
        assert lines[0].startswith("error: ")
        return lines[0]

    return go


def write(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data.trian_batch_size": 3}, ["data.trian_batch_size", "did you mean data.train_batch_size"]),
        ({"data.train_batch_size": "many"}, ["data.train_batch_size=many", "int"]),
        ({"trainer.logger": "console"}, ["trainer.logger=console", "list"]),
        (
            {"agent.agent_specific_parameters.actor.optim.lr": "[1e-6]"},
            ["actor.optim.lr", "2 values", "Asker"],
        ),
        (
            {"agent.agent_specific_parameters.actor.optim.rl": "[1e-6,1e-6]"},
            ["actor.optim.rl", "no such key"],
        ),
        ({"agent.model_ids": "[a]"}, ["agent.model_ids has 1", "agent.agent_ids has 2"]),
        ({"agent.agent_ids": "[Asker,Nobody]"}, ["Nobody", "Verifier Agent"]),
        ({"agent.orchestra_type": "my_folw"}, ["my_folw", "my_flow"]),
        ({"agent.plugins": "[no_such_package]"}, ["agent.plugins", "no_such_package"]),
        ({"env.env_name": "nowhere"}, ["nowhere", "my_world"]),
        (
            {"env.env_name": "search", "+env.params.corpus": "wiki.jsonl", "env.workers.num": 2},
            ["env.params.corpus=wiki.jsonl with env.workers.num>0", "env.params.url=", "env.workers.num=0"],
        ),
        ({f"{MODEL}.model.path": "/no/such/model"}, ["/no/such/model", "config.json"]),
        ({"data.train_files": "/no/such/file.jsonl"}, ["/no/such/file.jsonl", "data.train_files"]),
        ({"data.train_files": "."}, [". is a folder; name the files in data.train_files"]),
        ({f"{MODEL}.model.path": "~/model"}, ["write actor_rollout_ref.model.path=$HOME/model"]),
        ({f"{MODEL}.actor.optim.lr": "1e-6,1e-5"}, ["optim.lr=1e-6,1e-5", "key=[value1,value2]"]),
        ({"+data.seed": 3}, ["Could not append to config", "remove + prefix"]),
        (
            {"agent.orchestra_type": "single", "env.env_name": "math"},
            ["no agent named 'Asker'", "known: Single Agent"],
        ),
        ({"data.train_files": 7}, ["data.train_files=7", "str or list[str]"]),
        ({"data.train_batch_size": 50}, ["12 tasks", "data.train_batch_size=50"]),
        ({"trainer.logger": "[consle]"}, ["'consle'", "console"]),
        ({"algorithm.adv_estimator": "grop"}, ["algorithm.adv_estimator='grop'", "'grpo'", "rloo"]),
        ({"algorithm.group_by": "[uid,agent]"}, ["algorithm.group_by='agent'", "agent_id"]),
        (
            {"algorithm.group_by": "[turn]"},
            ["algorithm.group_by=[turn]: compares replies to different tasks", "uid", "policy_id"],
        ),
        ({"algorithm.group_by": "[agent_id,call]"}, ["algorithm.group_by=[agent_id,call]", "traj_uid"]),
        (
            {"algorithm.per_agent.asker.group_by": "[turn]"},
            ["algorithm.per_agent.asker.group_by=['turn']", "task_id"],
        ),
        (
            {"algorithm.preset": "dappo"},
            ["algorithm.preset='dappo'", "dr_mas, at_grpo, dr_grpo, dapo", "did you mean 'dapo'"],
        ),
        (
            {"algorithm.filter_groups.metric": "seq_reward", "env.rollout.n": 1},
            ["algorithm.filter_groups.metric=seq_reward", "env.rollout.n=1"],
        ),
        ({"algorithm.kl_penalty": "k9"}, ["algorithm.kl_penalty='k9'", "low_var_kl"]),
        (
            {"algorithm.kl_ctrl.type": "none"},
            ["algorithm.kl_ctrl.type", "algorithm.kl_ctrl.target_kl", "adaptive"],
        ),
        (
            {"trainer.resource_pool": "dedicated"},
            ["1 devices cannot be divided equally among 2 worker groups", "trainer.pool_sizes"],
        ),
        ({"trainer.controller": "rya"}, ["trainer.controller='rya'", "did you mean 'ray'"]),
        ({"trainer.resume_mode": "never"}, ["trainer.resume_mode=never", "disable"]),
        ({f"{MODEL}.actor.loss_agg_mode": "token"}, ["loss_agg_mode='token'", "token-mean"]),
        ({f"{MODEL}.actor.kl_loss_type": "k9"}, ["kl_loss_type='k9'", "low_var_kl"]),
        (
            {f"{MODEL}.actor.optim.lr_scheduler_type": "cosin"},
            ["lr_scheduler_type='cosin'", "did you mean 'cosine'"],
        ),
        ({f"{MODEL}.rollout.name": "vlm"}, ["rollout.name='vlm'", "hf"]),
        ({TP: 0}, ["rollout.tensor_model_parallel_size=0", "at least 1"]),
        ({TP: 2}, ["rollout.tensor_model_parallel_size=2 has no effect", "rollout.name=vllm"]),
        (
            {TP: 2, f"{MODEL}.rollout.name": "vllm"},
            ["tensor_model_parallel_size=2 needs trainer.controller=ray", "runs one rank"],
        ),
        (
            {
                TP: 2,
                f"{MODEL}.rollout.name": "vllm",
                "trainer.controller": "ray",
                "trainer.n_gpus_per_node": 3,
            },
            ["tensor_model_parallel_size=2 does not divide the 3 devices", "choose a divisor"],
        ),
        ({f"{MODEL}.rollout.dtype": "float"}, ["rollout.dtype='float'", "bf16"]),
        ({f"{MODEL}.actor.fsdp_config.model_dtype": "half"}, ["model_dtype='half'", "fp32"]),
        ({f"{MODEL}.actor.fsdp_config.dtype": "bfloat16"}, ["fsdp_config.dtype='bfloat16'", "bf16"]),
        (
            {"critic.fsdp.dtype": "half", "algorithm.adv_estimator": "gae"},
            ["critic.fsdp.dtype='half'", "auto, fp32, bf16"],
        ),
        (
            {f"{MODEL}.rollout.n": 5},
            [
                f"{MODEL}.rollout.n=5",
                "env.rollout.n=3",
                "set the same key to different values: leave out one",
            ],
        ),
        ({f"{MODEL}.rollout.temperature": 0}, ["rollout.temperature=0", "above 0"]),
        ({f"{MODEL}.rollout.top_k": 0}, ["rollout.top_k=0", "-1"]),
        ({f"{MODEL}.actor.ppo_mini_batch_size": 3}, ["ppo_mini_batch_size=3", "data.train_batch_size=2"]),
        (
            {
                f"{MODEL}.actor.use_adaptive_ppo_mini_batch_size": True,
                f"{MODEL}.actor.ppo_mini_batch_size": 1,
            },
            ["ppo_mini_batch_size=1 has no effect", "ppo_mini_update_num=null"],
        ),
        (
            {"agent.agent_specific_parameters.actor.ppo_mini_update_num": "[1,0]"},
            ["ppo_mini_update_num=0", "Verifier Agent", "at least 1"],
        ),
        (
            {"critic.use_adaptive_ppo_mini_batch_size": True},
            ["critic.ppo_mini_update_num=10 has no effect", "gae"],
        ),
        ({f"{MODEL}.actor.clip_ratio_c": 1.0}, ["clip_ratio_c=1.0", "above 1"]),
        (
            {"agent.agent_specific_parameters.actor.optim.lr": "[0.1,-0.1]"},
            ["lr=-0.1", "Verifier Agent", "at least 0"],
        ),
        (
            {"agent.agent_specific_parameters.actor.ppo_epochs": "[1,0]"},
            ["ppo_epochs=0", "Verifier Agent", "at least 1"],
        ),
        (
            {"agent.agent_specific_parameters.actor.ppo_mini_batch_size": "[1,3]"},
            ["ppo_mini_batch_size=3", "Verifier Agent"],
        ),
        ({"env.rollout.n": 0}, ["env.rollout.n=0", "at least 1"]),
        ({"env.rollout.val_n": 0}, ["env.rollout.val_n=0", "at least 1"]),
        ({"data.max_response_length": -5}, ["data.max_response_length=-5", "at least 1"]),
        ({"rollout.max_failure_rate": 1.5}, ["rollout.max_failure_rate=1.5", "at most 1"]),
        (
            {"trainer.resume_mode": "/no/where"},
            ["/no/where", "global_step_N"],
        ),
        (
            {"algorithm.adv_estimator": "gae", "critic.enable": False},
            ["adv_estimator=gae", "critic.enable=false"],
        ),
        (
            {"algorithm.adv_estimator": "gae", "critic.view": "jiont"},
            ["critic.view; a key of an earlier version", "critic.joint_prompt_length"],
        ),
        (
            {"algorithm.adv_estimator": "gae", "critic.ppo_mini_batch_size": 3},
            ["critic.ppo_mini_batch_size=3", "data.train_batch_size=2"],
        ),
        ({"algorithm.adv_estimator": "gae", "critic.optim.lr": -1}, ["critic.optim.lr=-1", "at least 0"]),
        (
            {"algorithm.adv_estimator": "gae", "critic.model.path": "/no/such/model"},
            ["critic.model.path='/no/such/model'", "not exist"],
        ),
        ({"critic.optim.lr": 0.1}, ["critic.optim.lr=0.1 has no effect", "gae"]),
        ({"trainer.critic_warmup": 2}, ["trainer.critic_warmup=2 has no effect", "critic.enable=true"]),
        (
            {ROLES: "{Asker: verifier_agent}"},
            ["{Asker: verifier_agent}", "trainer.val_only=true", "in training"],
        ),
        (
            {ROLES: "{Asker: judge, Verifer Agent: asker}"} | EVAL,
            ["no agent 'Verifer Agent'; did you mean 'Verifier Agent'?", "no policy 'judge'"],
        ),
        (
            {ROLES: "{Asker: asker_agent}", "agent.specialization": "prompt"} | EVAL,
            ["one policy", "agent.specialization=full"],
        ),
        (
            {ROLES: "{Asker: verifier_agent}", "trainer.resume_mode": "disable"} | EVAL,
            ["trainer.resume_mode=disable", "agent.model_ids"],
        ),
        (
            {ROLES: '{"Asker": "verifier_agent"}'} | EVAL,
            ['{"Asker": "verifier_agent"}', "must not be quoted"],
        ),
        ({f"{ROLES}.Verifier Agent": "asker"} | EVAL, ["Verifier Agent=asker", "slug"]),
        ({ROLES: "asker"} | EVAL, [f"{ROLES}=asker"]),
        ({f"{ROLES}.asker": "null"} | EVAL, [f"{ROLES}.asker=null"]),
        (
            {"algorithm.adv_estimator": "optimal_token_baseline"} | BYPASS,
            ["optimal_token_baseline", "sum_pi_squared", "bypass_mode=false"],
        ),
        (
            {"algorithm.per_agent.asker.adv_estimator": "tir_optimal_token_baseline"} | BYPASS,
            ["tir_optimal_token_baseline (agent 'Asker')", "bypass_mode=false"],
        ),
        (
            {"algorithm.adv_estimator": "gae", "critic.model.tokenizer_path": "/no/such/tokenizer"},
            ["critic.model.tokenizer_path='/no/such/tokenizer'", "does not exist"],
        ),
        (
            {f"{MODEL}.model.attn_implementation": "eager", f"{MODEL}.model.use_remove_padding": True},
            ["attn_implementation=eager", "use_remove_padding=false"],
        ),
        (
            {
                "algorithm.adv_estimator": "gae",
                "critic.model.attn_implementation": "eager",
                "critic.model.use_remove_padding": True,
            },
            ["critic.model.use_remove_padding=false"],
        ),
        (
            {"algorithm.adv_estimator": "gdpo", "algorithm.gdpo_reward_keys": "[reward, team_rewrad]"},
            ["'team_rewrad'", "'team_reward'"],
        ),
        (
            {"algorithm.per_agent.asker": "{adv_estimator: gdpo, gdpo_reward_keys: [format]}"},
            ["algorithm.per_agent.asker.gdpo_reward_keys='format'", "local_reward"],
        ),
        (
            {"trainer.logger": "[wandb]"},
            ["trainer.logger has 'wandb'", "WANDB_API_KEY", "WANDB_MODE=offline"],
        ),
        (
            {"algorithm.group_by": "[traj_uid]", "algorithm.statistics_over": "trajectories"},
            ["one trajectory per group", "uid"],
        ),
        (
            {"trainer.pool_sizes": "{asker: 1, verifier_agent: 1}"},
            ["trainer.pool_sizes={'asker': 1,", "resource_pool=dedicated"],
        ),
        ({"trainer.pool_sizes.asker": "one"}, ["trainer.pool_sizes.asker=one", "int"]),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_wrong_value_is_one_line(refuse: Refuse, changes: dict[str, Any], words: list[str]) -> None:
    line = refuse(changes)
    assert [word for word in words if word not in line] == [], line


def test_an_empty_dataset_is_named(refuse: Refuse, tmp_path: Path) -> None:
    assert "no rows in" in refuse({"data.train_files": write(tmp_path / "empty.jsonl", [])})


def test_a_row_without_ground_truth_is_named_with_its_number(refuse: Refuse, tmp_path: Path) -> None:
    good = {
        "data_source": "toy",
        "prompt": [{"role": "user", "content": "?"}],
        "reward_model": {"ground_truth": "1"},
    }
    line = refuse(
        {
            "data.train_files": write(
                tmp_path / "bad.jsonl", [good, good | {"reward_model": {"style": "rule"}}]
            )
        }
    )
    assert "row 1" in line
    assert "ground_truth" in line


def test_a_model_folder_without_a_tokenizer_is_named(
    refuse: Refuse, tmp_path: Path, tiny_model_dir: Path
) -> None:
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((tiny_model_dir / name).read_bytes())
    line = refuse({f"{MODEL}.model.path": folder})
    assert "tokenizer" in line
    assert str(folder) in line


def test_a_tokenizer_with_more_tokens_than_the_model_is_named(
    refuse: Refuse, tmp_path: Path, tiny_model_dir: Path
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    size = json.loads((tiny_model_dir / "config.json").read_text())["vocab_size"]
    tokenizer.add_tokens([f"<more {i}>" for i in range(size)])
    folder = tmp_path / "larger"
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_bytes((tiny_model_dir / "config.json").read_bytes())
    line = refuse({f"{MODEL}.model.tokenizer_path": folder})
    assert f"{size} embeddings" in line and str(folder) in line and "tokenizer_path" in line


def test_flash_attention_without_its_package_or_in_32_bits_is_named(
    refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    for found, changes, why in (
        (None, {}, "flash_attn is not installed"),
        (True, {"actor.fsdp_config.dtype": "fp32"}, "dtype=fp32"),
    ):
        monkeypatch.setattr("verl.trainer.plan.checks.find_spec", lambda name, found=found: found)
        line = refuse(
            {
                f"{MODEL}.{key}": value
                for key, value in ({"model.attn_implementation": "flash_attention_2"} | changes).items()
            }
        )
        assert "attn_implementation=flash_attention_2" in line and why in line


def test_a_checkpoint_of_another_model_or_dtype_is_refused_before_a_worker_starts(
    train: Run, refuse: Refuse, tmp_path: Path, tiny_model_dir: Path
) -> None:
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    gae = {"algorithm.adv_estimator": "gae", "critic.optim.lr": 0.001, "data.val_files": "[]"}
    train(gae | {"trainer.total_training_steps": 1})
    other = tmp_path / "other"
    Qwen3ForCausalLM(
        Qwen3Config.from_pretrained(tiny_model_dir, num_hidden_layers=1, layer_types=["full_attention"])
    ).save_pretrained(other)
    AutoTokenizer.from_pretrained(tiny_model_dir).save_pretrained(other)
    for changes, words in (
        (
            {f"{MODEL}.model.path": other},
            ["actor/asker is of another model", str(other), "trainer.resume_mode=disable"],
        ),
        ({"critic.model.path": other}, ["critic/asker is of another model", str(other)]),
        (
            {f"{MODEL}.actor.fsdp_config.model_dtype": "bf16"},
            ["torch.float32", "actor_rollout_ref.actor.fsdp_config.model_dtype=bf16"],
        ),
        (
            {"critic.fsdp.model_dtype": "bf16"},
            ["critic/asker holds parameters in torch.float32", "critic.fsdp.model_dtype=bf16"],
        ),
    ):
        line = refuse(gae | changes)
        assert [word for word in words if word not in line] == [], line


def test_a_checkpoint_of_another_team_dataset_or_mode_is_refused(
    train: Run, refuse: Refuse, tmp_path: Path
) -> None:
    train({"trainer.total_training_steps": 1, "data.val_files": "[]"})
    line = refuse({"agent.specialization": "prompt"})
    assert "Asker -> asker" in line
    assert "trainer.resume_mode=disable" in line
    assert "data.train_files" in refuse({"data.train_max_samples": 6})
    corrected = {"algorithm.rollout_correction.rollout_is": "token"}
    assert "mode=sync, this run has one_step_off" in refuse(
        corrected | {"async_training.mode": "one_step_off"}
    )


CROSS_KEY = [
    (["algorithm.group_by=[turn]"], "error: algorithm.group_by=[turn]: compares replies to different tasks"),
    (["algorithm.lam=0.9"], "error: algorithm.lam=0.9 has no effect; it needs algorithm.adv_estimator=gae"),
    (
        ["algorithm.adv_estimator=gae", "critic.joint_prompt_length=64", "rollout.sampling=tree"],
        "error: rollout.sampling=tree",
    ),
    (
        ["trainer.resource_pool=dedicated"],
        "error: trainer.resource_pool=dedicated: trainer.nnodes=1 * trainer.n_gpus_per_node=1",
    ),
    (
        [f"{MODEL}.actor.policy_loss.loss_mode=sapo", f"{MODEL}.actor.clip_ratio_low=0.1"],
        f"error: {MODEL}.actor.clip_ratio_low=0.1 has no effect",
    ),
    (["data.train_batch_size"], "error: data.train_batch_size: expected key=value"),
    (
        ["data.trian_batch_size=3"],
        "error: unknown key data.trian_batch_size; did you mean data.train_batch_size",
    ),
]


# The command, with one command line after the other in one interpreter.
COMMANDS = """
import json, runpy, sys
for sys.argv[1:] in json.loads(sys.argv[1]):
    try:
        runpy.run_module("verl.trainer.main_ppo", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        print(end.code)
    else:
        print("it went on")
print({"verl.trainer.plan.checks", "torch", "transformers", "ray", "tensordict"} & set(sys.modules))
"""


def test_keys_that_contradict_each_other_are_refused_before_torch_is_imported() -> None:
    lines = json.dumps([[f"{MODEL}.model.path=owner/model", *overrides] for overrides, _ in CROSS_KEY])
    ended = subprocess.run(
        [sys.executable, "-c", COMMANDS, lines], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    *statuses, imported = ended.stdout.splitlines()
    assert statuses == ["1"] * len(CROSS_KEY) and imported == "{'verl.trainer.plan.checks'}", ended
    for said, (_, start) in zip(ended.stderr.splitlines(), CROSS_KEY, strict=True):
        assert said.startswith(start)


def test_the_real_command_ends_with_one_line_and_status_1(
    overrides: Callable[..., list[str]], user_package: Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "verl.trainer.main_ppo",
        *overrides({"trainer.controller": "ray", "algorithm.adv_estimator": "grop"}),
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(user_package), os.getcwd()])}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: algorithm.adv_estimator='grop': expected one of ") and "rloo" in line
    assert "Loading weights" not in ended.stdout


@pytest.mark.parametrize(
    ("source", "truth", "words"),
    [
        ("other", "4", ["known: openai/gsm8k"]),
        ("taco", "4", ["reward_model.ground_truth of data_source='taco'", "not an object"]),
        ("apps", {"inputs": "1\n", "outputs": "1\n"}, ["inputs and outputs must be lists"]),
        ("apps", {"assert_case": ["assert f(1) == 1"], "inputs": [""], "outputs": [""]}, ["assert_case"]),
        ("codeforces", {"inputs": [], "outputs": []}, ["at least one"]),
        ("apps", {"inputs": ["{oops"], "outputs": ["1"], "fn_name": "f"}, ["ground_truth"]),
    ],
)
def test_a_task_that_cannot_be_graded_is_named_before_training(
    refuse: Refuse, tmp_path: Path, source: str, truth: Any, words: list[str]
) -> None:
    good = {"inputs": ["1\n"], "outputs": ["1\n"]}
    rows = [
        {
            "data_source": name,
            "prompt": [{"role": "user", "content": "?"}],
            "reward_model": {"ground_truth": one},
        }
        for name, one in (("apps", json.dumps(good)), (source, truth if truth == "4" else json.dumps(truth)))
    ]
    team = {
        "agent.orchestra_type": "single",
        "agent.agent_ids": "[Single Agent]",
        "agent.plugins": "[]",
        "env.env_name": "data_source",
        "+env.params.programs": True,
    }
    try:
        line = refuse({**team, "data.train_files": write(tmp_path / "tasks.jsonl", rows)})
    finally:
        close_shared()  # another run in this process would report its failures
    assert all(word in line for word in ["tasks.jsonl, row 1: ", *words]), line
