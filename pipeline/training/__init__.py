"""The GRPO update: batches, log-probabilities, loss, optimizer state, and the loop over optimizer steps."""
