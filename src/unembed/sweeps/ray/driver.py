"""The driving side of a Ray sweep: what is to be done, what is there, what is safe, and what was lost."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unembed.errors import Unsupported
from unembed.sweeps.checkpoint import Saved, save
from unembed.sweeps.local import Every, deferred_interrupt
from unembed.sweeps.progress import Report, Reporter
from unembed.sweeps.ray.merge_tree import MergeTree, Part, unbroken
from unembed.sweeps.ray.shards import Seen, Shard
from unembed.sweeps.ray.workers import Crew, Heard, Joining, Reading

PATIENCE = 300.0
"""Seconds without any living worker after which a sweep gives up."""
ATTEMPTS = 5
"""So many workers beyond the number at work may die at one job."""


class Drive:
    """One sweep under way.

    A part is safe once this process holds its states; until then its shards' batches are kept here, so that they can
    be read again. What is made of a safe part is made safe at once.

    Args:
        crew: the workers.
        coming: shards that are not in `parts`.
        parts: what an earlier run saved.
        at_risk: parts of so many shards are made safe.
        checkpoint: where to save, if anywhere.
        every: how often.
        progress: told how far it is.
        who: the sweep's identity, for the checkpoint.
    """

    def __init__(
        self,
        crew: Crew,
        coming: Iterator[Shard],
        parts: Sequence[Part],
        at_risk: int,
        checkpoint: Path | None,
        every: Every,
        progress: Report | None,
        who: Mapping[str, str],
    ) -> None:
        """Take up what an earlier run saved."""
        self._crew, self._coming, self._at_risk = crew, coming, at_risk
        self._checkpoint, self._every, self._who = checkpoint, every, who
        self._reporter, self._tree = Reporter(progress), MergeTree()
        self._cut: deque[Shard] = deque()
        self._unsafe: dict[int, Shard] = {}
        self._deaths: Counter[tuple[int, int]] = Counter()
        self._n = 0
        for part in parts:
            part.where, self._n = crew.store(part.held or ()), part.end
            self._tree.put(part)

    def finish(self) -> list[Part]:
        """Read and join until one safe part covers the corpus; that part, or nothing where there was no shard.

        Raises:
            Unsupported: workers do not come, or die one after another.
            Exception: whatever a reducer raised.
        """
        done = self._done()
        self._reporter.begin(done.tokens, done.share)
        saved_at, saved, alive_at = time.monotonic(), done.batches, time.monotonic()
        with deferred_interrupt(self._checkpoint is not None) as interrupted:
            while (whole := self._whole()) is None and self._tree.total != 0:
                self._hand_out()
                for heard in self._crew.hear(1.0):
                    self._take(heard)
                if self._crew.under_way() or self._crew.idle:
                    alive_at = time.monotonic()
                elif time.monotonic() - alive_at > PATIENCE:
                    raise Unsupported("engine='ray'", why=f"no worker could be started for {PATIENCE:.0f} seconds")
                done = self._done()
                self._reporter.tell(done.batches, done.tokens, done.share)
                if interrupted.is_set():
                    self._save()
                    raise KeyboardInterrupt
                if self._every.is_due(done.batches - saved, time.monotonic() - saved_at):
                    self._save()
                    saved_at, saved = time.monotonic(), done.batches
        parts = [] if whole is None else [whole]
        self._keep(parts, finished=True)
        self._reporter.tell(done.batches, done.tokens, 1.0, end=True)
        return parts

    def _whole(self) -> Part | None:
        part = self._tree.whole()
        if part is None or self._safe(part):
            return part
        self._tree.drop(part)
        self._again(part.first, part.end)
        return None

    def _hand_out(self) -> None:
        """Give every idle worker something; joining comes first, because it frees memory."""
        while self._crew.idle:
            if (pair := self._tree.pair()) is not None:
                self._crew.give(Joining(*pair))
            elif (shard := self._cut.popleft() if self._cut else self._read_on()) is not None:
                self._unsafe[shard.number] = shard
                self._crew.give(Reading(shard))
            else:
                break
        # Cut ahead while all are busy, so that nobody waits for it afterwards.
        if len(self._cut) < self._crew.n and (shard := self._read_on()) is not None:
            self._cut.append(shard)

    def _read_on(self) -> Shard | None:
        """The next shard of the corpus; how many there were, once there is none."""
        if self._tree.total is not None:
            return None
        shard = next(self._coming, None)
        if shard is None:
            self._tree.total = self._n
        else:
            self._n = shard.number + 1
        return shard

    def _take(self, heard: Heard) -> None:
        """Note what was done; put back what was lost.

        Raises:
            Unsupported: the job was lost with its worker again and again.
        """
        job = heard.job
        inputs = (job.earlier, job.later) if isinstance(job, Joining) else ()
        if heard.seen is not None:
            part = Part(*job.run, heard.seen, heard.where)
            risky = len(part) < self._at_risk and all(kid.held is None for kid in inputs)
            if risky or self._safe(part):
                self._tree.put(part)
                return
        elif not heard.input_lost:
            self._deaths[job.run] += 1
            if self._deaths[job.run] > ATTEMPTS + self._crew.n:  # all who were idle may have gone with one machine
                raise Unsupported(
                    "engine='ray'",
                    why=f"{self._deaths[job.run]} workers died at the same work",
                    instead="Most often that is memory: fewer workers on a machine, or smaller batches",
                )
        if isinstance(job, Reading):
            self._again(*job.run)
        for part in inputs:
            if part.held is not None:
                part.where = self._crew.store(part.held)
            if part.held is not None or not heard.input_lost:
                self._tree.put(part)
            else:
                self._again(part.first, part.end)

    def _again(self, first: int, end: int) -> None:
        """Put shards in front of the queue."""
        self._cut.extendleft(self._unsafe[number] for number in reversed(range(first, end)))

    def _safe(self, part: Part) -> bool:
        """Bring a part's states here, if they are not; False where they are lost."""
        if part.held is None:
            part.held = self._crew.fetch(part)
        if part.held is None:
            return False
        for number in range(part.first, part.end):
            self._unsafe.pop(number, None)
        return True

    def _present(self) -> list[Part]:
        """What would be there if every joining under way failed, from the corpus's begin without a gap."""
        joining = [job for job in self._crew.under_way() if isinstance(job, Joining)]
        return unbroken((*self._tree.waiting(), *(part for job in joining for part in (job.earlier, job.later))))

    def _done(self) -> Seen:
        """How much is done without a gap."""
        done = Seen(0, 0, 0.0)
        for part in self._present():
            done = done.then(part.seen)
        return done

    def _save(self) -> None:
        """Save what is done without a gap, made safe first; what proves lost is found by the job that needs it."""
        parts: list[Part] = []
        for part in self._present() if self._checkpoint is not None else ():
            if not self._safe(part):
                break
            parts.append(part)
        self._keep(parts, finished=False)

    def _keep(self, parts: Sequence[Part], *, finished: bool) -> None:
        if self._checkpoint is not None:
            batches, tokens = sum(part.seen.batches for part in parts), sum(part.seen.tokens for part in parts)
            save(self._checkpoint, Saved(batches, tokens, finished, _states(parts)), self._who)


def _states(parts: Sequence[Part]) -> tuple[Mapping[str, Any], ...]:
    """All parts as a checkpoint holds them; see `parts_of`."""
    table = [(p.first, p.end, p.seen.batches, p.seen.tokens, p.seen.share) for p in parts]
    return ({"parts": table}, *(state for part in parts for state in part.held or ()))


def parts_of(saved: Saved) -> list[Part]:
    """The parts of a checkpoint: what each covers, then all their states in order."""
    table, *states = saved.states
    width = len(states) // max(1, len(table["parts"]))
    return [
        Part(first, end, Seen(batches, tokens, share), held=tuple(states[n * width : (n + 1) * width]))
        for n, (first, end, batches, tokens, share) in enumerate(table["parts"])
    ]
