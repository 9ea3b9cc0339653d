"""Parked workers and their zygote, killed, stopped and stuck: every generation starts, in bounded time.

Zygotes, parked and spawned workers are real processes; the zygotes import no torch, so that they are there at once.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from pathlib import Path

import pytest

from launcher.processes.handles import become_subreaper
from launcher.workers.parked import ParkedWorker
from launcher.workers.script_settings import ImportSettings
from launcher.workers.spawn import Launch
from launcher.workers.warm_pool import WarmPool
from launcher.workers.warm_starter import WarmStarter
from launcher.workers.zygote_handle import ZygoteHandle
from launcher.zygote.protocol import ImportsDiffer

PATIENCE = 180.0


class Nursery:
    """A starter, and workers that write down how they were started."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder
        self.said = []
        self.now_ahead = 0.0
        self.pids = set()
        self.starter = None
        self.script = folder / "script.py"
        self.script.write_text(
            "import os, sys\n"
            "warm = 'warm' if 'attrs' in sys.modules else 'spawned'\n"
            f"name = os.path.join({str(folder)!r}, os.environ['RANK'] + '-' + os.environ['ROUND'])\n"
            "descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n"
            "os.write(descriptor, f'{warm} {os.getpid()} {os.environ.get(\"OMP_NUM_THREADS\")}\\n'.encode())\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(folder))

    def open(self, preload=(), settings=None):
        zygote = ZygoteHandle.by_exec(preload, dict(os.environ))
        pool = WarmPool(zygote, preload, self.said.append, settings, self.clock)
        self.starter = WarmStarter(pool, self.said.append, self.clock)
        return self.starter

    def clock(self):
        return time.monotonic() + self.now_ahead

    def start(self, round_=0, count=2):
        """One generation; how each of its workers says that it was started."""
        launches = {
            rank: Launch(
                command=(sys.executable, "-u", str(self.script)),
                environment={"RANK": str(rank), "ROUND": str(round_)},
                local_rank=rank,
            )
            for rank in range(count)
        }
        pids = self.starter.start_all(launches)
        assert sorted(pids) == list(range(count))
        return [self._told_by(rank, round_, pid) for rank, pid in pids.items()]

    def _told_by(self, rank, round_, pid):
        self.pids.add(pid)
        pidfd = os.pidfd_open(pid)
        assert select.select([pidfd], [], [], PATIENCE)[0], "the worker does not end"
        os.close(pidfd)
        assert os.waitpid(pid, 0)[1] == 0
        (line,) = (self.folder / f"{rank}-{round_}").read_text().splitlines()  # the script has run once
        how, told, _ = line.split()
        assert int(told) == pid
        return how

    def until(self, probe, what):
        """Tend, as the agent does, until ``probe`` gives something true."""
        end = time.monotonic() + PATIENCE
        while not (found := probe()):
            assert time.monotonic() < end, f"no {what}; it said {self.said}"
            select.select(self.starter.descriptors(), [], [], 0.05)
            self.starter.maintain()
        return found

    def parked(self):
        return [pid for pid in self.starter.children() if comm(pid) == "ft_parked"]

    def zygote(self):
        return next((pid for pid in self.starter.children() if comm(pid) != "ft_parked"), None)

    def fill(self, count=2):
        """Have workers parked, as between two generations."""
        self.until(
            lambda: self.starter.ensure_ready(count) or len(self.starter._pool._idle) == count,
            f"{count} parked workers",
        )


def comm(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def stop(pid):
    """Stop a process and wait until it is stopped."""
    os.kill(pid, signal.SIGSTOP)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        os.sched_yield()


@pytest.fixture
def nursery(tmp_path, monkeypatch):
    monkeypatch.setattr("launcher.processes.handles._adopter", 0)  # put back at the end: other tests share this process
    become_subreaper()
    nursery = Nursery(tmp_path, monkeypatch)
    yield nursery
    if nursery.starter is not None:
        nursery.starter.close()
    end = time.monotonic() + PATIENCE
    while (left := children()) and time.monotonic() < end:
        for line in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(int(line.split()[0]), os.WNOHANG)
        select.select([], [], [], 0.01)
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)
    assert not left, f"left behind: {left}"


def children():
    return [
        f"{pid} {comm(int(pid))}"
        for task in os.listdir("/proc/self/task")
        for pid in Path(f"/proc/self/task/{task}/children").read_text().split()
        if comm(int(pid)).startswith("ft_")
    ]


def test_generations_come_from_parked_workers(nursery):
    """The first one waits for the zygote, the next ones find theirs parked."""
    nursery.open()
    assert nursery.start(0) == ["warm", "warm"]
    nursery.fill()
    assert nursery.start(1) == ["warm", "warm"]
    assert nursery.said == []


def test_a_stopped_parked_worker_is_not_handed_the_order(nursery):
    """Its place is taken by a spawned one at once."""
    nursery.open()
    nursery.fill()
    stop(nursery.parked()[0])
    assert sorted(nursery.start(0)) == ["spawned", "warm"]
    assert "a parked worker is stopped; another takes its place" in nursery.said


@pytest.mark.parametrize(
    ("number", "what"), [(signal.SIGSTOP, "is stopped"), (signal.SIGKILL, "was killed by SIGKILL")]
)
def test_a_worker_that_is_struck_while_it_is_handed_over_is_replaced_and_it_is_said_how(
    nursery, monkeypatch, number, what
):
    """The order is in its socket; one that is stopped never runs the script, also not when it is continued."""
    nursery.open()
    nursery.fill()
    hand_over = ParkedWorker.hand_over
    victims = []

    def struck_first(parked, order):
        if not victims:
            victims.append(parked.pid)
            stop(parked.pid)  # so that it has not begun when it is killed
            assert hand_over(parked, order)
            os.kill(parked.pid, number)
            return True
        return hand_over(parked, order)

    monkeypatch.setattr(ParkedWorker, "hand_over", struck_first)
    assert nursery.start(0) == ["spawned", "warm"]
    assert victims[0] not in nursery.pids
    assert f"local rank(s) 0: the parked worker {what} before the script began; spawned instead" in nursery.said


def test_a_worker_that_stalls_before_its_first_line_is_replaced(nursery):
    """Alive, not stopped, and silent: it is given a second."""
    (nursery.folder / "fake_staller.py").write_text(
        "import sys, threading, types\n"
        "stall = types.ModuleType('numpy.random')\n"
        "stall.seed = lambda: threading.Event().wait()\n"  # what every warm worker calls
        "sys.modules['numpy.random'] = stall\n"
    )
    nursery.open(["fake_staller"])
    nursery.fill()
    assert nursery.start(0) == ["spawned", "spawned"]
    assert "local rank(s) 0, 1: the parked worker did not start within 1 s; spawned instead" in nursery.said


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_zygote_is_replaced_while_the_job_runs(nursery, number):
    """Killed or stopped: nobody has to ask it for anything to find out."""
    nursery.open()
    nursery.fill()
    lost = nursery.zygote()
    os.kill(lost, number)
    nursery.until(lambda: nursery.said, "word of the loss")
    nursery.until(lambda: nursery.zygote() not in (None, lost), "new zygote")
    nursery.fill()
    assert nursery.start(0) == ["warm", "warm"]
    (line,) = nursery.said
    assert ("lost" if number == signal.SIGKILL else "stopped") in line


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_parked_worker_is_replaced_while_the_job_runs(nursery, number):
    """Seen at the next look; the zygote forks another."""
    nursery.open()
    nursery.fill()
    lost = nursery.parked()[0]
    os.kill(lost, number)
    nursery.until(lambda: nursery.said, "word of the loss")
    nursery.fill()
    assert lost not in nursery.parked()
    assert nursery.start(0) == ["warm", "warm"]


def test_a_zygote_that_is_stopped_when_a_generation_starts_does_not_hold_it_up(nursery):
    """No worker is parked, and the one who could fork some is stopped: it is replaced, and waited for briefly."""
    nursery.open()
    nursery.until(lambda: nursery.starter._pool._zygote.has_reported, "report")
    stop(nursery.zygote())
    nursery.starter._has_started = True  # the patience of the first generation is for imports
    assert len(nursery.start(0)) == 2  # spawned, or from a new zygote that was quick enough
    assert "the zygote was stopped; spawning where no parked worker is left" in nursery.said


def test_a_zygote_that_dies_whenever_it_forks_is_given_up(nursery):
    """It reports that it is ready each time; that is no reason to try for ever."""
    (nursery.folder / "fake_dier.py").write_text(
        "import os\ncount = [0]\ndef before():\n    count[0] += 1\n    if count[0] > 1:\n        os._exit(3)\n"
        "os.register_at_fork(before=before)\n"  # the first fork is the probe
    )
    nursery.open(["fake_dier"])
    nursery.until(lambda: nursery.starter.ensure_ready(2) or nursery.zygote() is None, "end of it")
    assert nursery.start(0) == ["spawned", "spawned"]
    assert sum("warm start is off: the zygote does not come up" in line for line in nursery.said) == 1


def test_a_fork_handler_that_stalls_in_the_child_is_found_before_any_worker_is_forked(nursery):
    """As those of some network libraries do: the throw-away fork is killed, workers are spawned."""
    (nursery.folder / "fake_stalling_handler.py").write_text(
        "import os, threading\nos.register_at_fork(after_in_child=lambda: threading.Event().wait())\n"
    )
    nursery.open(["fake_stalling_handler"])
    assert nursery.start(0) == ["spawned", "spawned"]
    assert any("os.register_at_fork" in line for line in nursery.said)


@pytest.mark.long
def test_a_fork_that_stalls_later_costs_a_second_and_then_the_zygote(nursery):
    """The probe went well, parking does not: the processes that are stuck end with their zygote."""
    (nursery.folder / "fake_late_staller.py").write_text(
        "import os, threading\ncount = [0]\ndef after():\n    if count[0] > 1:\n        threading.Event().wait()\n"
        "def before():\n    count[0] += 1\n"
        "os.register_at_fork(before=before, after_in_child=after)\n"
    )
    nursery.open(["fake_late_staller"])
    nursery.until(lambda: nursery.starter._pool._zygote.has_reported, "report")
    nursery.starter._has_started = True  # the patience of the first generation is for imports
    assert nursery.start(0) == ["spawned", "spawned"]
    assert "the zygote has not forked enough workers; until it is ready, workers are spawned" in nursery.said
    nursery.now_ahead = 6.0
    nursery.until(lambda: any("has not forked a worker for 5 s" in line for line in nursery.said), "word of it")


@pytest.mark.long
def test_a_zygote_that_is_stuck_in_an_import_is_waited_for_once(nursery, monkeypatch):
    """Its file system hangs, say: later generations are spawned without waiting, until it is there after all."""
    gate = nursery.folder / "gate"
    os.mkfifo(gate)
    (nursery.folder / "fake_slow_import.py").write_text(f"open({str(gate)!r}).read()\n")
    nursery.open(["fake_slow_import"])
    nursery.starter._has_started = True  # the patience of the first generation is for imports
    assert nursery.start(0) == ["spawned", "spawned"]
    with monkeypatch.context() as patched:
        patched.setattr("launcher.workers.warm_pool.wait_for_any", lambda *_: pytest.fail("it waits again"))
        assert nursery.start(1) == ["spawned", "spawned"]
    with open(gate, "w"):
        pass
    nursery.fill()
    assert nursery.start(2) == ["warm", "warm"]
    assert nursery.said == ["the zygote is still importing; until it is ready, workers are spawned"]


@pytest.mark.long
def test_a_parked_worker_that_is_stopped_at_birth_is_ended(nursery):
    """It is a session of its own by then, follows nobody to death yet, and has said nothing: its maker told its pid."""
    (nursery.folder / "fake_early_stopper.py").write_text(
        "import os, signal\n"
        "real = os.getppid\n"
        "def getppid():\n"
        "    if open('/proc/self/comm').read() == 'ft_parked\\n':\n"
        "        os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    return real()\n"
        "os.getppid = getppid\n"
    )
    nursery.open(["fake_early_stopper"])

    def stopped_ones():
        nursery.starter.ensure_ready(2)
        return [each for each in children() if each.endswith("ft_parked")]

    nursery.until(stopped_ones, "parked worker")
    nursery.until(lambda: "a parked worker was stopped; another takes its place" in nursery.said, "word of it")
    nursery.starter._has_started = True  # the patience of the first generation is for imports
    assert nursery.start(0) == ["spawned", "spawned"]
    # Whatever was left when it is closed is looked for by the fixture.


def test_a_zygote_that_the_system_refuses_processes_is_asked_again_later(nursery):
    """A fake of pids.max: workers are spawned meanwhile, the zygote lives on, and it is said once."""
    full = nursery.folder / "full"
    (nursery.folder / "fake_full_system.py").write_text(
        f"import os\nfork, full = os.fork, {str(full)!r}\ndef refusing():\n    if os.path.exists(full):\n"
        "        raise BlockingIOError(11, 'Resource temporarily unavailable')\n    return fork()\nos.fork = refusing\n"
    )
    nursery.open(["fake_full_system"])
    nursery.until(lambda: nursery.starter._pool._zygote.has_reported, "report")
    zygote = nursery.zygote()
    full.touch()
    assert nursery.start(0) == ["spawned", "spawned"]
    assert nursery.said == [
        "a parked worker cannot be forked: Resource temporarily unavailable; workers are spawned until it can"
    ]
    full.unlink()
    nursery.now_ahead = 3.0
    nursery.fill()
    assert nursery.start(1) == ["warm", "warm"]
    assert nursery.zygote() == zygote


def test_parked_workers_that_end_before_they_are_ready_are_not_forked_without_end(nursery):
    """As with too few descriptors: hundreds a minute were forked, with a line for each."""
    mortal = nursery.folder / "mortal"
    (nursery.folder / "fake_early_death.py").write_text(
        f"import os\nreal, mortal = os.getppid, {str(mortal)!r}\ndef getppid():\n"
        "    if open('/proc/self/comm').read() == 'ft_parked\\n' and os.path.exists(mortal):\n"
        "        os._exit(1)\n    return real()\nos.getppid = getppid\n"
    )
    mortal.touch()
    nursery.open(["fake_early_death"])
    nursery.until(lambda: nursery.starter._pool._zygote.has_reported, "report")
    assert nursery.start(0) == ["spawned", "spawned"]
    assert nursery.said.count("a parked worker was lost; another takes its place") <= 4
    assert nursery.said[-1] == "parked workers end before they are ready; workers are spawned until one does not"
    said = list(nursery.said)
    nursery.now_ahead = 3.0
    assert nursery.start(1) == ["spawned", "spawned"]
    assert nursery.said == said
    mortal.unlink()
    nursery.now_ahead = 6.0
    nursery.fill()
    assert nursery.start(2) == ["warm", "warm"]
    nursery.fill()
    os.kill(nursery.parked()[0], signal.SIGKILL)
    nursery.until(lambda: nursery.said[len(said) :] == ["a parked worker was lost; another takes its place"], "word")


def test_a_zygote_that_cannot_be_started_is_tried_again_later(nursery, monkeypatch):
    """A fake of pids.max in the launcher itself: no traceback, the job goes on with spawned workers."""
    nursery.open()
    nursery.fill()
    by_exec, tried = ZygoteHandle.by_exec, []

    def refusing(*arguments):
        tried.append(arguments)
        if len(tried) < 3:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return by_exec(*arguments)

    monkeypatch.setattr(ZygoteHandle, "by_exec", refusing)
    for pid in (nursery.zygote(), *nursery.parked()):
        os.kill(pid, signal.SIGKILL)
    nursery.until(lambda: tried, "attempt")
    assert nursery.start(0) == ["spawned", "spawned"]
    nursery.now_ahead = 3.0
    nursery.until(lambda: len(tried) == 2, "second attempt")
    nursery.now_ahead = 6.0
    nursery.fill()
    assert nursery.start(1) == ["warm", "warm"]
    assert sum("a zygote cannot be started" in line for line in nursery.said) == 1


def test_an_order_for_which_there_is_no_descriptor_left_is_no_end(nursery, monkeypatch):
    """A fake of a full table of descriptors, for this one call: that worker is spawned."""
    nursery.open()
    nursery.fill()
    memfd_create, made = os.memfd_create, []

    def refusing(*arguments):
        made.append(arguments)
        if len(made) == 1:
            raise OSError(24, "Too many open files")
        return memfd_create(*arguments)

    monkeypatch.setattr(os, "memfd_create", refusing)
    assert sorted(nursery.start(0)) == ["spawned", "warm"]


def test_variables_that_are_read_at_import_get_a_zygote_of_their_own(nursery):
    """What the script sets, the zygote's imports find; the worker itself finds what it was started with."""
    nursery.script.write_text("import os\nos.environ['OMP_NUM_THREADS'] = '7'\n" + nursery.script.read_text())
    nursery.open(settings=ImportSettings({"OMP_NUM_THREADS": "7"}))
    assert nursery.start(0) == ["warm", "warm"]
    assert Path(f"/proc/{nursery.zygote()}/environ").read_bytes().count(b"OMP_NUM_THREADS=7") == 1
    assert nursery.said == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("torch.cuda._is_in_bad_fork = lambda: os.getpid() != me", "has used a device"),
        ("raise RuntimeError('no')", "cannot import 'fake_poisoner': RuntimeError: no"),
        (
            "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
            "started 1 thread(s)",
        ),
    ],
    ids=["device", "raises", "thread"],
)
def test_a_preload_that_would_harm_workers_switches_warm_start_off(nursery, text, why):
    """A fake of a poisoned CUDA (there is none here): torch says so in a forked child only."""
    (nursery.folder / "fake_poisoner.py").write_text(
        "import os, sys, types\nme = os.getpid()\ntorch = types.SimpleNamespace(cuda=types.SimpleNamespace())\n"
        f"sys.modules['torch'] = torch\n{text}\n"
    )
    nursery.open(["fake_poisoner"])
    assert nursery.start(0) == ["spawned", "spawned"]
    (line,) = nursery.said
    assert "warm start is off: " in line
    assert why in line


def test_a_preload_that_reads_what_each_worker_has_of_its_own_is_left_out(nursery):
    """As some frameworks read RANK while they are imported; the others stay, and workers are warm."""
    (nursery.folder / "fake_rank_reader.py").write_text("import os\nRANK = int(os.environ.get('RANK', 0))\n")
    nursery.open(["json", "fake_rank_reader"])
    assert nursery.start(0) == ["warm", "warm"]
    (line,) = nursery.said
    assert "'fake_rank_reader' is left out: fake_rank_reader reads RANK while it is imported" in line


def test_workers_of_one_zygote_draw_numbers_of_their_own(nursery):
    """A fork has its parent's generators: augmentations would be the same on all ranks."""
    nursery.script.write_text(
        nursery.script.read_text()
        + "import multiprocessing, numpy, random\nkey = multiprocessing.current_process().authkey\n"
        "open(f'{name}-drawn', 'w').write(f'{numpy.random.rand()}\\n{random.random()}\\n{key}')\n"
    )
    nursery.open(["numpy.random", "random", "multiprocessing.process"])
    assert nursery.start(0) == ["warm", "warm"]
    drawn = [(nursery.folder / f"{rank}-0-drawn").read_text().splitlines() for rank in (0, 1)]
    assert all(one != other for one, other in zip(*drawn, strict=True)), drawn


def test_nothing_is_forked_while_a_new_generation_forms_its_group(nursery):
    """Whatever is heard meanwhile; the agent asks once the generation has settled."""
    nursery.open()
    nursery.fill()
    nursery.start(0)
    for _ in range(3):
        nursery.starter.maintain()
    assert nursery.starter._pool._zygote.asked == 0
    assert nursery.parked() == []
    nursery.fill()


def test_what_a_script_sets_before_it_imports_torch_is_heard_even_when_the_job_ends_with_it(nursery):
    nursery.open()
    nursery.fill()
    nursery.start(0)
    (first, *_) = nursery.starter._pool._running._workers
    first.imports.append(ImportsDiffer({"TORCH_LOGS": "+dynamo"}, ()))
    nursery.starter.close()
    assert any("TORCH_LOGS" in line for line in nursery.said)
