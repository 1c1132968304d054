"""Run a padded batch of a corpus, once unchanged and then with replaced activations, and return each token's loss."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from unembed.causality.ablation_sources import Source
from unembed.causality.ablation_targets import Group
from unembed.causality.replaced_pass import Changes, record_outputs, replaced_pass
from unembed.corpus.segments import Batch
from unembed.errors import NotFinite
from unembed.models.decoder import Decoder
from unembed.stream.capture_points import ForwardPass
from unembed.stream.hooks import Callback, memory_guard
from unembed.stream.interventions import Edits, as_edits
from unembed.stream.run import forward_arguments
from unembed.sweeps.reducers.reducer import Need


class BatchRerun:
    """A padded batch of a corpus: its unchanged forward pass, and passes with ablations.

    Passes with ablations start at the first layer that is changed.
    """

    def __init__(self, lm: Decoder, batch: Batch, edits: Edits, needs: Sequence[Need]) -> None:
        """Run the batch once; store the input of every block, and the activations `needs`."""
        self.lm, self.batch, self.edits = lm, batch, as_edits(edits)
        self.tokens = batch.tokens.to(lm.device)
        wanted = batch.counted & (batch.next_tokens >= 0)
        self._wanted = wanted.to(lm.device)
        self.predicted = batch.next_tokens[wanted]
        self.segments = batch.segments[:, None].expand(batch.shape)[wanted]
        self.n_predicted = int(wanted.sum())
        self.captured: dict[Need, Tensor] = {}
        self._skips = True

        def capture_at(need: Need) -> Callback:
            return lambda t: self.captured.__setitem__(need, t.clone())

        entering = [("resid_pre", n) for n in range(lm.n_layers)]
        captures = {need: capture_at(need) for need in dict.fromkeys([*entering, *needs])}
        self._needs = tuple(needs)
        with replaced_pass(lm, (), self.edits, captures) as current, ExitStack() as stack:
            self._outputs = record_outputs(stack, lm)
            self.loss = self._loss(current)
        self._skips = self._can_skip()

    def _can_skip(self) -> bool:
        """Test whether later passes can skip the blocks before the first ablated layer.

        They can if a pass that starts at the last layer, with the stored stream as its input, gives the losses of the
        unchanged pass.
        """
        if self.lm.structure.streams is not None:
            return False  # the capture is the sum of several streams, from which a block's input cannot be recovered
        if self.lm.n_layers == 1 or not self.n_predicted:
            return True
        found = self._changed(self.lm.n_layers - 1, ())
        return float((found - self.loss).abs().max()) <= 1e-5 * max(1.0, float(self.loss.abs().max()))

    def _changed(self, start: int, changes: Changes) -> Float[Tensor, " prediction"]:
        """Return the loss of every prediction in a pass that starts at a layer and makes replacements."""
        start = start if self._skips else 0
        entering = (lambda _t: self.captured["resid_pre", start].clone()) if start else None
        passes = replaced_pass(self.lm, changes, self.edits, skipped=self._outputs[:start], entering=entering)
        with passes as current:
            return self._loss(current)

    def _loss(self, current: ForwardPass) -> Float[Tensor, " prediction"]:
        """Run the model, and return the loss of every predicted token, in nats, in float64 on the CPU."""
        mask = self.batch.mask.to(self.tokens)
        with memory_guard(f"a batch of {self.tokens.numel()} tokens"):
            logits = self.lm.hf(self.tokens, **forward_arguments(self.lm, mask), **current.arguments).logits
        targets = self.batch.next_tokens.to(logits.device)
        rows = [
            cross_entropy(one[chosen].double(), target[chosen], reduction="none")
            for one, target, chosen in zip(logits, targets, self._wanted, strict=True)
            if bool(chosen.any())
        ]
        loss = torch.cat(rows).cpu() if rows else torch.zeros(0, dtype=torch.float64)
        if not bool(loss.isfinite().all()):
            raise NotFinite(f"the loss of {self.lm.name}", why="its logits hold NaN or infinity under an ablation")
        return loss

    def ablated(self, group: Group, sources: Sequence[Source]) -> Float[Tensor, " prediction"]:
        """Return the loss of every predicted token while a group is ablated.

        Args:
            group: the activations to replace.
            sources: for each row of the batch, the source of the replacements.
        """
        changes = [(i, one.replacement(target)) for target in group.targets for i, one in enumerate(sources)]
        return self._changed(group.start, changes)

    def rows(self) -> list[dict[Need, Tensor]]:
        """Return the stored activations of each segment, without padding."""
        return [
            {need: self.captured[need][i, :length] for need in self._needs}
            for i, length in enumerate(self.batch.lengths.tolist())
        ]
