"""Two processes that share the weights, each with one half of every batch.

On processor cores two processes of one thread each do the work of one process of two threads in about two thirds of the
time: they wait for each other once an update rather than in every matrix product.
"""

from __future__ import annotations

import signal
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import torch
import torch.multiprocessing
from torch import Tensor

from tools.training.gradients import N_HALVES, Gradients, Objective, OneProcess, gradients_of

if TYPE_CHECKING:
    from tools.training.networks import AttentionOnly, Wren


class TwoProcesses(OneProcess):
    """The first half in this process, the second in another that reads the same weights; one thread each."""

    def __init__(self, network: Wren | AttentionOnly, *, compiled: bool) -> None:
        torch.set_num_threads(1)
        self.network, self._gradients = network.share_memory(), Gradients(network, compiled=compiled)
        self._second = [torch.zeros_like(parameter).share_memory_() for parameter in network.parameters()]
        context = torch.multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, network, self._second, compiled), daemon=True)
        self._process.start()
        there.close()

    def add(self, rows: Tensor, *, sparsity: float) -> Objective:
        """Write the gradients of the batch's mean into `grad` of the parameters.

        Raises:
            EOFError: the second process has ended.
        """
        first, second = rows.tensor_split(N_HALVES)
        self._pipe.send((second.numpy(), sparsity, len(second) / len(rows)))
        a = self._gradients.add(first, sparsity=sparsity, share=len(first) / len(rows))
        b = Objective(*self._pipe.recv())
        for parameter, grad, other in zip(
            self.network.parameters(), gradients_of(self.network), self._second, strict=True
        ):
            parameter.grad = grad + other
        return Objective(a.nats + b.nats, a.firing + b.firing)

    def close(self) -> None:
        """End the second process."""
        self._pipe.close()
        self._process.join()


def _serve(pipe: Connection, network: Wren | AttentionOnly, grads: list[Tensor], compiled: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process decides when to stop, and closes the pipe
    torch.set_num_threads(1)
    gradients = Gradients(network, compiled=compiled)
    while True:
        try:
            rows, sparsity, share = pipe.recv()
            objective = gradients.add(torch.from_numpy(rows), sparsity=sparsity, share=share)
            for mine, computed in zip(grads, gradients_of(network), strict=True):
                mine.copy_(computed)
            network.zero_grad(set_to_none=True)
            pipe.send(tuple(objective))
        except (EOFError, BrokenPipeError):  # the first process has ended
            return
