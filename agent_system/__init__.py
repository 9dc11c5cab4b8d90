"""Agents: registries, orchestras, environments, rollout. Needs `verl.protocol` and nothing else of verl."""
