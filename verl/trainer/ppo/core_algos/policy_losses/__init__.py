"""Policy losses, one file each; importing `core_algos` registers every one.

What they share, and their docstrings do not repeat:

    old_log_prob        `[bsz, response_len]` log-probs of the policy that the ratio is taken to
    log_prob            `[bsz, response_len]` log-probs of the policy that learns
    advantages          `[bsz, response_len]`
    response_mask       `[bsz, response_len]`
    loss_agg_mode       see `agg_loss`
    config              `ActorConfig`; `global_batch_info` is passed to `agg_loss`
    rollout_is_weights  `[bsz, response_len]` detached weights of the off-policy correction; None: 1

They return a scalar loss and metrics, which are means over the unmasked tokens of the micro-batch. They raise ValueError for shapes or
devices that differ, and without a config.
"""
