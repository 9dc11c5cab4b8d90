"""The commands of `verl-mas` and the construction of a run."""
