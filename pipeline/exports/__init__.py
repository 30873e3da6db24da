"""Rollouts as data for other trainers: preference pairs, the best completions, a data set with its card."""
