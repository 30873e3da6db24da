"""The built-in terms: each module is a kind of term, by its own name, that `score.terms` in params.yaml can use.

A module has one function, whose name says what it looks at: `score(completion, params)` gives a number or None,
`score_group(completions, params)` one for each completion of a group, `score_groups(completions, params)` the same for
many groups at a time, and `score_batch(completions, params)` one for each completion of the iteration. It may have a
class `Params`, `NEEDS_VERDICT = True` where it makes no sense without a verifier, and `RUNS_IN_WORKER = True` where it
could hang.
"""
