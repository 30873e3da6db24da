"""When things run: Prefect flows that make the iterations of a run one after another, by hand or on a schedule.

They start DVC's stages as processes, and import of `pipeline` only what needs no torch.
"""
