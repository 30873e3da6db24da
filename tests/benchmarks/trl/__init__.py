"""The sides of `tests.benchmarks.trl_update`, each a process of its own, and what they have in common."""
