"""Rows out of a data set of the Hugging Face hub, or of a folder laid out like one."""

from __future__ import annotations

from pathlib import Path

from pipeline.errors import BadInput, TransientError, first_line
from pipeline.params import PromptSource
from pipeline.prompt_sources.files import frame_rows
from pipeline.prompt_sources.raw import SOURCE_KEY, Rows, path_in_sources


def data_set_rows(source: PromptSource) -> tuple[Rows, str]:
    """The rows of one split of `source.dataset`, and its name; no code of a data set is ever run.

    Raises:
        BadInput: there is no such data set, revision, split or column, or its files are damaged.
        TransientError: the hub can't be reached, and the data set isn't in the local cache.
    """
    assert source.dataset is not None
    if Path(source.dataset).exists():
        path_in_sources(source.dataset, "dataset")
    import datasets  # takes a second, for which the other sources need not wait

    datasets.disable_progress_bars()
    try:
        rows = datasets.load_dataset(source.dataset, split=source.split, revision=source.revision)
    except ConnectionError as error:
        problem = f"the hub can't be reached for {source.dataset!r} ({first_line(error)})"
        raise TransientError(f"{SOURCE_KEY}.dataset", problem, "Check the network, and try again") from error
    except (datasets.exceptions.DatasetsError, OSError, ValueError, RuntimeError) as error:
        problem = f"{source.dataset!r} (split {source.split!r}) can't be loaded ({first_line(error)})"
        raise BadInput(f"{SOURCE_KEY}.dataset", problem, "Correct its name, split or revision") from error
    return frame_rows(rows.to_polars(), source, source.dataset), source.dataset
