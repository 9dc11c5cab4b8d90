"""Advantage estimators, one file each; a run imports the files of its own estimators alone
(`verl.trainer.plan.registry`).

Common parameters, which docstrings do not repeat:

    token_level_rewards      `[bsz, response_len]`; a row's score is their sum
    response_mask            `[bsz, response_len]`; a row without an unmasked token is excluded from statistics and has advantage 0
    index                    `[bsz]` group of each row
    traj_index               `[bsz]` trajectory of each row; if given, its rows are averaged first and share one advantage
    policy_index             `[bsz]` policy of each row; whitening and fractions are per policy; None: one policy
    weights                  `[bsz]` weight of each row in every statistic (`call_weighting`); rows of weight 0 have advantage 0
    epsilon                  added to a standard deviation in a denominator; otherwise unused, for verl's signature
    norm_adv_by_std_in_grpo  divide by the unbiased standard deviation of the group
    config                   `AlgorithmConfig`, or verl's config; the keys under *Keys* are read
    **kwargs                 ignored, as in verl

They return advantages and returns, `[bsz, response_len]` and 0 where masked, by default as the same
tensor. They raise ValueError for different shapes or devices, columns of another length, non-finite
numbers at unmasked tokens, and negative weights.
"""
