"""Advantage estimators, one file each; importing `core_algos` registers every one.

What they share, and their docstrings do not repeat:

    token_level_rewards      `[bsz, response_len]`; a row's score is their sum
    response_mask            `[bsz, response_len]`; a row without an unmasked token is in no statistic and has advantage 0
    index                    `[bsz]` group of each row
    traj_index               `[bsz]` trajectory of each row; when given, its rows are averaged first and share one advantage
    policy_index             `[bsz]` policy of each row, which whitening and shares of a batch never cross; None: one policy
    weights                  `[bsz]` weight of each row in every statistic (`call_weighting`); rows of weight 0 have advantage 0
    epsilon                  added to a standard deviation that is divided by; else unused, for verl's signature
    norm_adv_by_std_in_grpo  divide by the unbiased standard deviation of the group
    config                   `AlgorithmConfig`, or verl's config, of which the keys under *Keys* are read
    **kwargs                 ignored, as in verl

They return advantages and returns, `[bsz, response_len]` and 0 where masked: the same tensor where nothing else is said. They raise
ValueError for shapes or devices that differ, columns of another length, non-finite numbers at unmasked tokens, and negative weights.
"""
