"""Gymnasium's and PettingZoo's games behind one interface."""
