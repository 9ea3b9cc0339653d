"""Reporter: makes one report, on any rank.

Training only ends the window (:meth:`Reporter.cut`). The rest, on a thread of its own: every rank summarises what its
probes have, keeps the top K rows and sends them. Rank 0 also gathers what arrived, scores it and answers. A rank that
gets no answer still reports its local summaries.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from straggler.errors import WireError
from straggler.exchange.exchange import Exchange
from straggler.exchange.gathered import GatheredWindows, assemble
from straggler.exchange.sequences import kind_of
from straggler.exchange.wire import encode
from straggler.measurement.measured import STATE_FIELDS, Family, Measured, top_k
from straggler.measurement.name_table import NameTable, hash_name
from straggler.measurement.summary import Summary, in_unit
from straggler.pacing import wait_no_longer_than
from straggler.probes.ended_window import EndedWindow
from straggler.probes.probe import Collected, Probe, cut
from straggler.reporting.decision_hook import GuardedHook
from straggler.reporting.kept_past import KeptPast
from straggler.reporting.rank_lists import ranges
from straggler.reporting.rank_messages import RankMessage, decode_for_rank, encode_for_ranks, unknown_scores
from straggler.reporting.report import Report
from straggler.reporting.report_log import ReportLog
from straggler.scoring.scorer import WHOLE_ROW, Scorer
from straggler.settings import DetectorSettings

__all__ = ["Reporter"]

logger = logging.getLogger(__name__)

_MILLISECONDS, _MICROSECONDS = 1e3, 1e6
"""In a second."""
_HISTORY = 1 << 14
"""Reports whose lengths are kept, to say since how long a rank is slow: eleven days of one a minute."""


class Reporter:
    """Makes reports.

    Args:
        exchange: Carries what the ranks measured to rank 0.
        probes: What measures.
        settings: Of the detector.
        keeps_past: Keep what the ranks took beside the log, for the next generation; not where others are to come.
    """

    def __init__(
        self,
        exchange: Exchange,
        probes: Sequence[Probe],
        settings: DetectorSettings,
        *,
        keeps_past: bool = True,
    ) -> None:
        self.exchange = exchange
        self.decide: Callable[[Report], Mapping[str, Any]] | None = None
        self.hook = GuardedHook()
        self._probes = probes
        self._gather = settings.gather_on_rank0
        self._wanting: set[int] = set()
        self._interval = settings.report_time_interval
        self.answer_seconds = min(0.1 * settings.report_time_interval, 0.25 * settings.report_bound_seconds)
        self._node = settings.node_name
        self._top_k = settings.top_k
        self._names = NameTable()
        self._nodes = [""] * exchange.world_size
        self._last = time.monotonic()
        self._durations: list[float] = []
        self._made = 0
        self._heard = {kind: np.full(exchange.world_size, -1, dtype=np.int64) for kind in (0, 1)}
        self._scorer = Scorer(exchange.world_size, settings) if exchange.rank == 0 else None
        path = settings.log_path if exchange.rank == 0 else None
        self._log = None if path is None else ReportLog(path)
        self._kept_past = KeptPast.beside(path) if keeps_past else None
        self._hashed_group = hash_name(settings.peer_group)

    @property
    def paced_seconds(self) -> float:
        """How long making a report beside training may wait for steps; not long where ranks wait for this one."""
        is_awaited = self.exchange.rank != 0 or not self._gather or bool(self._wanting)
        return self.answer_seconds if is_awaited else self._interval

    def cut(self) -> EndedWindow:
        """End the window, on the thread that trains; costs microseconds."""
        now = time.monotonic()
        elapsed, self._last = now - self._last, now
        return EndedWindow([cut(probe) for probe in self._probes], elapsed)

    def make(
        self, sequence: int, window: EndedWindow, is_over: Callable[[], bool] | None
    ) -> tuple[Report | None, Mapping[str, Any]]:
        """Make one report.

        Args:
            sequence: Its number.
            window: What this rank has measured.
            is_over: Where nobody waits for the report: asked again and again, True ends it with what is there.

        Returns:
            The report, None on the other ranks when gathering on rank 0; and what rank 0 has decided on it. On a report
            that nobody waits for the hook is asked later.
        """
        began = time.monotonic()
        self._durations = [*self._durations[-_HISTORY:], window.elapsed]
        collected = window.summarise()
        payload = self._encode(sequence, window.elapsed, collected)
        self.exchange.post(sequence, payload)
        self._answer_names()
        self._made += 1
        if self._scorer is not None:
            return self._report_of_all(sequence, collected, began, is_over)
        problem, message = None, None
        if not self._gather or (self.decide is not None and is_over is None):
            message, problem = self._read_message(self.exchange.outcome(sequence, is_over))
        decision = {} if message is None else message.decision
        if self._gather:
            for note in collected.notes:  # no report of this rank's would say it
                logger.warning("straggler: %s", note)
            return None, decision
        return self._report_of_one(sequence, collected, began, payload, message, problem), decision

    def close(self) -> None:
        """Close the exchange and the log; nothing is sent or written after this."""
        self.exchange.close()
        if self._log is not None:
            self._log.close()
        if self._kept_past is not None:
            self._kept_past.close()

    def _encode(self, sequence: int, elapsed: float, collected: Collected) -> bytes:
        header = {
            "sequence": sequence,
            "rank": self.exchange.rank,
            "world_size": self.exchange.world_size,
            "elapsed": elapsed,
            "dropped": collected.dropped,
            "peer_group": self._hashed_group,
            "wants_report": not self._gather,
            "node": self._node.encode("utf-8", "replace")[:64],
            "device": collected.device if collected.device is not None else np.full(len(STATE_FIELDS), np.nan),
        }
        rows = [(self._names.add(row.name), row) for row in top_k(collected.rows, self._top_k)]
        return encode(header, rows)

    def _answer_names(self) -> None:
        if self.exchange.rank == 0 or self.exchange.world_size == 1:
            return
        wanted = {number: self._names.find(number) for number in self.exchange.wanted_names()}
        known = {number: name for number, name in wanted.items() if name is not None}
        if known:
            self.exchange.tell_names(known)

    def _learn_names(self, gathered: GatheredWindows) -> None:
        numbers = [int(n) for block in gathered.blocks.values() for n in block.names.tolist()]
        if not (unknown := [number for number in numbers if number not in self._names]):
            return
        for name in self.exchange.names_of(unknown).values():
            self._names.add(name)
        if still := [number for number in unknown if number not in self._names]:
            self.exchange.want_names(still)

    def _report_of_all(
        self, sequence: int, collected: Collected, began: float, is_over: Callable[[], bool] | None
    ) -> tuple[Report, Mapping[str, Any]]:
        assert self._scorer is not None
        heard = self._heard[kind_of(sequence)]
        gathered = assemble(self.exchange.collect(sequence, is_over), sequence, self._nodes, heard=heard)
        self._nodes = gathered.nodes
        if self._gather:  # one that is late waits, too
            self._wanting |= gathered.wanting
            if self._wanting:
                wait_no_longer_than(self.answer_seconds)
        np.maximum(heard, gathered.numbers, out=heard)
        self.exchange.note_late(int(rank) for rank in np.flatnonzero(gathered.numbers != sequence))
        self._learn_names(gathered)
        kept = self._kept_past
        scores = self._scorer.score(gathered) if kept is None else kept.score(self._scorer, gathered)
        of_job = Report(
            scores=scores,
            gathered=gathered,
            name_of=self._names.get,
            sequence=self._made - 1,
            rank=0,
            gather_on_rank0=self._gather,
            report_seconds=self._durations,
            wall_time=time.time(),
            elapsed_seconds=time.monotonic() - began,
            notes=self._notes(collected, gathered),
            **_local(collected),
        )
        report = of_job if self._gather else of_job.of_rank(0)
        decision = self.hook.ask(self.decide, report) if is_over is None else {}
        is_for_all = not self._gather or (self.decide is not None and is_over is None)
        if is_for_all or self._wanting:
            # What nobody waits for is not done at once either: rank 0 proposes it to all.
            told = decision if is_over is None else {}
            details = not self._gather or bool(self._wanting)
            messages = encode_for_ranks(scores, told, gathered.present, details=details)
            decision = self._decode(messages.pop(0)).decision if is_over is None else decision
            if not is_for_all:
                messages = {rank: messages[rank] for rank in self._wanting}
            if messages:
                self.exchange.publish(sequence, messages)
        if self._log is not None:
            self._log.append(of_job)
        return report, decision

    def _read_message(self, raw: bytes | None) -> tuple[RankMessage | None, str | None]:
        """Read what rank 0 sent; return it, or why there is nothing."""
        if raw is None:
            return None, "rank 0 did not answer within the bound, or its detector was shut down"
        try:
            return self._decode(raw), None
        except WireError as error:
            logger.warning("straggler: %s; this rank does not know what rank 0 decided", error)
            return None, str(error)

    def _report_of_one(
        self,
        sequence: int,
        collected: Collected,
        began: float,
        payload: bytes,
        message: RankMessage | None,
        problem: str | None,
    ) -> Report:
        rank, ranks = self.exchange.rank, self.exchange.world_size
        own: list[bytes | None] = [None] * ranks
        own[rank] = payload
        notes = list(collected.notes)
        if problem is not None:
            notes.append(f"{problem}; this report has local times only")
        return Report(
            scores=unknown_scores(rank, ranks) if message is None or message.scores is None else message.scores,
            gathered=assemble(own, sequence, self._own_node()),
            name_of=self._names.get,
            sequence=self._made - 1,
            rank=rank,
            gather_on_rank0=False,
            report_seconds=self._durations,
            wall_time=time.time(),
            elapsed_seconds=time.monotonic() - began,
            notes=notes,
            missing=None if message is None else message.missing,
            **_local(collected),
        ).of_rank(rank)

    def _decode(self, message: bytes) -> RankMessage:
        return decode_for_rank(message, self.exchange.rank, self.exchange.world_size)

    def _own_node(self) -> list[str]:
        nodes = [""] * self.exchange.world_size
        nodes[self.exchange.rank] = self._node
        return nodes

    def _notes(self, collected: Collected, gathered: GatheredWindows) -> list[str]:
        notes = list(collected.notes)
        if gathered.dropped:
            notes.append(f"probes lost {gathered.dropped} records; medians rest on the others")
        wanting = gathered.wanting
        if unequal := self._wanting if self._gather else set(np.flatnonzero(gathered.present).tolist()) - wanting:
            notes.append(
                f"gather_on_rank0 is {self._gather} on rank 0 and {not self._gather} on {len(unequal)} ranks "
                f"({ranges(unequal)}): each gets what it asked for; give it equally on all ranks"
            )
        own = gathered.blocks[Family.OWN_WORK]
        if own.synchronous[own.names == np.uint64(WHOLE_ROW)].any():
            notes.append(
                "collectives were made where no wait for them is seen: by the time of its iterations a rank that waits "
                "cannot be told from a slow one; mark each rank's own work with sections"
            )
        return notes


def _local(collected: Collected) -> dict[str, Any]:
    """Return what this rank measured by itself, in the units of nvidia-resiliency-ext."""

    def of(family: Family, per_second: float) -> dict[str, Summary]:
        rows: list[Measured] = [row for row in collected.rows if row.family is family]
        return {row.name: in_unit(row.summary, per_second) for row in rows}

    gpu_sections = of(Family.GPU_SECTION, _MICROSECONDS)
    return {
        "local_section_summaries": of(Family.SECTION, _MILLISECONDS),
        "local_kernel_summaries": of(Family.KERNEL, _MICROSECONDS) or gpu_sections,
        "local_gpu_section_summaries": gpu_sections,
    }
