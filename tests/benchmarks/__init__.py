"""Benchmarks: two things run in turn, in one go, and their ratio; never a test, since machines are shared and noisy."""
