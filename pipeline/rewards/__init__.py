"""Verdicts and rewards: `verifiers/` decide `is_correct`, `terms/` and `user/` give numbers, `composition` the reward.

`scoring` has the order of things; `verification` and `registry` find the verifier and the terms by name; `workers` keep
whatever can hang or crash in processes that can be killed.
"""
