"""Frames of C beside those of Python: a second look, within what the first has left of its time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.incidents.frames import NATIVE, Frame, Thread, main_thread
from launcher.incidents.incident import Incident
from launcher.incidents.native_frames import LEAST_SECONDS, native_stacks
from launcher.incidents.rank_phrases import full_stack
from launcher.incidents.rank_report import RankReport
from launcher.incidents.stacks import take_stacks
from launcher.monitor import rank_evidence
from launcher.monitor.messages import MonitorConfig, MonitorSettings
from launcher.monitor.rank_evidence import native_stacks_of
from resilience_core import FaultToleranceConfig

PY_SPY = shutil.which("py-spy", path=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])
needs_py_spy = pytest.mark.skipif(PY_SPY is None, reason="py-spy is not installed (extra 'stacks')")

PLAIN = (Frame("read", "data.py", 7), Frame("main", "train.py", 12))
IN_C = Frame("pthread_cond_wait", "libc.so.6", 0, NATIVE)
STACK = (Thread("MainThread", True, False, PLAIN), Thread("loader", False, False, PLAIN[:1]))
MIXED = (Thread("MainThread", True, False, (IN_C, PLAIN[0], Frame("??", "libx.so", 0, NATIVE), PLAIN[1])),)


def fake_py_spy(folder: Path, body: str) -> str:
    path = folder / "fake-py-spy"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o700)
    return str(path)


def in_a_minute() -> float:
    return time.monotonic() + 60


@needs_py_spy
def test_what_a_process_does_in_c_is_seen_beside_its_python(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    assert PY_SPY is not None
    process = spawn("import ctypes\ndef calls():\n    print('ready', flush=True); ctypes.CDLL(None).pause()\ncalls()")
    found: dict[int, tuple[Thread, ...]] = {}
    end = in_a_minute()
    while not any(f.function == "pause" for t in found.values() for f in t[0].frames) and time.monotonic() < end:
        found = native_stacks({3: process.pid}, PY_SPY, in_a_minute(), {})
    thread = main_thread(found[3])
    assert thread is not None
    names = [(frame.function, frame.package) for frame in thread.frames]
    assert ("pause", NATIVE) in names
    assert names.index(("pause", NATIVE)) < names.index(("calls", ""))
    plain = take_stacks({3: process.pid}, py_spy=PY_SPY, timeout_seconds=60)[3]
    assert all(frame.package != NATIVE for each in plain for frame in each.frames)
    lines = list(full_stack(plain, found[3]))
    assert any(line.startswith("    pause (libc") for line in lines)
    assert [line for line in lines if line.startswith("    calls (")] == [f"    {plain[0].frames[0]}"]  # once


def test_a_build_without_the_option_is_told_from_one_that_fails(tmp_path: Path) -> None:
    reasons: dict[int, str] = {}
    old = fake_py_spy(tmp_path, "echo \"error: Found argument '--native' which wasn't expected\" >&2; exit 2")
    assert native_stacks({0: 1, 5: 1}, old, in_a_minute(), reasons) == {}
    why = "this build of py-spy cannot tell them (error: Found argument '--native' which wasn't expected)"
    assert reasons == {0: why, 5: why}
    assert native_stacks({0: 1}, fake_py_spy(tmp_path, "echo Error: gone >&2; exit 1"), in_a_minute(), reasons) == {}
    assert reasons[0] == "py-spy --native failed (Error: gone)"
    assert native_stacks({0: 1}, fake_py_spy(tmp_path, "echo '[]'"), in_a_minute(), reasons) == {}
    assert reasons[0] == "py-spy --native failed (exit code 0)"
    reasons.clear()
    assert native_stacks({0: 1}, str(tmp_path / "nowhere"), in_a_minute(), reasons) == {}
    assert reasons[0] == "py-spy could not be started"


def test_it_takes_no_longer_than_what_is_left(tmp_path: Path) -> None:
    reasons: dict[int, str] = {}
    slow = fake_py_spy(tmp_path, "exec sleep 600")
    began = time.monotonic()
    assert native_stacks({0: 1}, slow, began + LEAST_SECONDS + 0.2, reasons) == {}
    assert "did not end in time" in reasons[0]
    assert time.monotonic() - began < 60  # and not 600


def test_with_too_little_time_it_is_not_tried(tmp_path: Path) -> None:
    reasons: dict[int, str] = {}
    noted = fake_py_spy(tmp_path, f"touch {tmp_path}/was-started")
    assert native_stacks({0: 1}, noted, time.monotonic() + 0.4, reasons) == {}
    assert not (tmp_path / "was-started").exists()
    assert reasons[0].startswith("not taken: fake-py-spy --native takes a second and more")


def test_native_frames_stand_between_those_of_python_where_the_thread_has_not_moved() -> None:
    assert list(full_stack(STACK, MIXED)) == [
        "  MainThread (active)",
        "    pthread_cond_wait (libc.so.6)",
        "    read (data.py:7)",
        "    ?? (libx.so)",
        "    main (train.py:12)",
        "  loader",
        "    read (data.py:7)",
    ]
    moved = (MIXED[0]._replace(frames=(IN_C, PLAIN[1])),)
    assert list(full_stack(STACK[:1], moved)) == [
        "  MainThread (active)",
        "    read (data.py:7)",
        "    main (train.py:12)",
        "  MainThread, a moment later (active)",
        "    pthread_cond_wait (libc.so.6)",
        "    main (train.py:12)",
    ]


def test_why_there_are_none_is_said_once() -> None:
    ranks = tuple(RankReport(n, n, 9, True, True, stack=STACK, no_native="not taken") for n in range(3))
    incident = Incident("hang", 0, "why", "action", ranks)
    assert incident.report().count("native frames: not taken") == 1
    assert "native" not in "\n".join(incident.summary())
    ranks = (RankReport(0, 0, 9, True, True, stack=STACK, native=MIXED),)
    incident = Incident("hang", 0, "why", "action", ranks)
    assert Incident.from_json(json.loads(json.dumps(incident.to_json()))) == incident
    assert "    ?? (libx.so)" in incident.report()


def settings(timeout_seconds: float, py_spy: str | None = "py-spy", **values: Any) -> MonitorSettings:
    config = FaultToleranceConfig(stack_capture_timeout=timeout_seconds, **values)
    return MonitorSettings(
        -1, -1, -1, "", MonitorConfig.from_document(json.loads(config.to_json())), (), (), True, py_spy
    )


def test_a_few_ranks_that_py_spy_has_seen_are_looked_at_within_the_time_of_all_stacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(rank_evidence, "native_stacks", lambda *told: asked.append(told) or {})
    pids = {n: 100 + n for n in range(8)}
    seen = dict.fromkeys(range(1, 8), STACK) | {1: (STACK[0]._replace(was_asked=True),)}
    native_stacks_of(pids, seen, settings(5), 12.0)
    assert asked == [({2: 102, 3: 103, 4: 104, 5: 105}, "py-spy", 12.0, {})]
    asked.clear()
    for kept in (settings(5, py_spy=None), settings(5, capture_stacks=False)):
        assert native_stacks_of(pids, seen, kept, 0) == ({}, {})
    assert native_stacks_of({0: 100}, {}, settings(5), 0) == ({}, {})
    assert asked == []


def test_a_mistake_of_ours_costs_these_frames_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise KeyError("oops")

    monkeypatch.setattr(rank_evidence, "native_stacks", fail)
    found, reasons = native_stacks_of({0: 1}, {0: STACK}, settings(5), 0)
    assert found == {}
    assert "this is a mistake in ft_launcher" in reasons[0]
