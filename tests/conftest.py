"""Set before torch is imported: a spinning OpenMP thread keeps a core from the process that it waits for."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
