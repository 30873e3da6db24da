"""The IO edge: one module per DVC stage, each run as `python -m stages.<name>` from the root of the repository."""

import os
import time

# A spinning OpenMP thread keeps a core from the process that it waits for: on a busy machine torch then runs ten
# times slower. Sleeping threads cost nothing measurable when it is idle. Here, since it must be set before any stage
# imports torch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

STARTED = time.monotonic()
"""When the process began, for the metrics: a person waits for the imports of a stage too."""
