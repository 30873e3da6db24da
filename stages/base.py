"""Stage `base`: the pretrained chat model, as a Hugging Face folder."""

from __future__ import annotations

import sys
from dataclasses import asdict

from pipeline.base_model import lay_out_base_model
from pipeline.params import Params
from pipeline.table_io import atomic_path
from stages import paths
from stages.runner import Result, run_stage


def lay_out_base(params: Params) -> Result:
    """Fetch or copy the model that `base_model` names, write `data/base`."""
    with atomic_path(paths.BASE) as folder:
        model = lay_out_base_model(params.base_model, folder, _announce)
    size = f"{model.n_parameters / 1e6:,.1f} million parameters"
    return Result(f"{model.model_type}, {size}, fingerprint {model.fingerprint}", asdict(model))


def _announce(step: str) -> None:
    print(f"base: {step}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_stage("base", lay_out_base)
