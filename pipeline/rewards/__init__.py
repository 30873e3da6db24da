"""Verdicts and rewards: `verifiers/` and `code/` decide `is_correct`, `terms/` and `user/` give numbers.

`scoring` has the order of things; `verification` and `registry` find the verifiers and the terms by name; `composition`
makes the reward of the terms; `workers` keep whatever can hang or crash in processes that can be killed. `judging/` is
what the term `judge` asks a language model, and `code/` the sandbox for what a model wrote.
"""
