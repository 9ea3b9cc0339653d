"""The parts of the multi-node benchmark: its judgement of journals, its options, and two real namespaces."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.nodes.__main__ import parse_options, table
from benchmarks.nodes.agents import seconds_to_the_next
from benchmarks.nodes.chaos import STEPS, run_job
from benchmarks.nodes.faults import FAULTS, find
from benchmarks.nodes.job import Job, Launch, TooLateError, launcher_options, lowest_count
from benchmarks.nodes.journal import Journals, Note, groups, overlaps, recovery_seconds
from benchmarks.nodes.namespaces import Machines, why_impossible
from benchmarks.nodes.process_table import children, is_running, number_inside
from benchmarks.nodes.scale import real_restart
from benchmarks.nodes.training import Ranks, digest, first_weights, gradient, undisturbed_digest, update
from benchmarks.nodes.tries import Result

pytestmark = pytest.mark.benchmark_guard

SECOND = 10**9


def note(seconds: float, event: str, group: str, **more: Any) -> Note:
    """A line of a journal."""
    fields = {"generation": 0, "rank": 0, "world": 2, "step": 0, "node": "node0", "pid": 5, "local_rank": 0, **more}
    return Note(t=int(seconds * SECOND), event=event, group=group, **fields)


TWO_GROUPS = [
    note(1.0, "started", ""),
    note(2.0, "first_all_reduce", "a"),
    note(2.1, "first_all_reduce", "a", rank=1, node="node1"),
    note(2.5, "step", "a"),
    note(2.5, "step", "a", rank=1, node="node1"),
    note(6.0, "first_all_reduce", "b", generation=1),
    note(6.5, "step", "b", generation=1, step=1),
    note(7.0, "done", "b", generation=1, step=2, digest="d"),
]


def test_groups_are_those_that_have_met_in_their_order() -> None:
    first, second = groups(reversed(TWO_GROUPS))

    assert (first.name, first.nodes, first.formed_ns, first.steps) == ("a", ("node0", "node1"), 2 * SECOND, 1)
    assert (second.name, second.generation, second.digests) == ("b", 1, ("d",))


@pytest.mark.parametrize("event", ["step", "checkpoint_begin", "checkpoint"])
def test_work_of_a_group_after_the_next_has_met_is_an_overlap(event: str) -> None:
    assert overlaps(TWO_GROUPS) == []

    (sentence,) = overlaps([*TWO_GROUPS, note(6.25, event, "a", node="node1", step=7)])

    assert f"noted {event} 7 on node1 0.250 s after group b" in sentence


def test_the_end_of_an_earlier_group_is_no_overlap() -> None:
    assert overlaps([*TWO_GROUPS, note(6.25, "done", "a")]) == []


def test_recovery_counts_from_the_first_fault_to_the_group_that_works_after_the_last() -> None:
    assert recovery_seconds(TWO_GROUPS, 3 * SECOND) == 3.0
    assert recovery_seconds(TWO_GROUPS, 1 * SECOND) == 1.0
    assert recovery_seconds(TWO_GROUPS, 1 * SECOND, 5 * SECOND) == 5.0
    assert recovery_seconds(TWO_GROUPS, 6 * SECOND + 1) is None
    assert recovery_seconds(TWO_GROUPS[:6], 3 * SECOND) is None, "a group that has done no step has not gone on"


def test_journals_are_read_as_they_grow_whole_lines_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "FT_RESTART_COUNT": "2"}.items():
        monkeypatch.setenv(name, value)
    ranks, journals = Ranks(tmp_path), Journals(tmp_path)
    ranks.note("started")
    (started,) = journals.notes()
    assert (started.rank, started.world, started.local_rank, started.generation) == (3, 4, 1, 2)
    assert started.pid == os.getpid()

    ranks.group = "g"
    ranks.note("step", 7)
    (path,) = (tmp_path / "journal").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert len(journals.notes()) == 1
    path.write_bytes(whole)
    assert [one.event for one in journals.notes()] == ["started", "step"]


@pytest.mark.parametrize("world", [2, 5, 8])
def test_the_training_is_bitwise_equal_for_every_number_of_ranks(world: int) -> None:
    weights = first_weights()
    for step in range(6):
        shares = [gradient(weights, step, rank, world) for rank in range(world)]
        assert all(share.any() for share in shares)
        weights = update(weights, torch.stack(shares).sum(0))

    assert digest(weights) == undisturbed_digest(6)
    assert undisturbed_digest(6) != undisturbed_digest(7)


def test_a_checkpoint_names_its_writers_and_is_what_the_next_group_begins_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    ranks = Ranks(tmp_path)
    ranks.group, ranks.members = "g", [[0, 1, 17]]
    weights = update(first_weights(), gradient(first_weights(), 0, 0, 1))
    ranks.save(20, first_weights())
    ranks.save(100, weights)

    held = torch.load(tmp_path / "checkpoints" / "step-000100.pt", weights_only=True)
    assert (held["group"], held["world"], held["rank_node_pid"]) == ("g", 1, [[0, 1, 17]])
    found, step = ranks._newest()
    assert (step, digest(found)) == (100, digest(weights))
    events = [(one.event, one.step) for one in Journals(tmp_path).notes()]
    assert events == [(event, step) for step in (20, 100) for event in ("checkpoint_begin", "checkpoint")]


def test_given_options_replace_the_standard_ones() -> None:
    assert launcher_options(3, ())[:2] == ["--nnodes", "3"]
    options = launcher_options(3, ["--nnodes=2:4", "--rdzv_endpoint", "node0:1"])
    assert options[-3:] == ["--nnodes=2:4", "--rdzv_endpoint", "node0:1"]
    assert not {"--nnodes", "--rdzv-backend", "--rdzv-endpoint"} & set(options)
    assert lowest_count(options) == 2
    assert lowest_count(launcher_options(3, ())) == 3


def test_a_fault_may_have_seconds_of_its_own() -> None:
    assert find("cut") == (FAULTS["cut"], 2.0)
    assert find("cut:0.5") == (FAULTS["cut"], 0.5)
    assert parse_options(["--faults", "none,cut:3", "--", "--nnodes", "2:4"]).faults == ("none", "cut:3")
    assert parse_options(["--", "--nnodes", "2:4"]).extra == ["--nnodes", "2:4"]


@pytest.mark.parametrize("name", ["flood", "cut:long"])
def test_an_unknown_fault_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(["--faults", name])
    assert f"no fault {name}" in capsys.readouterr().err


def test_the_table_has_a_row_for_each_fault() -> None:
    good = Result("ft", "cut:2", True, True, 1.0, 2, (), {"node0": 0}, (), 0.5)
    bad = good._replace(is_equal=False, seconds=4.0, overlaps=("two",), notes=("slow",))
    lost = good._replace(fault="power-off", is_completed=False, is_equal=False, seconds=None)

    assert table([good, bad, lost])[2:] == [
        "| ft | cut:2 | 2 | 2 | 1 | 1 | 2.50 | 4.00 | slow |",
        "| ft | power-off | 1 | 0 | 0 | 0 | - | - |  |",
    ]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    problem = why_impossible()
    if problem is not None:
        pytest.skip(problem)
    with Machines(2, tmp_path / "machines") as made:
        yield made


@pytest.fixture
def on_node(machines: Machines, tmp_path: Path) -> Callable[[int, str], subprocess.Popen[bytes]]:
    """Start Python source on a node; its output goes to ``tmp_path / "output"``."""

    def start(index: int, source: str) -> subprocess.Popen[bytes]:
        with (tmp_path / "output").open("ab") as output:
            return machines.nodes[index].start(
                [sys.executable, "-c", source], output=output, environment=dict(os.environ), folder=tmp_path
            )

    return start


def until(path: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a file has a text."""
    watched = subprocess.run(
        ["timeout", "60", "sh", "-c", 'until grep -q -- "$1" "$2"; do sleep 0.02; done', "sh", text, str(path)],
        check=False,
    )
    assert watched.returncode == 0, f"no {text!r}: {path.read_text()} ({process.poll()})"


SERVER = """
import os, socket
listener = socket.create_server(("", 999))
print("listens on", os.uname().nodename, flush=True)
connection, _ = listener.accept()
try:
    while word := connection.recv(100):
        print("received", word.decode(), flush=True)
    print("was closed", flush=True)
except OSError as error:
    print("failed", error, flush=True)
"""
CLIENT = """
import socket, time
connection = socket.create_connection(("node0", 999), 30)
connection.sendall(b"first")
time.sleep(600)
"""


def test_two_nodes_talk_and_a_lost_one_is_silence(
    machines: Machines, on_node: Callable[[int, str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    server = on_node(0, SERVER)
    until(tmp_path / "output", "listens on node0", server)
    on_node(1, CLIENT)
    until(tmp_path / "output", "received first", server)
    (client_pid,) = machines.nodes[1].processes()
    inside = number_inside(client_pid)
    assert inside is not None
    assert machines.nodes[1].outside(inside) == client_pid

    machines.nodes[1].power_off()

    assert not is_running(client_pid)
    assert machines.nodes[1].processes() == []
    with pytest.raises(subprocess.TimeoutExpired):  # a FIN or a RST would end it
        server.wait(0.5)
    machines.nodes[1].power_on()
    again = on_node(1, 'import os; print("again on", os.uname().nodename)')
    assert again.wait(60) == 0
    assert "again on node1" in (tmp_path / "output").read_text()


def test_a_healed_link_delivers_what_was_sent_while_it_was_cut(
    machines: Machines, on_node: Callable[[int, str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    server = on_node(0, SERVER)
    until(tmp_path / "output", "listens on", server)
    os.mkfifo(tmp_path / "go")
    client = on_node(1, CLIENT.replace("time.sleep(600)", 'open("go").read(); connection.sendall(b"second")'))
    until(tmp_path / "output", "received first", server)

    machines.nodes[1].cut()
    (tmp_path / "go").write_text("")
    assert client.wait(60) == 0
    with pytest.raises(subprocess.TimeoutExpired):
        server.wait(0.5)
    assert "second" not in (tmp_path / "output").read_text()
    machines.nodes[1].heal()

    assert server.wait(60) == 0
    assert "received second" in (tmp_path / "output").read_text()
    assert "was closed" in (tmp_path / "output").read_text()


def test_what_a_killed_launcher_leaves_lives_on_until_the_node_is_off(
    machines: Machines, on_node: Callable[[int, str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    launcher = on_node(
        1, 'import subprocess; c = subprocess.Popen(["sleep", "600"]); print("started", flush=True); c.wait()'
    )
    until(tmp_path / "output", "started", launcher)
    (pid,) = children(launcher.pid)
    (left,) = children(pid)

    os.kill(pid, signal.SIGKILL)

    assert launcher.wait(60) == -signal.SIGKILL
    assert machines.nodes[1].processes() == [left]
    assert is_running(left)
    machines.close()
    assert not is_running(left)


def test_victims_are_of_the_newest_group_and_never_the_host_of_the_store(tmp_path: Path) -> None:
    job = Job(Machines(4, tmp_path / "machines"), tmp_path / "shared")
    (tmp_path / "shared" / "journal").mkdir()
    met = [note(1, "first_all_reduce", "a", node=f"node{index}") for index in (0, 1, 2)]
    met += [note(2, "first_all_reduce", "b", node=f"node{index}") for index in (0, 3, 1)]
    lines = "".join(f"{json.dumps(one._asdict())}\n" for one in met)
    (tmp_path / "shared" / "journal" / "all.jsonl").write_text(lines)

    assert job.victims() == [1]
    assert job.victims(2) == [1, 3]
    with pytest.raises(LookupError, match="has 2 node"):
        job.victims(3)


def test_a_job_is_completed_when_every_rank_of_the_newest_group_is(tmp_path: Path) -> None:
    job = Job(Machines(4, tmp_path / "machines"), tmp_path / "shared")
    (tmp_path / "shared" / "journal").mkdir()
    assert not job.is_completed()
    with (tmp_path / "shared" / "journal" / "all.jsonl").open("a") as file:
        for one in (*TWO_GROUPS, note(8, "done", "b", digest="d", rank=1)):
            file.write(f"{json.dumps(one._asdict())}\n")
            file.flush()
            assert job.is_completed() == (one.t == 8 * SECOND)


def test_a_stopped_launcher_goes_on_or_is_killed_alone_or_with_its_node(
    machines: Machines, on_node: Callable[[int, str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    source = 'import time; print("sleeps", flush=True); time.sleep(600)'
    launches = [Launch(on_node(0, source), tmp_path / "output"), Launch(on_node(1, source), tmp_path / "output")]
    for launch in launches:
        launch.signal(signal.SIGSTOP)
        _, status = os.waitpid(launch.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    launches[0].signal(signal.SIGKILL)

    assert launches[0].process.wait(60) == -signal.SIGKILL
    machines.nodes[1].power_off()
    assert launches[1].exit_code == -signal.SIGKILL


@pytest.mark.long
def test_a_job_whose_launchers_have_ended_waits_no_longer(machines: Machines, tmp_path: Path) -> None:
    job = Job(machines, tmp_path / "shared", members=1, launcher="torchrun", options=["--no-such-option"])
    job.start(0)

    with pytest.raises(TooLateError, match="every launcher has ended, but the first group did not happen"):
        job.wait_for(job.groups, 120, "the first group")
    assert job.launches[0][-1].exit_code == 2
    assert "--no-such-option" in job.launches[0][-1].text()


def test_nodes_are_gone_after_a_failure_in_the_block(machines: Machines, tmp_path: Path) -> None:
    started: list[tuple[subprocess.Popen[bytes], int]] = []

    def fail() -> None:
        with Machines(1, tmp_path / "others") as others, (tmp_path / "output").open("wb") as output:
            process = others.nodes[0].start(["sleep", "600"], output=output, environment=os.environ, folder=tmp_path)
            while not (pids := children(process.pid)):
                assert process.poll() is None
            started.append((process, pids[0]))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    ((process, pid),) = started
    assert process.returncode == -signal.SIGKILL
    assert not is_running(pid)
    assert machines.nodes[0].is_on, "the same addresses on another bridge are another job's"


def test_nodes_go_with_the_process_that_made_them(tmp_path: Path) -> None:
    problem = why_impossible()
    if problem is not None:
        pytest.skip(problem)
    source = """
import os, sys
from pathlib import Path
from benchmarks.nodes.namespaces import Machines
from benchmarks.nodes.process_table import all_pids
with Machines(2, Path(sys.argv[1])) as machines:
    first = machines.nodes[0].start(["sleep", "600"], output=sys.stderr.buffer, environment=os.environ,
                                    folder=machines.folder)
    while not machines.nodes[0].processes():
        pass
    print(*machines.nodes[0].processes(), *machines.holders(), flush=True)
    sys.stdin.read()
"""
    root = str(Path(__file__).parents[2])
    maker = subprocess.Popen(
        [sys.executable, "-c", source, str(tmp_path)], env={**os.environ, "PYTHONPATH": root},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with maker:
        assert maker.stdout is not None
        pids = [int(word) for word in maker.stdout.readline().split()]
        pidfds = [os.pidfd_open(pid) for pid in pids]
        maker.kill()
        for pidfd in pidfds:
            assert select.select([pidfd], [], [], 60)[0], "a process has outlived who made it"
            os.close(pidfd)
    assert pids


def test_control_planes_with_real_sockets_restart() -> None:
    seconds, messages = real_restart(3)

    assert seconds > 0
    assert 8 <= messages < 50  # a node sends three and gets five; renewals of a slow restart come on top


@pytest.mark.long
def test_launchers_start_the_next_generation_after_a_kill(tmp_path: Path) -> None:
    assert len(seconds_to_the_next(2, 1, tmp_path)) == 1


@pytest.mark.long
@pytest.mark.skipif(bool(why_impossible()), reason=str(why_impossible()))
def test_a_job_with_random_losses(tmp_path: Path) -> None:
    outcome = run_job(0, tmp_path, undisturbed_digest(STEPS))

    assert outcome.problems == ()
    assert outcome.faults
    assert outcome.generations > 1
