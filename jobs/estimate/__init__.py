"""Predictions for clusters that nobody has: `ddplab predict`."""
