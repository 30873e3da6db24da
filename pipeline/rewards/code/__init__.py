"""The verifier `code`: Python solutions against hidden tests, in a sandbox that never sees an expected value."""
