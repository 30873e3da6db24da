"""The IO edge: one module per DVC stage, each run as `python -m stages.<name>` from the root of the repository."""

import time

from pipeline.openmp import let_threads_sleep

let_threads_sleep()

STARTED = time.monotonic()
"""When the process began, for the metrics: a person waits for the imports of a stage too."""
