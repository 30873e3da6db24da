"""Stored completions rolled out again from what their iteration was made of, and compared with what came out then."""
