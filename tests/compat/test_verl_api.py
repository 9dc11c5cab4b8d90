"""The public names of verl 0.9.0's batches, controller and algorithms are here, with its parameters in its
order.
"""

import importlib
import inspect
import re
from collections.abc import Iterator

import pytest

# Written down from verl 0.9.0: functions, classes and their public methods; parameters in parentheses, none
# for properties.
VERL = {
    "verl.protocol": """
        DataProtoConfig
        pad_dataproto_to_divisor(data, size_divisor)
        unpad_dataproto(data, pad_size)
        union_tensor_dict(tensor_dict1, tensor_dict2)
        union_numpy_dict(tensor_dict1, tensor_dict2)
        fold_batch_dim(data, new_batch_size)
        unfold_batch_dim(data, batch_dims)
        serialize_single_tensor(obj)
        serialize_tensordict(batch)
        deserialize_single_tensor(arr)
        deserialize_tensordict(arr)
        collate_fn(x)
        allgather_dict_tensors(tensors, size, group, dim)
        list_of_dict_to_dict_of_list(list_of_dict)
        union_two_dict(dict1, dict2)
        DataProtoItem(batch, non_tensor_batch, meta_info)
        DataProto(batch, non_tensor_batch, meta_info)
        DataProto.save_to_disk(filepath)
        DataProto.load_from_disk(filepath)
        DataProto.print_size(prefix)
        DataProto.check_consistency()
        DataProto.from_single_dict(data, meta_info, auto_padding)
        DataProto.from_dict(tensors, non_tensors, meta_info, num_batch_dims, auto_padding)
        DataProto.from_tensordict(tensor_dict, meta_info, num_batch_dims)
        DataProto.to(device)
        DataProto.select(batch_keys, non_tensor_batch_keys, meta_info_keys, deepcopy)
        DataProto.select_idxs(idxs)
        DataProto.slice(start, end, step)
        DataProto.pop(batch_keys, non_tensor_batch_keys, meta_info_keys)
        DataProto.rename(old_keys, new_keys)
        DataProto.union(other)
        DataProto.make_iterator(mini_batch_size, epochs, seed, dataloader_kwargs)
        DataProto.is_padding_enabled()
        DataProto.padding(padding_size, padding_candidate)
        DataProto.chunk(chunks)
        DataProto.split(split_size)
        DataProto.concat(data)
        DataProto.reorder(indices)
        DataProto.repeat(repeat_times, interleave)
        DataProto.unfold_column_chunks(n_split, split_keys)
        DataProto.sample_level_repeat(repeat_times)
        DataProto.to_tensordict()
        DataProto.get_data_info()
        DataProtoFuture(collect_fn, futures, dispatch_fn)
        DataProtoFuture.concat(data)
        DataProtoFuture.chunk(chunks)
        DataProtoFuture.get()
        BatchData(data)
        BatchData.is_chunkable()
        BatchData.is_concatable()
        BatchData.chunk(chunks)
        BatchData.concat()
        all_gather_data_proto(data, process_group)
    """,
    "verl.single_controller.base.worker": """
        DistRankInfo(tp_rank, dp_rank, pp_rank, cp_rank)
        DistGlobalInfo(tp_size, dp_size, pp_size, cp_size)
        WorkerHelper
        WorkerHelper.get_availale_master_addr_port()
        WorkerHelper.get_available_master_addr_port()
        Worker(cuda_visible_devices)
        Worker.query_collect_info(mesh_name)
        Worker.get_dispatch_collect()
        Worker.set_dispatch_collect(mesh_name, dispatch_dp_rank, collect_dp_rank)
        Worker.env_keys()
        Worker.get_fused_worker_by_name(worker_name)
        Worker.get_master_addr_port()
        Worker.get_cuda_visible_devices()
        Worker.world_size
        Worker.rank
        Worker.execute_with_func_generator(func, *args, **kwargs)
        Worker.execute_func_rank_zero(func, *args, **kwargs)
    """,
    "verl.single_controller.base.worker_group": """
        ResourcePool(process_on_nodes, max_colocate_count, n_gpus_per_node)
        ResourcePool.add_node(process_count)
        ResourcePool.world_size
        ResourcePool.__call__()
        ResourcePool.store
        ResourcePool.local_world_size_list()
        ResourcePool.local_rank_list()
        ClassWithInitArgs(cls, *args, **kwargs)
        ClassWithInitArgs.__call__()
        check_workers_alive(workers, is_alive, gap_time)
        WorkerGroup(resource_pool, **kwargs)
        WorkerGroup.start_worker_aliveness_check(every_n_seconds)
        WorkerGroup.world_size
    """,
    "verl.single_controller.base.decorator": """
        Dispatch
        Dispatch.names()
        Dispatch.values()
        Dispatch.register(name)
        Dispatch.remove(name)
        Dispatch.from_name(name)
        init_predefined_dispatch_mode()
        Execute
        init_predefined_execute_mode()
        dispatch_one_to_all(worker_group, *args, **kwargs)
        dummy_direct_rollout_call(worker_group, *args, **kwargs)
        dispatch_all_to_all(worker_group, *args, **kwargs)
        collect_all_to_all(worker_group, output)
        dispatch_dp_compute(worker_group, *args, **kwargs)
        collect_dp_compute(worker_group, output)
        dispatch_dp_compute_data_proto(worker_group, *args, **kwargs)
        dispatch_dp_compute_data_proto_with_func(worker_group, *args, **kwargs)
        collect_dp_compute_data_proto(worker_group, output)
        dispatch_nd_compute(dp_rank_mapping, dp_size, worker_group, *args, **kwargs)
        collect_nd_compute(collect_mask, worker_group, output)
        dispatch_nd_compute_dataproto(dp_rank_mapping, dp_size, worker_group, *args, **kwargs)
        collect_nd_compute_dataproto(collect_mask, worker_group, output)
        dispatch_lazy_compute_data_proto(mesh_name, worker_group, *args, **kwargs)
        collect_lazy_compute_data_proto(mesh_name, worker_group, *args, **kwargs)
        make_nd_compute_dataproto_dispatch_fn(mesh_name)
        get_predefined_dispatch_fn(dispatch_mode)
        register_dispatch_mode(dispatch_mode_name, dispatch_fn, collect_fn)
        update_dispatch_mode(dispatch_mode, dispatch_fn, collect_fn)
        get_predefined_execute_fn(execute_mode)
        register(dispatch_mode, execute_mode, blocking, materialize_futures)
    """,
    "verl.single_controller.ray.base": """
        get_random_string(length)
        func_generator(self, method_name, dispatch_fn, collect_fn, execute_fn, blocking)
        sort_placement_group_by_node_ip(pgs)
        get_master_addr_port(master_port_range)
        RayResourcePool(process_on_nodes, use_gpu, name_prefix, max_colocate_count, detached, accelerator_type)
        RayResourcePool.get_placement_groups(strategy, name, device_name)
        SubRayResourcePool(placement_groups, start_bundle_index, subgroup_world_size, **kwargs)
        SubRayResourcePool.world_size
        ResourcePoolManager(resource_pool_spec, mapping, max_colocate_count, resource_pool_dict)
        ResourcePoolManager.create_resource_pool()
        ResourcePoolManager.get_resource_pool(role)
        ResourcePoolManager.get_n_gpus()
        extract_pg_from_exist(resource_pools, src_role_names, resource_pool)
        split_resource_pool(resource_pool, split_size)
        merge_resource_pool(rp1, rp2)
        RayClassWithInitArgs(cls, *args, **kwargs)
        RayClassWithInitArgs.set_additional_resource(additional_resource)
        RayClassWithInitArgs.update_options(options)
        RayClassWithInitArgs.__call__(placement_group, placement_group_bundle_idx, use_gpu, num_gpus, sharing_with, device_name)
        RayWorkerGroup(resource_pool, ray_cls_with_init, bin_pack, name_prefix, detached, worker_names, worker_handles,
            ray_wait_register_center_timeout, **kwargs)
        RayWorkerGroup.worker_names
        RayWorkerGroup.from_detached(name_prefix, worker_names, worker_handles, ray_cls_with_init, **kwargs)
        RayWorkerGroup.spawn(prefix_set)
        RayWorkerGroup.spawn_fused(prefix_set)
        RayWorkerGroup.fuse(prefix_set)
        RayWorkerGroup.execute_rank_zero_sync(method_name, *args, **kwargs)
        RayWorkerGroup.execute_rank_zero_async(method_name, *args, **kwargs)
        RayWorkerGroup.execute_rank_zero(method_name, *args, **kwargs)
        RayWorkerGroup.execute_all(method_name, *args, **kwargs)
        RayWorkerGroup.execute_all_sync(method_name, *args, **kwargs)
        RayWorkerGroup.execute_all_async(method_name, *args, **kwargs)
        RayWorkerGroup.master_address
        RayWorkerGroup.master_port
        RayWorkerGroup.workers
        RayWorkerGroup.world_size
        create_colocated_worker_cls(class_dict)
        create_colocated_worker_raw_cls(class_dict)
        create_colocated_worker_cls_fused(class_dict)
    """,
    "verl.trainer.ppo.metric_utils": """
        reduce_metrics(metrics)
        compute_data_metrics(batch, use_critic)
        compute_timing_metrics(batch, timing_raw)
        compute_throughout_metrics(batch, timing_raw, n_gpus)
        compute_variance_proxy_metrics(batch, gradient_norm)
        bootstrap_metric(data, subset_size, reduce_fns, n_bootstrap, seed)
        calc_maj_val(data, vote_key, val_key)
        process_validation_metrics(data_sources, sample_uids, infos_dict, seed)
    """,
    "verl.trainer.ppo.ray_trainer": """
        ResourcePoolManager(resource_pool_spec, mapping)
        apply_kl_penalty(data, kl_ctrl, kl_penalty)
        compute_response_mask(data)
        compute_advantage(data, adv_estimator, gamma, lam, num_repeat, norm_adv_by_std_in_grpo, config)
        RayPPOTrainer(config, tokenizer, role_worker_mapping, resource_pool_manager, ray_worker_group_cls, processor, reward_fn,
            val_reward_fn)
        RayPPOTrainer.fit()
    """,
    "verl.trainer.ppo.core_algos": """
        register_policy_loss(name)
        get_policy_loss_fn(name)
        AdvantageEstimator
        register_adv_est(name_or_enum)
        get_adv_estimator_fn(name_or_enum)
        AdaptiveKLController(init_kl_coef, target_kl, horizon)
        AdaptiveKLController.update(current_kl, n_steps)
        FixedKLController(kl_coef)
        FixedKLController.update(current_kl, n_steps)
        get_kl_controller(kl_ctrl)
        compute_gae_advantage_return(token_level_rewards, values, response_mask, gamma, lam)
        compute_grpo_outcome_advantage(token_level_rewards, response_mask, index, epsilon, norm_adv_by_std_in_grpo, config)
        compute_grpo_vectorized_outcome_advantage(token_level_rewards, response_mask, index, epsilon, norm_adv_by_std_in_grpo, config)
        compute_gdpo_outcome_advantage(token_level_rewards, response_mask, index, epsilon, norm_adv_by_std_in_grpo, config,
            non_tensor_batch, batch, **kwargs)
        compute_grpo_passk_outcome_advantage(token_level_rewards, response_mask, index, epsilon, norm_adv_by_std_in_grpo,
            config, **kwargs)
        compute_reinforce_plus_plus_baseline_outcome_advantage(token_level_rewards, response_mask, index, epsilon, config, **kwargs)
        compute_rloo_outcome_advantage(token_level_rewards, response_mask, index, epsilon, config, **kwargs)
        compute_opo_outcome_advantage(token_level_rewards, response_mask, index, epsilon, config, **kwargs)
        compute_reinforce_plus_plus_outcome_advantage(token_level_rewards, response_mask, config, **kwargs)
        compute_remax_outcome_advantage(token_level_rewards, reward_baselines, response_mask, config, **kwargs)
        compute_gpg_outcome_advantage(token_level_rewards, response_mask, index, epsilon, f_norm, alpha, config, **kwargs)
        compute_rloo_vectorized_outcome_advantage(token_level_rewards, response_mask, index, epsilon, config, **kwargs)
        compute_optimal_token_baseline_advantage(token_level_rewards, response_mask, index, old_log_probs, sum_pi_squared,
            rollout_is_weights, handle_zero_tail, epsilon, **kwargs)
        compute_multi_turn_optimal_token_baseline_advantage(token_level_rewards, response_mask, index, old_log_probs,
            sum_pi_squared, rollout_is_weights, handle_zero_tail, epsilon, **kwargs)
        compute_rewards(token_level_scores, old_log_prob, ref_log_prob, kl_ratio)
        agg_loss(loss_mat, loss_mask, loss_agg_mode, dp_size, batch_num_tokens, global_batch_size, loss_scale_factor)
        compute_policy_loss(old_log_prob, log_prob, advantages, response_mask, cliprange, cliprange_low, cliprange_high,
            clip_ratio_c, loss_agg_mode)
        compute_policy_loss_vanilla(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights)
        compute_policy_loss_dppo_tv(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights)
        compute_policy_loss_dppo_kl(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights)
        compute_policy_loss_gspo(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights)
        compute_policy_loss_sapo(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights)
        compute_policy_loss_gpg(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights)
        compute_policy_loss_clip_cov(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights)
        compute_policy_loss_kl_cov(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights)
        compute_policy_loss_geo_mean(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights)
        compute_policy_loss_dro(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights)
        compute_policy_loss_cispo(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights)
        compute_entropy_loss(logits, response_mask, loss_agg_mode)
        compute_value_loss(vpreds, returns, values, response_mask, cliprange_value, loss_agg_mode, dp_size, batch_num_tokens,
            global_batch_size, loss_scale_factor)
        kl_penalty(logprob, ref_logprob, kl_penalty)
        kl_penalty_forward(logprob, ref_logprob, kl_penalty)
        compute_pf_ppo_reweight_data(data, reweight_method, weight_pow)
        compute_policy_loss_reinforce(rollout_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights)
        compute_policy_loss_bypass_mode(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights)
    """,
}

WATCH = "a dead worker is a WorkerDiedError at the call that needed it; no thread watches"
PARALLEL = "ranks of tensor and pipeline parallelism: there are none here"
SET_UP = "ran once when verl is imported; the modes are there from the start"
HELPER = "a helper of verl's module for itself"

# What is not here, and why.
ABSENT = {
    "DistRankInfo": PARALLEL,
    "DistGlobalInfo": PARALLEL,
    "WorkerHelper.get_availale_master_addr_port": "deprecated by verl for its spelling; get_available_master_addr_port is here",
    "check_workers_alive": WATCH,
    "WorkerGroup.start_worker_aliveness_check": WATCH,
    "init_predefined_dispatch_mode": SET_UP,
    "init_predefined_execute_mode": SET_UP,
    "get_random_string": HELPER,
    "get_master_addr_port": HELPER,
    "extract_pg_from_exist": "pools share bundles by split_resource_pool",
}
# Whose parameters differ, and why.
OTHER_PARAMETERS = {
    "SubRayResourcePool": "holds the pool it is cut from; made by split_resource_pool",
    "WorkerGroup": "a keyword that nothing reads is an error",
    "collect_lazy_compute_data_proto": "takes what it uses of verl's *args: the results",
    "RayPPOTrainer": "trains a team: the plan of a run, its workers and a collector; verl's arguments are an error that says so",
    "RayClassWithInitArgs.__call__": "without sharing_with: actors share a bundle, not another actor's devices",
}


def described() -> Iterator[tuple[str, str, list[str] | None]]:
    """(module, name, parameters or None) of every line."""
    for module, lines in VERL.items():
        for line in re.sub(r",\s+", ", ", lines).split("\n"):  # a long line goes on after its comma
            name, _, parameters = line.strip().rstrip(")").partition("(")
            if name:
                yield module, name, [p for p in parameters.split(", ") if p] if "(" in line else None


def parameters_of(thing: object) -> list[str]:
    """Names, with their stars; `self` left out."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    found = [stars.get(p.kind, "") + p.name for p in inspect.signature(thing).parameters.values()]  # type: ignore[arg-type]
    return (
        found[1:]
        if inspect.isfunction(thing) and "." in thing.__qualname__ and found[:1] == ["self"]
        else found
    )


@pytest.mark.parametrize("module", VERL)
def test_verls_public_names_are_here_with_its_parameters(module: str) -> None:
    wrong = []
    for _, name, wanted in (entry for entry in described() if entry[0] == module):
        thing: object = importlib.import_module(module)
        for part in name.split("."):
            thing = getattr(thing, part, None)
        if thing is None and name not in ABSENT:
            wrong.append(f"{name} is missing")
        if thing is None or wanted is None or name in OTHER_PARAMETERS:
            continue
        ours = parameters_of(thing)
        if [p for p in ours if p in wanted] != wanted:
            wrong.append(f"{name} takes {ours}, verl's {wanted}")
    assert not wrong


def test_every_exception_is_one() -> None:
    names = {name: (module, wanted) for module, name, wanted in described()}
    assert set(ABSENT) | set(OTHER_PARAMETERS) <= set(names)
    for name in ABSENT:
        thing: object = importlib.import_module(names[name][0])
        for part in name.split("."):
            thing = getattr(thing, part, None)
        assert thing is None, f"{name} is here"
    for name in OTHER_PARAMETERS:
        module, wanted = names[name]
        thing = importlib.import_module(module)
        for part in name.split("."):
            thing = getattr(thing, part)
        assert [p for p in parameters_of(thing) if p in wanted] != wanted, f"{name} takes verl's parameters"
