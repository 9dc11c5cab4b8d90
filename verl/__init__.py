"""Training: batches, models, losses, workers. Knows nothing of agents."""
