"""An update shared out to several processes, called ranks: what each runs, and what they put together.

Torch's FSDP2 holds the decoder's layers in shares: a rank keeps one share of each weight, of its gradient and moments,
and gathers the weights of a layer while that runs. The rest is on every rank: embeddings, last norm and head, since the
head's weight is used outside of any module's forward pass; and an adapter, whose type differs from that of its layer.
A layer runs on all ranks at a time, so all run equally many micro-batches. Gradients are summed over ranks and not
averaged, since a loss is normalized over the whole step already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from pipeline.errors import BadInput
from pipeline.policy import Model

T = TypeVar("T")


@dataclass(frozen=True)
class Turn:
    """A micro-batch that a rank runs while each other rank runs one."""

    rows: list[int]
    weight: float
    """Of its loss: 0 where it is another rank's too, since there was none left for this one."""
    rows_of_all: list[int]


@dataclass(frozen=True)
class Ranks:
    """The processes of an update, as one of them sees them; one alone is rank 0 of 1, and needs no process group.

    Every method but `share` is to be called by all ranks, in the same order.
    """

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    def share(self, micro_batches: Sequence[list[int]]) -> list[Turn]:
        """The turns of this rank, as many as every other rank has.

        >>> [(turn.rows, turn.weight) for turn in Ranks(1, size=2).share([[0, 1], [2], [3, 4]])]
        [([2], 1.0), ([3, 4], 0.0)]
        """
        turns: list[Turn] = []
        for start in range(0, len(micro_batches), self.size):
            together = micro_batches[start : start + self.size]
            is_left = self.rank < len(together)
            rows_of_all = [row for rows in together for row in rows]
            turns.append(Turn(together[self.rank if is_left else 0], float(is_left), rows_of_all))
        return turns

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, in the order of the ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def merge(self, parts: Mapping[int, T]) -> dict[int, T]:
        """What the ranks have by a row's index, put together."""
        return {index: value for part in self.gather(parts) for index, value in part.items()}

    def agree(self, value: T) -> T:
        """The first rank's value."""
        return self.gather(value)[0]

    def after_the_first(self, work: Callable[[], T]) -> T:
        """What `work` returns; the other ranks begin it when the first is done."""
        if not self.is_first:
            dist.barrier()
        result = work()
        if self.is_first and self.size > 1:
            dist.barrier()
        return result

    def shard(self, model: Model) -> None:
        """Leave this rank its share of the layers of `model`, which is the same on all ranks and has not run since.

        Raises:
            BadInput: the model doesn't say which of its modules are layers.
        """
        if self.size == 1:
            return
        decoder = model.get_decoder()
        layers = [module for module in decoder.modules() if type(module).__name__ in (model._no_split_modules or ())]
        if not layers:
            problem = f"torchrun, and a model of type {model.config.model_type} doesn't say what its layers are"
            raise BadInput("params.yaml: training.launcher", problem, "Set it to single")
        mesh = init_device_mesh(model.device.type, (self.size,))
        adapter = {weight for weight in model.parameters() if weight.requires_grad} if _has_adapter(model) else set()
        for layer in layers:
            fully_shard(layer, mesh=mesh, reshard_after_forward=True, ignored_params=adapter)
            layer.set_gradient_divide_factor(1.0)
            layer.set_force_sum_reduction_for_comms(True)  # gloo knows no other
        # It shares none of its own weights; as the root of all layers it lets them gather theirs ahead of time.
        fully_shard(decoder, mesh=mesh, ignored_params={*decoder.parameters()})
        decoder.set_reduce_scatter_unused_params(True)  # an expert may be chosen on one rank alone

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Sum over ranks the gradients of replicated parameters; FSDP has summed those of the others."""
        if self.size == 1:
            return
        gradients = [_gradient(parameter) for parameter in parameters if not isinstance(parameter, DTensor)]
        for pending in [dist.all_reduce(gradient, async_op=True) for gradient in gradients]:
            pending.wait()

    def clip_gradients(self, parameters: Sequence[torch.nn.Parameter], max_norm: float) -> float:
        """Scale the gradients of all parameters to a norm of at most `max_norm`; return what it was before.

        As `torch.nn.utils.clip_grad_norm_` does, which takes no sharded and replicated parameters together.
        """
        sharded = [_gradient(parameter) for parameter in parameters if isinstance(parameter, DTensor)]
        if not sharded:
            return float(torch.nn.utils.clip_grad_norm_(parameters, max_norm))
        replicated = [_gradient(parameter) for parameter in parameters if not isinstance(parameter, DTensor)]
        square = torch.nn.utils.get_total_norm(sharded).square()
        dist.all_reduce(square)
        norm = (square + torch.nn.utils.get_total_norm(replicated).square()).sqrt()
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for gradient in (*sharded, *replicated):
            gradient.mul_(scale)
        return float(norm)


ALONE = Ranks()


def is_shared(tensor: torch.Tensor) -> bool:
    """Whether ranks hold shares of `tensor`."""
    return isinstance(tensor, DTensor)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, gathered where ranks hold shares of it; all ranks must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own_share(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of `tensor`, in the same memory; all of it, where that is not shared out."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def shared_as(parameter: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The whole `tensor`, which each rank has, on the device of `parameter` and shared out as it is."""
    placed = tensor.to(parameter.device)
    if not isinstance(parameter, DTensor):
        return placed
    return distribute_tensor(placed, parameter.device_mesh, parameter.placements, src_data_rank=None)


def gather_weights(model: Model, ranks: Ranks) -> dict[str, torch.Tensor]:
    """The weights of `model` that a policy is written from; only the first rank gets them.

    Those that were shared out come in bfloat16 and on the CPU, one by one: together they may be more than a device
    holds. They are left out where they are not trained, as beside an adapter.
    """
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    weights: dict[str, torch.Tensor] = {}
    for name, weight in model.state_dict().items():
        if not isinstance(weight, DTensor):
            weights[name] = weight
        elif name in trained:
            gathered = whole(weight)
            if ranks.is_first:
                weights[name] = gathered.to(torch.bfloat16).cpu()
    return weights if ranks.is_first else {}


def _has_adapter(model: Model) -> bool:
    return hasattr(model, "peft_config")


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return own_share(parameter.grad)
