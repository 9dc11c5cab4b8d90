"""Policy losses, one file each; importing `core_algos` registers every one.

Common parameters, which docstrings do not repeat:

    old_log_prob        `[bsz, response_len]` log-probs of the old policy, the denominator of the ratio
    log_prob            `[bsz, response_len]` log-probs of the current policy
    advantages          `[bsz, response_len]`
    response_mask       `[bsz, response_len]`
    loss_agg_mode       see `agg_loss`
    config              `ActorConfig`; `global_batch_info` is passed to `agg_loss`
    rollout_is_weights  `[bsz, response_len]` detached weights of the off-policy correction; None: 1

They return a scalar loss and metrics, which are means over the unmasked tokens of the micro-batch.
They raise ValueError for different shapes or devices, and without a config.
"""
