"""The rows of the main job: what monitoring costs a rank, how fast failures are seen, how fast the group is back.

Every row is measured for all contenders in the same run, one launch of each in turn, so that a machine that slows
down slows all of them down.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.launches import Launch, LaunchFailedError, descendants, launched, pss_kilobytes, run_nanoseconds
from benchmarks.peers import OURS, Contender
from benchmarks.table import Results

__all__ = ["measure"]

HANG_LIMIT_SECONDS = 1.0
MS = 1e6
Say = Callable[[str], None]


def measure(results: Results, contenders: Sequence[Contender], *, rounds: int, only: str, say: Say) -> None:
    """Fill the table.

    Args:
        results: Where samples go.
        contenders: Who takes part, ours first.
        rounds: How often everything is done.
        only: Part of a group's name; nothing is all.
        say: Told what is being measured.
    """
    groups: dict[str, Callable[[Results, Contender], None]] = {
        "hot path": hot_path,
        "start and end": start_and_end,
        "kill": lambda results, contender: kill(results, contender, restarts=2),
        "hang": lambda results, contender: hang(results, contender, restarts=2),
        "footprint": footprint,
    }
    once = ("hot path", "footprint")
    for name, group in groups.items():
        if only and only not in name:
            continue
        for number in range(min(rounds, 2) if name in once else rounds):
            for contender in contenders:
                say(f"{name}, round {number + 1}, {contender.title}")
                try:
                    group(results, contender)
                except LaunchFailedError as error:
                    results.fail(name, contender.title, str(error))


# ---- what it costs a rank -------------------------------------------------------------------------------

HOT_ROWS = {
    "pair": "start_section + end_section",
    "heartbeat": "send_heartbeat",
    "bus": "bus.step_start + bus.step_end, monitored",
    "pair_stopped": "section pair, monitor SIGSTOPped",
    "pair_dead": "section pair, monitor dead",
    "bus_stopped": "bus events, monitor SIGSTOPped",
    "bus_dead": "bus events, monitor dead",
}


def hot_path(results: Results, contender: Contender) -> None:
    """One rank, its monitor watching. How workers are started makes no difference here: once for both of ours."""
    if contender.client == "torchrun" or (contender.client == "ours" and contender is not OURS):
        return
    calls = 40_000 if contender.client == "ours" else 2_000
    with launched(contender, "hot_path.py", contender.client, str(calls), ranks=1) as launch:
        launch.wait(120)
        output = (launch.folder / "output.txt").read_text(errors="replace")
    measured = json.loads(next(line for line in output.splitlines() if "RESULT " in line).partition("RESULT ")[2])
    for key, row in HOT_ROWS.items():
        if key in measured:
            results.add(row, contender.title, [ns / 1000 for ns in measured[key]["batches"]], unit="us")
            results.add_p99(row, contender.title, [ns / 1000 for ns in measured[key]["p99"]])
    for key in ("pair", "heartbeat", "bus"):
        counted = measured["system_calls"].get(key)
        if counted is not None:
            results.add(f"system calls in: {HOT_ROWS[key]}", contender.title, [counted], unit="")
        elif key in measured["system_calls"]:
            results.note("strace is not installed or may not attach: system calls were not counted")


# ---- how long it takes ----------------------------------------------------------------------------------


def start_and_end(results: Results, contender: Contender) -> None:
    """Two ranks that say hello and go."""
    with launched(contender, "hello.py", "FOLDER/said", ranks=2) as launch:
        first_line_ns = _wait_for_output(launch, b"hello")
        gone_ns = launch.wait(60)
        said = [int(line) for line in (launch.folder / "said").read_text().split()]
    results.add("command -> first line of a rank", contender.title, [(first_line_ns - launch.began_ns) / MS], unit="ms")
    results.add("last rank done -> launcher gone", contender.title, [(gone_ns - max(said)) / MS], unit="ms")


def kill(results: Results, contender: Contender, restarts: int) -> None:
    """Two gloo ranks; rank 1 is killed in each generation but the last."""
    arguments = (contender.client, "FOLDER/timeline", "kill", str(restarts + 1))
    with launched(contender, "job.py", *arguments, ranks=2, restarts=restarts) as launch:
        launch.wait(45 + 15 * restarts)
        notes = launch.timeline()
        seen = [event for event in launch.events() if event["event"] == "seen"] if contender.client == "ours" else []
    first = _last_of_each_generation(notes, "all_reduce")
    results.add("command -> first all_reduce", contender.title, [(first[0] - launch.began_ns) / MS], unit="ms")
    for note in notes:
        if note["what"] != "kill":
            continue
        if (after := first.get(note["generation"] + 1)) is None:
            raise LaunchFailedError("a restarted generation never came to its first all_reduce")
        row = "SIGKILL of a rank -> first all_reduce of the next generation"
        results.add(row, contender.title, [(after - note["t_ns"]) / MS], unit="ms")
        for event in seen:
            if event["generation"] == note["generation"]:
                results.add(
                    "SIGKILL of a rank -> seen", contender.title, [(event["t_ns"] - note["t_ns"]) / MS], unit="ms"
                )


def hang(results: Results, contender: Contender, restarts: int) -> None:
    """Two gloo ranks; rank 1 opens a section and hangs, in each generation but the last."""
    if contender.client == "torchrun":
        results.say("hang: deadline -> the next generation's first line", contender.title, "never")
        return
    for stacks in ("true", "false") if contender.client == "ours" else ("",):
        arguments = (contender.client, "FOLDER/timeline", "hang", str(restarts + 1))
        options: dict[str, Any] = {"ranks": 2, "restarts": restarts, "limit": HANG_LIMIT_SECONDS}
        started = contender
        if stacks == "false":
            started = Contender(
                contender.title,
                contender.client,
                contender.program,
                (*contender.options, "--ft-capture-stacks", "false"),
            )
        with launched(started, "job.py", *arguments, **options) as launch:
            launch.wait(60 + 20 * restarts)
            notes = launch.timeline()
            events = launch.events() if contender.client == "ours" else []
        _verdicts(results, contender, events, "with the stacks of all ranks" if stacks == "true" else "without stacks")
        if stacks == "false":
            continue
        opened = _first_of_each_generation(notes, "opened")
        began = _first_of_each_generation(notes, "began")
        for generation, at_ns in opened.items():
            if generation + 1 in began:
                deadline_ns = at_ns + HANG_LIMIT_SECONDS * 1e9
                row = "hang: deadline -> the next generation's first line"
                results.add(row, contender.title, [(began[generation + 1] - deadline_ns) / MS], unit="ms")


def _verdicts(results: Results, contender: Contender, events: list[dict[str, Any]], how: str) -> None:
    """What only our launcher writes down: each deadline, when it was seen, and when the signal was sent."""
    sent = {event["generation"]: event["signalled_ns"] for event in events if event["event"] == "signalled"}
    for hung in (event for event in events if event["event"] == "hang"):
        late_ns = hung["seen_ns"] - hung["deadline_ns"]
        results.add("hang: deadline -> verdict", contender.title, [late_ns / MS], unit="ms")
        if hung["generation"] in sent:
            sent_ns = sent[hung["generation"]] - hung["deadline_ns"]
            results.add(f"hang: deadline -> signal, {how}", contender.title, [sent_ns / MS], unit="ms")


def _wait_for_output(launch: Launch, text: bytes) -> int:
    until = time.monotonic() + 60
    with (launch.folder / "output.txt").open("rb") as output:
        seen = b""
        while text not in seen:
            seen += output.read()
            if time.monotonic() > until:
                raise LaunchFailedError("no rank said hello within 60 s")
            time.sleep(0.0005)
    return time.monotonic_ns()


def _first_of_each_generation(notes: list[dict[str, Any]], what: str) -> dict[int, int]:
    return {note["generation"]: note["t_ns"] for note in reversed(notes) if note["what"] == what}


def _last_of_each_generation(notes: list[dict[str, Any]], what: str) -> dict[int, int]:
    return {note["generation"]: note["t_ns"] for note in notes if note["what"] == what}


# ---- what it weighs -------------------------------------------------------------------------------------


def footprint(results: Results, contender: Contender, ranks: int = 8, seconds: float = 10.0) -> None:
    """Eight ranks in which all is well."""
    arguments = (contender.client, "FOLDER/ready", "FOLDER/leave")
    with launched(contender, "idle.py", *arguments, ranks=ranks) as launch:
        pids = _wait_for_ranks(launch, ranks)
        time.sleep(2.0)
        helpers = {pid: _command_name(pid) for pid in descendants(launch.process.pid) - pids}
        if contender.client == "ours":
            monitors = {pid for pid, name in helpers.items() if name == "ft_monitor"}
            others = set(helpers) - monitors
        else:
            monitors, others = set(helpers), set()
        before = sum(map(run_nanoseconds, monitors)), time.monotonic_ns()
        time.sleep(seconds)
        busy = sum(map(run_nanoseconds, monitors)) - before[0]
        share = 100 * busy / (time.monotonic_ns() - before[1])
        memory = sum(map(pss_kilobytes, monitors)) / 1024
        launcher = pss_kilobytes(launch.process.pid) / 1024
        rest = sum(map(pss_kilobytes, others)) / 1024
        (launch.folder / "leave").touch()
        launch.wait(60)
    if monitors:
        results.add(f"monitoring {ranks} ranks: PSS", contender.title, [memory], unit="MB")
        results.add(f"monitoring {ranks} ranks: share of a core", contender.title, [share], unit="%")
    results.add("launcher alone: PSS", contender.title, [launcher], unit="MB")
    # What processes share is divided among them, so only the sum compares like with like. In ours, started warm, the
    # rest is the process that workers are forked from, and those that are parked for the next generation.
    results.add("all but the ranks: PSS", contender.title, [launcher + memory + rest], unit="MB")


def _wait_for_ranks(launch: Launch, ranks: int) -> set[int]:
    until = time.monotonic() + 90
    path = launch.folder / "ready"
    while time.monotonic() < until:
        pids = {int(line) for line in path.read_text().split()} if path.exists() else set()
        if len(pids) == ranks:
            return pids
        if launch.process.poll() is not None:
            raise LaunchFailedError(f"ended early: {launch.last_words()}")
        time.sleep(0.05)
    raise LaunchFailedError(f"{ranks} ranks were not up within 90 s")


def _command_name(pid: int) -> str:
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip()
