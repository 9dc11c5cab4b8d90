"""Search for a team:

    verl-mas evolve evolve.start=[team.yaml] actor_rollout_ref.model.path=DIR \\
        env.env_name=math data.train_files=train.parquet data.val_files=test.parquet

Keys are those of a run, and those under `evolve`. See `agent_system.launch.evolving`.
"""

from agent_system.launch.evolving import main

if __name__ == "__main__":
    main()
