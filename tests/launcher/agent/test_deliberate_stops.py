"""Whether a StopTraining on record has ended the training, in each order in which ranks may end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.agent.deliberate_stops import await_ends, decided, end_requests, told_as, without_caught
from launcher.agent.failure_incident import stopped_on_purpose
from launcher.agent.worker_exits import collect_exits
from launcher.incidents.incident import Incident
from launcher.incidents.rank_report import RankReport
from launcher.processes.evidence import Evidence
from launcher.workers.worker_processes import WorkerProcess
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.error_record import ErrorRecord

ON_ITS_WAY = ErrorRecord("StopTraining", "enough", at_ns=7, noted_ns=time.monotonic_ns(), is_deliberate=True)
UNCAUGHT = ON_ITS_WAY._replace(is_uncaught=True)
OTHER = ErrorRecord("ValueError", "bad batch", at_ns=9)
STAYS = "import signal; signal.signal(15, signal.SIG_IGN); print(flush=True); signal.pause()"
SUCCEEDS = "import os, signal; signal.signal(15, lambda *_: os._exit(0)); print(flush=True); signal.pause()"
DIES = "import signal; print(flush=True); signal.pause()"


@pytest.mark.parametrize(
    ("error", "exit_code", "is_ended_by_us", "stays"),
    [
        (UNCAUGHT, 1, False, True),
        (UNCAUGHT, -9, False, True),  # in what atexit has
        (UNCAUGHT, None, False, True),
        (UNCAUGHT, 0, False, False),
        (ON_ITS_WAY, None, False, True),  # its end decides
        (ON_ITS_WAY, 1, False, False),
        (ON_ITS_WAY, 5, False, False),
        (ON_ITS_WAY, -9, False, False),
        (ON_ITS_WAY, -9, True, True),
        (ON_ITS_WAY, 0, True, False),
        (OTHER, 1, False, True),
    ],
)
def test_a_stop_that_has_not_ended_its_rank_was_caught(
    error: ErrorRecord, exit_code: int | None, is_ended_by_us: bool, stays: bool
) -> None:
    worker = WorkerProcess(3, 9, -1, exit_code)
    left = without_caught({3: error}, {3: worker}, {3} if is_ended_by_us else set())
    assert left == ({3: error} if stays else {})


class Rank:
    """A process that plays local rank 0; rank 1 has failed."""

    def __init__(self, code: str) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.process.stdout.readline()
        self.workers = {
            0: WorkerProcess(0, self.process.pid, os.pidfd_open(self.process.pid)),
            1: WorkerProcess(1, 9, -1, 1, ended_ns=5),
        }
        self.errors = {0: ON_ITS_WAY}
        self.on_stop: Callable[[], object] = lambda: None
        self.generation: Any = SimpleNamespace(
            started_ns=0,
            number=0,
            condemned=set(),
            overstayed={},
            views=lambda: {n: Cell.detached().view() for n in range(2)},
            errors=lambda: dict(self.errors),
            asked_ns=dict,
            request_stop=self.request_stop,
            stop_judging=lambda: self.judging.append("stopped"),
            processes=self,
        )
        self.resources: Any = SimpleNamespace(
            config=SimpleNamespace(failure_stop_timeout=600.0),
            signals=SimpleNamespace(first=None),
            events=SimpleNamespace(write=lambda *_, **__: None),
            on_disk=lambda what, call, otherwise: otherwise,
            run_folder_keeper=SimpleNamespace(folder=SimpleNamespace(cell=lambda generation, local_rank: "")),
            machine=SimpleNamespace(memory_kill=lambda *_, **__: None, facts=lambda *_: (), gpu_users=set()),
        )
        self.stderrs: dict[int, str] = {}
        self.judging: list[str] = []

    @property
    def failed(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers.values() if worker.exit_code]

    @property
    def running(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers.values() if worker.exit_code is None]

    def pids(self) -> dict[int, int]:
        return {n: worker.pid for n, worker in self.workers.items()}

    def failure(self, worker: WorkerProcess, error_file: str = "") -> Any:
        return SimpleNamespace(error_file_data={}, local_rank=worker.local_rank)

    def collect_exits(self) -> None:
        if self.workers[0].exit_code is None and (code := self.process.poll()) is not None:
            self.workers[0].exit_code, self.workers[0].ended_ns = code, time.monotonic_ns()

    def request_stop(self, number: signal.Signals) -> None:
        self.on_stop()
        self.process.send_signal(number)

    def stopped(self) -> str | None:
        """Have the failure of rank 1 handled, and return who has stopped the training."""
        group: Any = SimpleNamespace(
            workers=[SimpleNamespace(global_rank=n, local_rank=n) for n in range(2)], group_world_size=1
        )
        return stopped_on_purpose(collect_exits(self.generation, group, self.resources, time.monotonic_ns()).incident)


@pytest.fixture
def rank(request: pytest.FixtureRequest) -> Iterator[Rank]:
    rank = Rank(request.param)
    yield rank
    rank.process.kill()
    rank.process.wait()
    assert rank.process.stdout is not None
    rank.process.stdout.close()
    os.close(rank.workers[0].pidfd)


@pytest.mark.parametrize("rank", [DIES], indirect=True)
def test_one_that_is_on_its_way_out_when_a_peer_fails_has_stopped_the_training(rank: Rank) -> None:
    assert rank.stopped() == "rank 0 has stopped the training: enough"
    assert rank.workers[0].exit_code == -signal.SIGTERM


@pytest.mark.parametrize("rank", [STAYS], indirect=True)
def test_one_that_does_not_end_in_time_is_killed_and_has_stopped_the_training(rank: Rank) -> None:
    rank.resources.config.failure_stop_timeout = 0.05
    assert rank.stopped() == "rank 0 has stopped the training: enough"
    assert rank.process.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("rank", [STAYS], indirect=True)
def test_nobody_waits_where_the_launcher_itself_was_asked_to_end(rank: Rank) -> None:
    rank.resources.signals.first = signal.SIGTERM
    assert rank.stopped() is not None
    assert rank.process.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("rank", [SUCCEEDS], indirect=True)
def test_one_that_ends_with_0_has_caught_it(rank: Rank) -> None:
    assert rank.stopped() is None


@pytest.mark.parametrize("now", [{}, {0: OTHER}, {0: ON_ITS_WAY._replace(at_ns=8)}])
@pytest.mark.parametrize("rank", [DIES], indirect=True)
def test_one_that_turns_out_to_have_been_caught_has_not(rank: Rank, now: dict[int, ErrorRecord]) -> None:
    rank.on_stop = lambda: setattr(rank, "errors", now)
    assert rank.stopped() is None


@pytest.mark.parametrize("rank", [STAYS], indirect=True)
def test_one_that_is_uncaught_is_not_waited_for(rank: Rank) -> None:
    rank.errors = {0: UNCAUGHT}
    assert rank.stopped() == "rank 0 has stopped the training: enough"
    assert rank.process.poll() is None


@pytest.mark.parametrize("rank", [DIES], indirect=True)
def test_one_that_is_uncaught_meanwhile_is_that(rank: Rank) -> None:
    known = {4: Evidence(0, error=ON_ITS_WAY), 5: Evidence(1, exit_code=1, ended_ns=5)}
    rank.process.kill()
    awaited = await_ends(rank.generation, known, rank.resources, 600)
    assert awaited == [4]
    assert decided(known, awaited, rank.workers, {0: UNCAUGHT})[4].error == UNCAUGHT


@pytest.mark.parametrize("rank", [DIES], indirect=True)
def test_one_whose_end_another_node_has_asked_for_ends_the_job(rank: Rank) -> None:
    """It has lost its peer here, and has failed first."""
    del rank.workers[1]
    ((who, request),) = end_requests(rank.generation, rank.resources, 600.0)
    assert (who, request.action.value) == (0, "ShutdownWorkload")
    assert request.description == "it has stopped the training: enough"
    assert rank.workers[0].exit_code == -signal.SIGTERM


@pytest.mark.parametrize("rank", [SUCCEEDS], indirect=True)
def test_one_that_has_caught_its_stop_when_another_node_fails_ends_nothing(rank: Rank) -> None:
    del rank.workers[1]
    assert end_requests(rank.generation, rank.resources, 600.0) == []
    assert rank.workers[0].exit_code == 0


@pytest.mark.parametrize(("errors", "has_failed"), [({}, False), ({0: OTHER}, False), ({0: ON_ITS_WAY}, True)])
@pytest.mark.parametrize("rank", [STAYS], indirect=True)
def test_where_nothing_was_stopped_or_all_was_decided_nobody_is_waited_for(
    rank: Rank, errors: dict[int, ErrorRecord], has_failed: bool
) -> None:
    if not has_failed:
        del rank.workers[1]
    rank.errors = errors
    assert end_requests(rank.generation, rank.resources, 600.0) == []
    assert rank.judging == ["stopped"]
    assert rank.process.poll() is None


def hang(error: ErrorRecord | None, generation: int = 3) -> Incident:
    return Incident("hang", generation, "why", "kill", (RankReport(0, 0, 9, is_culprit=True, error=error),))


@pytest.mark.parametrize(
    ("told", "found", "stops"),
    [
        (None, UNCAUGHT, True),
        (hang(ON_ITS_WAY), ON_ITS_WAY, True),
        (hang(ON_ITS_WAY), UNCAUGHT, True),
        (hang(ON_ITS_WAY), None, False),
        (hang(ON_ITS_WAY), OTHER, False),
        (hang(OTHER), UNCAUGHT, False),
        (hang(UNCAUGHT, generation=2), None, False),  # of the generation before
    ],
)
def test_a_hang_that_the_monitor_told_is_decided_by_how_the_ranks_have_ended(
    told: Incident | None, found: ErrorRecord | None, stops: bool
) -> None:
    assert (stopped_on_purpose(told_as(told, hang(found))) is not None) is stops
