"""Deliberate mistakes in what a node does whose lease has run out, and in what its monitor says for a dead launcher."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_THE_FENCE"]

_FENCING = "launcher/monitor/fencing.py"
_DUTIES = "launcher/monitor/last_duties.py"
_TESTS_OF_FENCING = ("tests/launcher/monitor/test_fencing.py",)
_TESTS_OF_DUTIES = ("tests/launcher/monitor/test_last_duties.py",)
_TESTS_OF_THE_WORD = ("tests/launcher/nodes/test_fence.py",)
_TESTS_OF_THE_FAREWELL = ("tests/launcher/nodes/test_farewell.py",)
_TESTS_OF_THE_NODE = ("tests/launcher/agent/test_fenced_node.py",)

MUTANTS_OF_THE_FENCE = (
    # ---- the word ----
    Mutant(
        "the second fence is not started again",
        "launcher/agent/generation.py",
        "            self._resources.second_fence.ensure()\n",
        "            pass\n",
        ("tests/e2e/test_nodes.py",),
    ),
    Mutant(
        "the second fence reads no lease",
        "launcher/monitor/second_fence.py",
        "    start_fence(lease, ",
        "    start_fence(0, ",
        ("tests/launcher/agent/test_second_fence.py",),
    ),
    Mutant(
        "a damaged lease is believed",
        "launcher/nodes/fence.py",
        "if magic == _MAGIC and word == ~complement and word >= 0:",
        "if True:",
        _TESTS_OF_THE_WORD,
    ),
    Mutant(
        "a lease that is being written is not read again",
        "launcher/nodes/fence.py",
        "_TRIES = 5\n",
        "_TRIES = 1\n",
        _TESTS_OF_THE_WORD,
    ),
    # ---- the fence ----
    Mutant(
        "a lease that has run out is believed at the first look",
        _FENCING,
        "            left_ns = self._left_ns()  # believed when it is seen twice\n",
        "            pass\n",
        _TESTS_OF_FENCING,
    ),
    Mutant(
        "the fence sleeps past the end of the lease",
        _FENCING,
        "max(0, min(left_ns, _LONGEST_SLEEP_NS))",
        "_LONGEST_SLEEP_NS",
        _TESTS_OF_FENCING,
    ),
    Mutant(
        "a damaged lease lifts the fence",
        _FENCING,
        "            self._is_damaged = True\n            left = ",
        "            self._is_damaged, self._known_ns = True, 0\n            left = ",
        _TESTS_OF_FENCING,
    ),
    Mutant(
        "ranks are killed before the launcher is told why",
        _FENCING,
        "                self._tell(Fenced(generation, late_ns))\n            for rank in self._ranks.values():\n"
        "                if rank.pidfd is not None:\n                    send_signal(rank.pidfd, signal.SIGKILL)\n",
        "                pass\n            for rank in self._ranks.values():\n"
        "                if rank.pidfd is not None:\n                    send_signal(rank.pidfd, signal.SIGKILL)\n"
        "                    time.sleep(0.1)\n"
        "            self._tell(Fenced(generation, late_ns))\n",
        _TESTS_OF_FENCING,
    ),
    Mutant(
        "the fence is told at each look",
        _FENCING,
        "if is_new := self._reported != (generation, self._known_ns):",
        "if is_new := True:",
        _TESTS_OF_FENCING,
    ),
    Mutant(
        "what a rank has started outlives the fence",
        _FENCING,
        "left = end_sessions(sessions, _ROUND_SECONDS) | end_carriers",
        "left = end_carriers",
        _TESTS_OF_FENCING,
    ),
    Mutant(
        "a rank that the monitor does not know outlives the fence",
        _FENCING,
        " | end_carriers(marks, _ROUND_SECONDS)\n",
        "\n        marks = ()\n",
        _TESTS_OF_FENCING,
    ),
    Mutant(
        "a rank that is started behind the fence lives until the next look",
        _FENCING,
        "            _close(former)\n        self._poke()\n",
        "            _close(former)\n",
        _TESTS_OF_FENCING,
    ),
    Mutant(
        "one failure ends the fence",
        _FENCING,
        "                sleep_ns = _TRY_AGAIN_NS\n",
        "                return\n",
        _TESTS_OF_FENCING,
    ),
    Mutant(
        "ranks that are asked to end are no longer fenced",
        "launcher/monitor/monitor.py",
        "                if order.is_over:\n",
        "                if self._fence is not None:\n                    self._fence.forget(order.generation)\n"
        "                if order.is_over:\n",
        _TESTS_OF_FENCING,
    ),
    Mutant(
        "a generation that is over is fenced for ever",
        "launcher/monitor/monitor.py",
        "                        self._fence.forget(order.generation)\n",
        "                        pass\n",
        _TESTS_OF_FENCING,
    ),
    Mutant(
        "a report on a former generation makes the present one a fenced one",
        "launcher/agent/monitor_reports.py",
        "if report.generation in (-1, current.number):",
        "if True:",
        _TESTS_OF_THE_NODE,
    ),
    Mutant(
        "the monitor is not given the lease",
        "launcher/agent/monitor_handle.py",
        "            lease=self._lease,\n",
        "",
        _TESTS_OF_THE_NODE,
    ),
    # ---- the farewell ----
    Mutant(
        "other nodes are told although a process of a rank's session lives",
        _DUTIES,
        "session_members(sessions) or not",
        "not",
        _TESTS_OF_DUTIES,
    ),
    Mutant(
        "other nodes are told although a marked process lives",
        _DUTIES,
        "    if left or session",
        "    if session",
        _TESTS_OF_DUTIES,
    ),
    Mutant(
        "other nodes are told although a rank has not exited",
        _DUTIES,
        " or not _have_exited(pidfds, _SLOWEST_EXIT_SECONDS):",
        ":",
        _TESTS_OF_DUTIES,
    ),
    Mutant(
        "other nodes are told before the ranks are killed",
        _DUTIES,
        "    message = _last_message(run_folders)\n",
        "    message = _last_message(run_folders)\n    if message is not None:\n"
        "        message.send(_FAREWELL_SECONDS)\n",
        _TESTS_OF_DUTIES,
    ),
    Mutant(
        "the message is looked for where its folder was",
        _DUTIES,
        "    end_sessions(sessions, timeout_seconds=5.0)\n    remove_folders(run_folders)\n",
        "    end_sessions(sessions, timeout_seconds=5.0)\n    remove_folders(run_folders)\n"
        "    message = _last_message(run_folders)\n",
        _TESTS_OF_DUTIES,
    ),
    Mutant(
        "a damaged last message is sent",
        "launcher/nodes/farewell.py",
        '    if check != b"%08x" % zlib.crc32(text):\n',
        "    if False:\n",
        _TESTS_OF_THE_FAREWELL,
    ),
    Mutant(
        "one address that is wrong keeps the others from being told",
        "launcher/nodes/farewell.py",
        "with contextlib.suppress(OSError, ValueError):\n                    if send_once",
        "with contextlib.suppress(OSError):\n                    if send_once",
        _TESTS_OF_THE_FAREWELL,
    ),
)
