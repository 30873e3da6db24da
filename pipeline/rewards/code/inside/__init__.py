"""What runs inside a sandbox. It imports the standard library alone, since the project is not there.

Of that it imports little, as each completion waits for it: not json, typing, contextlib, signal or collections.abc.
"""
