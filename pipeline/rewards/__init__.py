"""Verdicts and rewards: verifiers decide `is_correct`, terms make the reward, worker processes keep both harmless."""
