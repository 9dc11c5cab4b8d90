"""Supervised fine-tuning on chat messages: the warm start before reinforcement learning."""
