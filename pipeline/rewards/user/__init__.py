"""Terms of your own: a module here is a kind of term, by its own name, that `score.terms` in params.yaml can use.

A module has one function: `score(completion, params)` returns a number, or None where it can't judge. In its place,
`score_group(completions, params)` returns one for each completion of a group, `score_groups` of many groups at a time,
and `score_batch` of the whole iteration. A class `Params` has its settings; `brevity` is a worked example.
`NEEDS_VERDICT = True` says that it makes no sense where prompts have no verifier. DVC watches this folder, so that an
edit scores again. Terms of this folder run in worker processes, under a limit of 5 seconds for each completion and of
4 GiB.
"""
