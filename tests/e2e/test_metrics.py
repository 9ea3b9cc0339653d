"""Metrics of real jobs: right through a restart, and without any effect on the job, whatever becomes of what serves."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from launcher import read_events

LIMITS = "setup:600,step:1,checkpointing:600"
COUNTED = ("_total", "_bucket", "_count", "_sum")
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(text: str) -> Samples:
    """All samples of a page, without the labels that all have; the parser refuses what is no OpenMetrics."""
    common = {"run", "node"}
    return {
        (sample.name, tuple(sorted((name, value) for name, value in sample.labels.items() if name not in common))): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Scraper:
    """Asks for the metrics of a job, a hundred times a second, and keeps every page."""

    def __init__(self, job: Any) -> None:
        event = job.wait_for_event("metrics")
        self.url = f"http://{event['host']}:{event['port']}/metrics"
        self.job = job
        self.pages: list[str] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Scraper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def page(self) -> str:
        request = urllib.request.Request(self.url, headers={"Accept": "application/openmetrics-text"})
        with urllib.request.urlopen(request, timeout=60) as response:
            text: str = response.read().decode()
        return text

    def samples(self) -> Samples:
        return parsed(self.page())

    def until(self, what: Any, value: float) -> Samples:
        """Return the samples as soon as one of them, of no labels or of the given ones, has a value."""
        name, labels = what if isinstance(what, tuple) else (what, ())

        def found() -> Samples | None:
            with contextlib.suppress(OSError, http.client.HTTPException):  # none serves now
                samples = self.samples()
                return samples if samples.get((name, labels)) == value else None
            return None

        samples: Samples = self.job.until(found, f"{name} {value}")
        return samples

    def _run(self) -> None:
        while not self._ends.wait(0.01):
            with contextlib.suppress(OSError, http.client.HTTPException):  # none serves now, or the job has ended
                self.pages.append(self.page())


def exporter(job: Any) -> int | None:
    """The process that serves the metrics of a job; None while there is none, or it has no name yet."""
    pids = [pid for pid, command in job.processes().items() if "launcher.metrics.exporter" in command]
    return pids[0] if len(pids) == 1 else None


@pytest.mark.long
def test_counters_only_grow_through_a_hang_that_is_scraped_without_pause(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    end = tmp_path / "end"
    job = launch(
        *("loop.py", "--until-file", end, "--step-seconds", 0.02),
        options=("--max-restarts", 2),
        faults="deadlock:rank=1,step=10,generation=0",
        metrics_port=0,
        rank_section_timeouts=LIMITS,
    )
    with Scraper(job) as scraper:
        job.wait_for_output("runs in generation 1", 2)
        of_rank_1 = ("ft_steps_total", (("local_rank", "1"), ("rank", "1")))
        job.until(
            lambda: len(scraper.pages) >= 20 and parsed(scraper.pages[-1]).get(of_rank_1, 0) > 10, "more of its steps"
        )
        end.touch()
        assert job.wait() == 0

    pages = [parsed(page) for page in scraper.pages]
    before: Samples = {}
    for page in pages:
        counters = {key: value for key, value in page.items() if key[0].endswith(COUNTED)}
        went_down = {key: (before[key], value) for key, value in counters.items() if value < before.get(key, 0)}
        assert went_down == {}
        before.update(counters)
    last = pages[-1]
    assert last["ft_restarts_total", (("cause", "hang"),)] == 1
    assert last["ft_generation", ()] == 1
    # The step that hung has not ended; its rank has done ten before it, and then begun anew.
    (hang,) = job.events("hang")
    done = {rank: last["ft_steps_total", (("local_rank", rank), ("rank", rank))] for rank in "01"}
    assert min(done.values()) > 10
    assert last["ft_hang_detection_seconds_count", ()] == 1
    assert last["ft_hang_detection_seconds_sum", ()] == pytest.approx((hang["seen_ns"] - hang["deadline_ns"]) / 1e9)
    started = job.events("started")[1]
    assert last["ft_restart_seconds_sum", ()] == pytest.approx((started["t_ns"] - hang["seen_ns"]) / 1e9)
    assert [event["seconds"] for event in job.events("restarted")] == [last["ft_restart_seconds_sum", ()]]


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 256 KiB."""
    with tempfile.TemporaryDirectory(prefix="ft-") as folder:
        command = ["mount", "-t", "tmpfs", "-o", f"size={256 << 10},mode=1777", "tmpfs", folder]
        if os.getuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
            pytest.skip("mounting a small tmpfs needs root")
        yield Path(folder)
        subprocess.run(["umount", folder], check=True)


def fill(folder: Path) -> Path:
    """Leave no room; returns the file that takes it."""
    path = folder / "filler"
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while True:
            file.write(b"x" * (4 << 10))
    return path


def of_events(samples: Samples) -> Samples:
    """What is counted of events."""
    parts = ("generation", "restart", "hang", "recovery", "near_misses", "monitor")
    return {key: value for key, value in samples.items() if key[0].removeprefix("ft_").startswith(parts)}


@pytest.mark.long
def test_a_full_disk_costs_lines_of_the_log_and_no_count(
    small_disk: Path, launch: Callable[..., Any], tmp_path: Path
) -> None:
    """It becomes full while the job runs, and has room again later; what serves is killed at both times."""
    end = tmp_path / "end"
    job = launch(
        *("loop.py", "--until-file", end, "--with-pid"),
        options=("--max-restarts", 3, "--log-dir", small_disk),
        metrics_port=0,
        rank_section_timeouts=LIMITS,
        rank_out_of_section_timeout=1,  # a rank may be stopped between two steps
        max_no_progress_cycles=0,
        restart_backoff_after=0,
    )
    job.logs = small_disk
    scraper = Scraper(job)

    def ranks(generation: int) -> list[int]:
        job.wait_for_output(f"runs in generation {generation}", 2)
        return [int(pid) for pid in re.findall(rf"runs in generation {generation} \(pid (\d+)\)", job.stdout)]

    def kill_what_serves() -> None:
        former = job.until(lambda: exporter(job), "exporter")
        os.kill(former, signal.SIGKILL)
        job.until(lambda: exporter(job) not in (None, former), "another exporter")

    running = ranks(0)
    filler = fill(small_disk)
    os.kill(running[0], signal.SIGKILL)
    running = ranks(1)
    # Until its first step a rank is in its setup, which may take long.
    steps = ("ft_steps_total", (("local_rank", "1"), ("rank", "1")))
    done = scraper.samples().get(steps, 0.0)
    job.until(lambda: scraper.samples().get(steps, 0.0) > done, "a step of rank 1")
    os.kill(running[1], signal.SIGSTOP)
    ranks(2)
    first = scraper.until("ft_recovery_seconds_count", 2)
    assert first["ft_restarts_total", (("cause", "failure"),)] == 1
    assert first["ft_restarts_total", (("cause", "hang"),)] == 1
    assert first["ft_generation", ()] == 2
    assert first["ft_hang_detection_seconds_count", ()] == 1
    assert first["ft_restart_seconds_count", ()] == 2
    assert first["ft_log_lines_lost_total", (("log", "events"),)] > 0
    kill_what_serves()
    assert of_events(scraper.until("ft_generation", 2)) == of_events(first)

    filler.unlink()
    os.kill(ranks(2)[0], signal.SIGKILL)
    ranks(3)
    second = scraper.until("ft_recovery_seconds_count", 3)
    assert second["ft_restarts_total", (("cause", "failure"),)] == 2
    assert second["ft_restarts_total", (("cause", "hang"),)] == 1
    assert second["ft_restart_seconds_count", ()] == 3
    kill_what_serves()
    assert of_events(scraper.until("ft_generation", 3)) == of_events(second)
    events = read_events(job.log_folder)  # without the line in which the disk became full
    lost = sum(event["lines"] for event in events if event["event"] == "lost")
    assert second["ft_log_lines_lost_total", (("log", "events"),)] == lost
    last = [event["seconds"] for event in events if event["event"] == "restarted"][-1]
    before = first["ft_restart_seconds_sum", ()]
    assert second["ft_restart_seconds_sum", ()] == pytest.approx(before + last)
    end.touch()
    assert job.wait() == 0
    assert job.stderr.count("no events are logged until it can be written again") == 1


@pytest.mark.parametrize("number", [pytest.param(signal.SIGKILL, marks=pytest.mark.long), signal.SIGSTOP])
def test_what_serves_metrics_may_be_killed_and_stopped(number: int, launch: Callable[..., Any], tmp_path: Path) -> None:
    end = tmp_path / "end"
    job = launch("loop.py", "--until-file", end, metrics_port=0, rank_section_timeouts=LIMITS)
    job.wait_for_output("runs in generation 0", 2)
    scraper = Scraper(job)
    workers = job.workers()
    before = 0.0
    for count in (1, 2):
        former = job.until(lambda: exporter(job), "exporter")
        before = max(before, scraper.samples().get(("ft_steps_total", (("local_rank", "0"), ("rank", "0"))), 0.0))
        os.kill(former, number)
        reason = job.wait_for_event("metrics_replaced", count)["reason"]
        assert reason == f"(pid {former}) {'ended (signal 9)' if number == signal.SIGKILL else 'was stopped'}"
        job.until(lambda former=former: exporter(job) not in (None, former), "another exporter")
        assert scraper.samples()["ft_steps_total", (("local_rank", "0"), ("rank", "0"))] >= before
    assert job.workers() == workers
    end.touch()
    assert job.wait() == 0
    assert job.stderr.count("metrics exporter") == 1
    assert not job.events("failure")


def test_it_ends_with_a_launcher_that_is_killed(launch: Callable[..., Any]) -> None:
    job = launch("loop.py", "--until-stopped", metrics_port=0, rank_section_timeouts=LIMITS)
    job.wait_for_output("runs in generation 0", 2)
    assert "ft_generation" in Scraper(job).page()
    job.signal(signal.SIGKILL)
    assert job.wait() == -signal.SIGKILL
    job.assert_nothing_is_left()


def test_a_stopped_one_ends_with_its_job(launch: Callable[..., Any], tmp_path: Path) -> None:
    end = tmp_path / "end"
    job = launch("loop.py", "--until-file", end, metrics_port=0, rank_section_timeouts=LIMITS)
    job.wait_for_output("runs in generation 0", 2)
    os.kill(job.until(lambda: exporter(job), "exporter"), signal.SIGSTOP)
    end.touch()
    assert job.wait() == 0


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_port_in_use_is_said_once_and_the_job_runs(launch: Callable[..., Any], taken: int) -> None:
    job = launch("loop.py", metrics_port=taken)
    assert job.wait() == 0
    reason = f"127.0.0.1 port {taken}: Address already in use"
    assert job.stderr.count(f"no metrics are served: {reason}. The job goes on without") == 1
    assert [event["reason"] for event in job.events("metrics_lost")] == [reason]
    assert job.events("metrics") == []


def test_an_address_of_another_machine_refuses_the_job_before_anything_starts(launch: Callable[..., Any]) -> None:
    job = launch("loop.py", metrics_port=0, metrics_host="192.0.2.1")
    assert job.wait() == 2
    assert "error: metrics cannot be served at 192.0.2.1 port 0: Cannot assign requested address" in job.stderr
    assert "runs in generation" not in job.stdout
    assert job.log_folders == []


def test_nothing_is_served_unless_asked_for(launch: Callable[..., Any]) -> None:
    job = launch("loop.py")
    assert job.wait() == 0
    assert job.events("metrics") == []
    assert "metrics" not in job.stderr
