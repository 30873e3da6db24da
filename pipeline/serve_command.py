"""The command `rollbook serve`: a `vllm serve` that the engine `server` can sample from."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import Annotated

import typer

from pipeline.api_keys import read_api_key
from pipeline.errors import BadInput
from pipeline.params import Params, load_params
from pipeline.stored_iteration import BASE, POLICY

PROMPTS_FILE = Path("data/prompts.parquet")


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command("serve", context_settings=settings)(serve)


def serve(
    context: typer.Context,
    host: Annotated[
        str, typer.Option(help="The address to listen at; 0.0.0.0 is all of this machine's.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command and leave it at that.")] = False,
) -> None:
    """Start `vllm serve` for params.yaml; further options go to vLLM as they are.

    The process becomes vLLM's, so that signals reach it. An adapter is loaded, or the weights of a whole model are
    exchanged, by the stages that sample.
    """
    # Torch takes seconds to import, and `rollbook` has other commands.
    from pipeline.serving import make_serve_command

    params = load_params()
    lora = params.training.lora if params.training.method == "lora" else None
    made = make_serve_command(BASE, POLICY, lora, params.sampling, params.seed, _count_positions(params))
    command = [*made.words, "--host", host, "--port", str(port), *context.args]
    if dry_run:
        settings = [f"{key}={value}" for key, value in made.environment.items()]
        typer.echo(shlex.join(["env", *settings, *command]))
        return
    if shutil.which(command[0]) is None:
        raise BadInput(
            "vllm", "there is no such program beside this Python nor on PATH", "Install vLLM: see the README"
        )
    os.execvpe(command[0], command, {**os.environ, **made.environment, **_api_key(params)})


def _count_positions(params: Params) -> int:
    """Tokens of the longest prompt of the run and of its completion; a `BadInput` where the model lacks the room."""
    from pipeline.policy import load_config, load_tokenizer
    from pipeline.rollouts import tokenize_prompts
    from pipeline.sampling.engines import check_limits
    from pipeline.table_io import read_table
    from pipeline.tables import PROMPTS

    prompts = read_table(PROMPTS_FILE, PROMPTS)
    longest = max(map(len, tokenize_prompts(prompts, load_tokenizer(BASE), params.sampling.chat_template_kwargs)))
    check_limits(load_config(BASE if params.training.method == "lora" else POLICY), params.sampling, longest)
    return longest + params.sampling.max_completion_tokens


def _api_key(params: Params) -> dict[str, str]:
    """The key that the server asks for, where vLLM looks for it."""
    key = read_api_key(params.sampling.server.api_key_variable, "the servers'")
    return {} if key is None else {"VLLM_API_KEY": key}
