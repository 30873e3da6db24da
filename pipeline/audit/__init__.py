"""Questions about what was rolled out, rewarded and trained on, over one iteration or the history of runs.

`question` says what a question is, `tables` what it is asked of, `registry` which there are, `answer` puts one.
"""
