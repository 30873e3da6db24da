"""The integrity gate: whether an iteration is what its commit says, and its tables agree with each other.

`files` knows where the artifacts are and hashes them, `evidence` opens the tables, `rules` and the modules beside it
say what has to hold, `verify` asks all of it.
"""
