"""Terms of your own: a module here is a kind of term, by its own name, that `score.terms` in params.yaml can use.

A module has a function `score(completion, params)` that returns a number, or None where it can't judge, and may have
a class `Params` for its settings; `brevity` is a worked example. `NEEDS_VERDICT = True` says that it makes no sense
where prompts have no verifier. DVC watches this folder, so that an edit scores again. Terms of this folder run in
worker processes, under a limit of 5 seconds and 4 GiB for each completion.
"""
