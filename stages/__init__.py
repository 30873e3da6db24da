"""The IO edge: one module per DVC stage, each run as `python -m stages.<name>` from the root of the repository."""
