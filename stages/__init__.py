"""The IO edge: one module per DVC stage, each run as `python -m stages.<name>` from the root of the repository."""

import os
import time

# A spinning OpenMP thread keeps a core from the process that it waits for: on a busy machine torch then runs ten
# times slower. A sleeping one takes long to wake, and a decode step wakes it a thousand times. So it spins for some
# microseconds, then sleeps. Here, since it must be set before any stage imports torch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

STARTED = time.monotonic()
"""When the process began, for the metrics: a person waits for the imports of a stage too."""
