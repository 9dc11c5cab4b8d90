import sys; sys.path.insert(0,'/tmp/w-verl')
from tests.e2e.test_verl_commands import *
from tests.e2e.test_verl_commands import command, batches
def test_vllm(tmp_path, wide_heads_model_dir, batches, monkeypatch):
    given = save_peft_adapter(wide_heads_model_dir, tmp_path / "given")
    data = rows(tmp_path / "rows.jsonl", "openai/gsm8k")
    ch={"actor_rollout_ref.model.lora_adapter_path": given, "trainer.total_training_steps": 1, "data.train_files": data, "data.val_files": data, "trainer.default_local_dir": tmp_path/"run"}
    S=dict(SIZES); S.pop("actor_rollout_ref.rollout.name")
    typed = [(o.partition("=")[0], o.partition("=")[2]) for o in get_args_parser().parse_args(VERL["tuning/lora/run_qwen3_8b_from_adapter_fsdp.sh"]).overrides]
    values = S | {"actor_rollout_ref.model.path": wide_heads_model_dir} | ADDED | ch
    new=[f"{n}={values.get(n.lstrip('+'),v)}" for n,v in typed]; names={n.lstrip('+') for n,_ in typed}
    new += [f"{n}={v}" for n,v in (ADDED|ch).items() if n not in names]
    run(compose_config(new))
    [batch]=batches
    got, exp = sampled(batch,"rollout_log_probs"), scored(load_exported(given), batch)
    print("MAXDIFF", abs(got-exp).max(), "vs base", abs(got-sampled(batch,"ref_log_prob")).max())
    assert abs(got-exp).max()<2e-3
