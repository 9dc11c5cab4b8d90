"""Tests that run with `--all-levels` alone, by the beginning of their ids: whole runs whose parts and whose
kind others test in CI.

Each takes 5 to 120 seconds; together they take longer than all others.
"""

_SAVED = "the_last_step_is_saved_and_the_resumed_run_equals_an_undisturbed_one_to_the_last_bit"
_RECORDED = "a_recorded_command_for_gsm8k_trains_with_other_paths_and_another_device_alone"
THOROUGH = tuple(
    f"tests/{path}::test_{name}"
    for path, names in {
        "agent_system/rollout/test_env_workers.py": ("ray_actors_play_the_same_episodes",),
        "agent_system/workflows/code/test_env.py": ("any_play_conforms",),
        "benchmarks/test_last_lines.py": (
            "weight_sync_measures", "train_step_counts", "placement_measures", "async_training_compares",
            "env_workers", "report_measures", "tail_measures", "policy_update", "memory_compares",
            "gateway_is_measured",
        ),
        "docs/test_farama.py": ("its_commands_train_two_steps[tictactoe",),
        "e2e/test_algorithms.py": ("the_math_team_trains_three_steps[loss-",),
        "e2e/test_async_faults.py": (
            "an_engine_that_is_killed_in_an_update", "a_rank_that_dies_in_an_update",
            "a_disk_that_fills_up_while_groups",
            "an_episode_that_cannot_be_ended_costs_itself_alone_in_every_mode[sync",
            "an_episode_that_cannot_be_ended_costs_itself_alone_in_every_mode[one_step_off",
        ),
        "e2e/test_critic.py": (
            "the_value_loss_falls", "critics_on_ray_equal",
            "three_steps_of_gae_train_policies_and_critics[joint",
            "three_steps_of_gae_train_policies_and_critics[turns",
        ),
        "e2e/test_env_workers.py": ("a_run_of_the_command_line",),
        "e2e/test_frameworks.py": (
            "a_team_of_a_framework_trains_two_policies[smolagents", "a_team_in_node_trains",
            "a_team_of_a_framework_trains_two_policies[autogen_team:selector",
        ),
        "e2e/test_fully_async.py": (
            "no_episode_is_lost_or_trained_twice_when_runs_are_killed", "ray_trains_the_same_groups",
            "a_task_that_always_fails", "weights_of_several_steps_are_sent_at_once",
            "without_staleness_it_equals_synchronous_training_to_the_last_bit[remax",
            "without_staleness_it_equals_synchronous_training_to_the_last_bit[tree",
            "dynamic_sampling_without_staleness_trains_on_the_tasks_of_synchronous_training[10",
            "weights_are_sent_sooner_than_at_the_trigger[adaptive",
        ),
        "e2e/test_interrupts.py": (
            "ctrl_c_under_a_script", "a_killed_driver_leaves_no_process", "a_foreign_cluster_outlives",
            "a_worker_that_dies_is_named_in_one_line_and_ends_the_run[update:PolicyWorker",
            "a_disk_that_fills_up_under_a_worker",
        ),
        "e2e/test_levels.py": (
            "two_steps_move_the_right_parameters_resume_equal_and_export_as_they_are[mixed-vllm",
            "two_steps_move_the_right_parameters_resume_equal_and_export_as_they_are[heterogeneous-hf-ray",
            "two_steps_move_the_right_parameters_resume_equal_and_export_as_they_are[heterogeneous_lora",
            "adapters_on_ray_are_those",
        ),
        "e2e/test_nodes.py": (
            "workers_on_two_nodes_meet", "an_engine_on_another_node", "environment_workers_are",
        ),
        "e2e/test_one_step_off.py": (
            "it_equals_the_schedule_written_by_hand_to_the_last_bit[dynamic",
            "it_equals_the_schedule_written_by_hand_to_the_last_bit[tree",
            "it_equals_the_schedule_written_by_hand_to_the_last_bit[remax", "ray_equals_the_local_controller",
        ),
        "e2e/test_outside_worlds.py": (
            "a_tree_grows", "one_policy_plays_against_chance", "players_at_the_same_time",
        ),
        "e2e/test_own_engines.py": ("an_engine_of_two_ranks_serves",),
        "e2e/test_rescue.py": (
            "a_rank_that_is_lost_is_named",
            "groups_in_progress_and_complete_ones_are_saved_when_a_world_hangs[L3",
            *(f"{_SAVED}[{mode}" for mode in ("one_step_off", "fully_async")),
            "an_engine_that_dies_twice_costs_no_update[fully_async",
            "groups_of_a_failed_update_are_trained_unless_a_policy_has_newer_weights[L3",
        ),
        "e2e/test_role_policies.py": ("swapped_roles_are_the_same_on_ray",),
        "e2e/test_serve_openai.py": ("vllm_makes_replies_follow_a_schema",),
        "e2e/test_stale_samples.py": (
            "old_samples_train_every_team_and_no_group_is_lost_or_trained_twice[pettingzoo",
            "old_samples_train_every_team_and_no_group_is_lost_or_trained_twice[critics",
            "old_samples_train_every_team_and_no_group_is_lost_or_trained_twice[paces",
            "old_samples_train_every_team_and_no_group_is_lost_or_trained_twice[frozen",
            "no_training_episode_begins",
            "replies_have_tokens_of_several_versions_only_with_partial_rollout[False",
            "one_step_off_trains_teams_on_samples_of_the_step_before[pettingzoo",
        ),
        "e2e/test_step_samples.py": ("a_signal_between_two_collections",),
        "e2e/test_training.py": ("two_ranks_of_a_pool_of_their_own", "a_budget_of_generated_tokens"),
        "e2e/test_tree_returns.py": ("critics_learn_and_are_asked",),
        "e2e/test_verl_commands.py": (
            f"{_RECORDED}[grpo_trainer/run_seed_oss",
        ),
        "e2e/test_vllm.py": (
            "a_shared_model_without_ray", "an_engine_over_the_devices_of_two_ranks",
            "it_samples_beside_updates",
            "a_tensor_that_an_update_loses_ends_the_run_before_the_first_episode[Stale",
        ),
        "e2e/test_weight_transfer.py": (
            "an_engine_that_dies_in_a_broadcast_is_replaced_and_joins_again[adapters",
            "a_transfer_reaches_engines_in_other_processes[own",
            "a_transfer_reaches_engines_in_other_processes[cuda_ipc",
            "an_adapter_for_each_agent_trains_to_the_same_weights[cuda_ipc",
        ),
        "examples/test_scripts.py": (
            *(
                f"the_script_trains_and_then_evaluates_what_it_trained[{name}"
                for name in ("sokoban", "search", "sudoku", "code", "plan_path", "math_tool", "async")
            ),
            "the_script_of_a_framework_trains_its_team[node",
        ),
        "recipe/test_async.py": ("the_script_trains",),
        "recipe/test_at_grpo.py": ("the_script_trains_swaps",),
        "recipe/test_code.py": ("the_script_measures",),
        "recipe/test_dr_mas.py": ("the_script_trains",),
        "recipe/test_evolve.py": ("a_search_that_is_killed_at_random",),
        "recipe/test_math_tool.py": ("the_script_measures",),
        "recipe/test_propagation.py": ("the_script_trains",),
        "recipe/test_roles.py": ("the_script_trains_a_level_and_draws_it[skills",),
        "recipe/test_search.py": ("the_script_trains",),
        "recipe/test_specialization.py": ("the_script_trains",),
        "recipe/test_tool_forms.py": ("the_script_trains_a_form",),
        "utils/dataset/test_messages.py": ("what_datasets_writes_of_mixed_truths",),
        "workers/rollout/test_prefix_caching.py": (
            *(
                f"no_order_batch_or_cache_changes_a_bit[{case}]"
                for case in (
                    "True-8-0", "False-8-0", "False-8-7", "False-1-0", "True-3-2", "False-3-2", "False-32-1",
                )
            ),
            "a_conversation_computes_the_keys_of_its_replies_once_and_keeps_its_bits[2",
        ),
        "workers/rollout/vllm/test_killed_worker.py": ("all_processes_of_an_engine",),
    }.items()
    for name in names
)  # fmt: skip
# An engine over two devices, beside the one over one device.
THOROUGH_CASES = {"tests/workers/rollout/test_conformance.py": "[vllm-2]"}


def is_thorough(node_id: str) -> bool:
    """Whether a test runs with `--all-levels` alone."""
    case = THOROUGH_CASES.get(node_id.partition("::")[0])
    return node_id.startswith(THOROUGH) or (case is not None and node_id.endswith(case))
