"""Rollbook's library: pure code that the stages call. It imports no stage and no flow."""
