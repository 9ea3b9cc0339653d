"""The deliberate mistakes: in the parts that decide, kill and restart. Each must be found by a test.

``old`` must stand in its file exactly once: a mistake that can no longer be made there is an error, and is to be put
where that decision is taken now.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["MUTANTS", "Mutant"]


class Mutant(NamedTuple):
    """One mistake."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """What should find it: pytest's arguments, the quick ones first."""


MUTANTS = (
    # ---- what the tests of the first version did not find ----
    Mutant(
        "a stuck monitor is never replaced",
        "launcher/keeping.py",
        "        if now_ns - silent_since_ns > STUCK_NS:\n",
        "        if False:\n",
        ("tests/launcher/test_keeping.py",),
    ),
    Mutant(
        "the keeper does not check its own oversleep",
        "launcher/keeping.py",
        "        if now_ns - self._looked_ns > OVERSLEPT_NS:\n",
        "        if False:\n",
        ("tests/launcher/test_keeping.py",),
    ),
    Mutant(
        "overdue ranks are asked, and waited for, when a generation ends",
        "launcher/generation.py",
        "            at_once=self.condemned | self._overdue(),\n",
        "            at_once=self.condemned,\n",
        ("tests/launcher/test_generation.py",),
    ),
    Mutant(
        "the zygote does not ask about CUDA",
        "launcher/preloading.py",
        "if ask is not None and ask():",
        "if False:",
        ("tests/launcher/test_warm_starter.py",),
    ),
    Mutant(
        "orphans that the launcher has adopted are not reaped",
        "launcher/agent.py",
        "            current.reap_orphans()\n",
        "",
        ("tests/e2e/test_failures.py::test_orphans_that_have_ended_are_collected_while_training_goes_on",),
    ),
    Mutant(
        "the zygote is not renewed when variables that are read at import change",
        "launcher/warm_starter.py",
        "            if zygote.has_reported and not zygote.finds(self._environment):\n",
        "            if False:\n",
        ("tests/launcher/test_warm_starter.py",),
    ),
    Mutant(
        "the second look is not taken",
        "launcher/rounds.py",
        "            late = tuple(deadline for deadline in sighting.late if deadline in before)\n",
        "            late = sighting.late\n",
        ("tests/launcher/test_rounds.py",),
    ),
    # ---- who is late ----
    Mutant(
        "lost time is not given back",
        "launcher/verdict.py",
        "            at_ns += moved_by_ns(deadline.since_ns, at_ns, freezes)\n",
        "            pass\n",
        ("tests/launcher/test_verdict.py",),
    ),
    Mutant(
        "lost time is given back without bound",
        "launcher/lost_time.py",
        "    if lost_ns <= at_ns - since_ns:\n",
        "    if True:\n",
        ("tests/launcher/test_lost_time.py",),
    ),
    Mutant(
        "a fresh monitor believes old deadlines at once",
        "launcher/verdict.py",
        "FRESH_MONITOR_DOUBT_NS = NS\n",
        "FRESH_MONITOR_DOUBT_NS = 0\n",
        ("tests/launcher/test_watch.py",),
    ),
    Mutant(
        "a deadline is late only after it has passed",
        "launcher/verdict.py",
        "        if now_ns >= at_ns:\n",
        "        if now_ns > at_ns:\n",
        ("tests/launcher/test_verdict.py",),
    ),
    Mutant(
        "out-of-section time is limited inside sections",
        "launcher/verdict.py",
        "    if not view.sections and _runs(view.out_of_section_ns):\n",
        "    if _runs(view.out_of_section_ns):\n",
        ("tests/launcher/test_verdict.py",),
    ),
    Mutant(
        "only the first rank whose deadline passed is condemned",
        "launcher/rounds.py",
        "            due = sighting.due_by(seen_ns + DUE_TOGETHER_NS)\n",
        "            due = sighting.due_by(seen_ns)\n",
        ("tests/launcher/test_rounds.py",),
    ),
    Mutant(
        "whoever was due together with a late rank goes, though that one came back",
        "launcher/rounds.py",
        "            if is_answered or not someone_is_late:\n",
        "            if is_answered:\n",
        ("tests/launcher/test_rounds.py",),
    ),
    Mutant(
        "a section that was closed and opened anew counts as never closed",
        "launcher/rounds.py",
        "    return deadline.cause, deadline.slot, deadline.at_ns\n",
        "    return deadline.cause, deadline.slot, 0\n",
        ("tests/launcher/test_rounds.py",),
    ),
    Mutant(
        "a process that was given the number of a dead rank is hit in its place",
        "launcher/watch.py",
        "            if process_start_time(pid) == view.start_time:\n",
        "            if True:\n",
        ("tests/launcher/test_watch.py",),
    ),
    # ---- who is to blame ----
    Mutant(
        "the rank that is ahead is blamed",
        "launcher/blame.py",
        "    behind = [e for e in known if e.iteration == min(iterations)]\n",
        "    behind = [e for e in known if e.iteration == max(iterations)]\n",
        ("tests/launcher/test_blame.py",),
    ),
    # ---- the kill ----
    Mutant(
        "nobody looks once more after the incident was told",
        "launcher/condemn.py",
        "        standing, back = _without_who_waited(incident, *rounds.still_due(standing))\n",
        "        standing, back = standing, []\n",
        ("tests/launcher/test_condemn.py",),
    ),
    Mutant(
        "nobody looks once more after the incident was written",
        "launcher/condemn.py",
        "        standing, withdrawn = _without_who_waited(incident, *rounds.still_due(standing))\n",
        "        standing, withdrawn = standing, []\n",
        ("tests/launcher/test_condemn.py",),
    ),
    Mutant(
        "a mistake while the evidence is taken keeps the stuck rank alive",
        "launcher/condemn.py",
        "    finally:\n        # Once more",
        "    except ZeroDivisionError:\n        raise\n    else:\n        # Once more",
        ("tests/launcher/test_condemn.py",),
    ),
    Mutant(
        "a rank that was spared is never watched again",
        "launcher/condemn.py",
        "        case.rank.acquit()\n",
        "        pass\n",
        ("tests/launcher/test_condemn.py",),
    ),
    Mutant(
        "a stopped rank is not continued, so that it takes no signal but SIGKILL",
        "launcher/condemn.py",
        "                send_signal(pidfd, signal.SIGCONT)  # a stopped process takes the pending signal on waking\n",
        "                pass\n",
        ("tests/launcher/test_condemn.py",),
    ),
    Mutant(
        "a condemned rank that survives its signal is not killed",
        "launcher/monitor.py",
        "and not has_exited(pidfd):\n                    send_signal(pidfd, signal.SIGKILL)\n",
        "and not has_exited(pidfd):\n                    pass\n",
        ("tests/launcher/test_monitor.py",),
    ),
    Mutant(
        "the successor of a condemned rank is killed in its place",
        "launcher/monitor.py",
        "rank.pidfd(view) if view is not None and rank.is_condemned(view) else None",
        "rank.pidfd(view) if view is not None else None",
        ("tests/launcher/test_monitor.py",),
    ),
    Mutant(
        "the monitor does not end the sessions of ranks whose launcher has died",
        "launcher/monitor.py",
        "        end_sessions(set().union(*self._sessions.values()), timeout_seconds=5.0)\n",
        "",
        ("tests/e2e/test_launcher_end.py",),
    ),
    Mutant(
        "a monitor does not notice that its launcher has died",
        "launcher/monitor.py",
        "            if descriptor == self._parent:\n                self._parent_is_alive = False\n",
        "            if descriptor == self._parent:\n                self._poll.unregister(descriptor)\n",
        ("tests/e2e/test_nodes.py::test_the_death_of_a_launcher_frees_the_others",),
    ),
    # ---- generations, agent, workers ----
    Mutant(
        "a condemned rank that ends with 0 has succeeded",
        "launcher/workers.py",
        "worker.exit_code != 0 or worker.local_rank in self.condemned",
        "worker.exit_code != 0",
        ("tests/launcher/test_workers.py", "tests/e2e/test_condemned.py"),
    ),
    Mutant(
        "what a worker started outlives it",
        "launcher/workers.py",
        "        if self._were_asked or not spares_leftovers:\n",
        "        if False:\n",
        ("tests/launcher/test_workers.py", "tests/e2e/test_failures.py"),
    ),
    Mutant(
        "a stopped worker is asked to end, and waited for",
        "launcher/workers.py",
        "worker.local_rank in at_once or (status is not None and status.is_stopped)",
        "worker.local_rank in at_once",
        ("tests/launcher/test_workers.py",),
    ),
    Mutant(
        "whoever insists has to wait all the same",
        "launcher/workers.py",
        "(left := end - time.monotonic()) > 0 and not is_insisted():",
        "(left := end - time.monotonic()) > 0:",
        ("tests/launcher/test_workers.py",),
    ),
    Mutant(
        "a spawned worker outlives a launcher and a monitor that are both killed",
        "launcher/workers.py",
        "        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)\n",
        "",
        ("tests/launcher/test_workers.py",),
    ),
    Mutant(
        "a worker that lives on around a condemned rank holds the restart up for ever",
        "launcher/generation.py",
        "            elif send_signal(worker.pidfd, signal.SIGKILL):\n",
        "            elif False:\n",
        ("tests/launcher/test_generation.py",),
    ),
    Mutant(
        "ranks that lost time with everybody are killed unsaved when the scheduler ends the job",
        "launcher/generation.py",
        "judge(self._cells.view(worker.local_rank), now_ns, freezes)",
        "judge(self._cells.view(worker.local_rank), now_ns)",
        ("tests/launcher/test_generation.py",),
    ),
    Mutant(
        "a verdict that was withdrawn counts as a failure all the same",
        "launcher/generation.py",
        "        self.processes.condemned.discard(local_rank)\n",
        "        pass\n",
        ("tests/launcher/test_generation.py",),
    ),
    Mutant(
        "failures are not counted, so that restarts never end",
        "launcher/agent.py",
        "        self._rendezvous_handler.failures += 1\n",
        "",
        ("tests/e2e/test_failures.py::test_a_rank_that_fails_for_good_ends_the_job_with_1",),
    ),
    Mutant(
        "a signal in the wait before a restart is not heard",
        "launcher/agent.py",
        "            self._wait_for([], left)\n            self._outfit.signals.raise_pending()\n",
        "            self._wait_for([], left)\n",
        ("tests/e2e/test_launcher_end.py::test_a_signal_while_the_group_is_being_restarted_ends_the_job",),
    ),
    # ---- where ranks meet ----
    Mutant(
        "ranks of the last generation are let into the store of the next",
        "launcher/store_host.py",
        "            _turn_away(self._listener)\n",
        "",
        ("tests/launcher/test_store_host.py",),
    ),
    Mutant(
        "a generation meets in the store of the one before",
        "launcher/store_host.py",
        "        self._store = None\n        if self._listener is None:\n            self._store = TCPStore",
        "        if self._listener is None:\n            self._store = self._store or TCPStore",
        ("tests/launcher/test_store_host.py",),
    ),
    Mutant(
        "nodes that have seen fewer failures have more restarts",
        "launcher/rendezvous.py",
        '                "failures": max(failures for _, failures in counts),\n',
        '                "failures": min(failures for _, failures in counts),\n',
        ("tests/launcher/test_rendezvous.py",),
    ),
    Mutant(
        "a node is not told that another has ended the job",
        "launcher/rendezvous.py",
        'if self._round is None or self._has_ended or not _has(self._round, "ft/ended"):',
        "if True:",
        ("tests/launcher/test_rendezvous.py",),
    ),
    # ---- cells ----
    Mutant(
        "a cell is taken over from a process that lives",
        "resilience_core/cell.py",
        "        if owner not in (0, pid) and is_comparable and _is_running(owner, words[START_TIME]):\n",
        "        if False:\n",
        ("tests/resilience_core/test_cell.py",),
    ),
    Mutant(
        "a rank that was started again is held to its predecessor's open sections",
        "resilience_core/cell.py",
        "            words[word] = CLOSED\n        self._slots",
        "            pass\n        self._slots",
        ("tests/resilience_core/test_cell.py",),
    ),
    Mutant(
        "a truncated cell is read",
        "resilience_core/cell.py",
        "        if len(raw) != CELL_SIZE:\n",
        "        if not raw:\n",
        ("tests/launcher/test_watch.py",),
    ),
    # ---- options, configuration, adapters, the nodes' agreement ----
    Mutant(
        "who still waits at the fixed port gets the next generation's store",
        "launcher/store_host.py",
        "            _turn_away(self._listener)\n",
        "",
        ("tests/launcher/test_store_host.py",),
    ),
    Mutant(
        "each node keeps a count of failures of its own",
        "launcher/rendezvous.py",
        'agreed["generation"], agreed["failures"]\n',
        'agreed["generation"], self.failures\n',
        ("tests/launcher/test_rendezvous.py",),
    ),
    Mutant(
        "a static round reads what the last one agreed on",
        "launcher/rendezvous.py",
        'f"ft/{self._attempt if self._is_static else 0}"',
        '"ft/0"',
        ("tests/launcher/test_rendezvous.py",),
    ),
    Mutant(
        "a node that has ended the job leaves before the others have heard it",
        "launcher/rendezvous.py",
        "            while self._has_ended and ",
        "            while False and ",
        ("tests/launcher/test_rendezvous.py",),
    ),
    Mutant(
        "a section timeout on the command line drops those of the file",
        "resilience_core/config_options.py",
        "            value = {**changes.get(key, getattr(config, key)), **value}\n",
        "            value = dict(value)\n",
        ("tests/resilience_core/test_config_options.py",),
    ),
    Mutant(
        "a misspelt option of ours is ignored",
        "resilience_core/config_options.py",
        '        raise ConfigError(f"unknown option {written}{hint}")\n',
        "        return\n",
        ("tests/resilience_core/test_config_options.py",),
    ),
    Mutant(
        "a safety factor below 1 condemns healthy steps",
        "resilience_core/config_values.py",
        "    if not 1 <= ratio <= _LONGEST_SECONDS:\n",
        "    if not 0 <= ratio <= _LONGEST_SECONDS:\n",
        ("tests/resilience_core/test_config.py",),
    ),
    Mutant(
        "the script's own options set the threads of all ranks",
        "launcher/default_threads.py",
        '        if not argument.startswith("-") or argument == "--":\n',
        '        if argument == "--":\n',
        ("tests/launcher/test_default_threads.py",),
    ),
    Mutant(
        "the log folder of a run that goes on is removed",
        "launcher/retention.py",
        "    return written if 0 < began <= ended else None\n",
        "    return written if began else None\n",
        ("tests/launcher/test_retention.py",),
    ),
    Mutant(
        "a simulated fault strikes every generation",
        "resilience_core/faults.py",
        "            if fault.generation not in (None, context.restart_count):\n",
        "            if False:\n",
        ("tests/resilience_core/test_faults.py",),
    ),
    Mutant(
        "a training that was stopped by a signal counts as complete",
        "resilience_core/finished.py",
        '        if reason != "completed" or not self._makes_it:\n',
        "        if not self._makes_it:\n",
        ("tests/adapters/test_ddp.py",),
    ),
    Mutant(
        "a step that an exception leaves stays open",
        "adapters/ddp.py",
        "taken for a rank stuck in a step.\n        self._bus.step_end(iteration=self._iteration)\n",
        "taken for a rank stuck in a step.\n"
        "        if error is None:\n            self._bus.step_end(iteration=self._iteration)\n",
        ("tests/adapters/test_ddp.py",),
    ),
    Mutant(
        "a save within a save ends the section",
        "resilience_core/translation.py",
        "        if not self._saves_open:\n            iteration, began_as = self._save\n",
        "        if True:\n            iteration, began_as = self._save\n",
        ("tests/resilience_core/test_translation.py",),
    ),
    Mutant(
        "rank 0 alone refuses an empty save folder, and its peers wait",
        "adapters/megatron.py",
        "    if folder is None or not os.fspath(folder).strip():\n",
        "    if folder is None:\n",
        ("tests/adapters/test_megatron.py",),
    ),
    # ---- in what keeps the protection up ----
    Mutant(
        "a damaged cell is believed",
        "launcher/watch.py",
        "        return implausible(view, time.monotonic_ns()) or self._usurped(view), view\n",
        "        return None, view\n",
        ("tests/launcher/test_watch.py",),
    ),
    Mutant(
        "a rank whose owner words were damaged is taken for gone",
        "launcher/watch.py",
        "implausible(view, time.monotonic_ns()) or self._usurped(view), view\n",
        "implausible(view, time.monotonic_ns()), view\n",
        ("tests/launcher/test_watch.py",),
    ),
    Mutant(
        "time is lost already where one witness was silent",
        "launcher/lost_time.py",
        "        start_ns = max(some[left][0], others[right][0])\n",
        "        start_ns = min(some[left][0], others[right][0])\n",
        ("tests/launcher/test_lost_time.py", "tests/benchmarks/test_simulate_monitor.py"),
    ),
    Mutant(
        "beats are too rare for short limits",
        "launcher/lost_time.py",
        "BEATS_PER_LIMIT = 16\n",
        "BEATS_PER_LIMIT = 1\n",
        ("tests/launcher/test_lost_time.py", "tests/benchmarks/test_simulate_monitor.py"),
    ),
    Mutant(
        "a monitor that takes stacks is replaced as stuck",
        "launcher/monitor.py",
        "        self._lost.announce_work(findings.seen_ns + int(longest_seconds * NS))\n",
        "",
        ("tests/launcher/test_monitor.py",),
    ),
    Mutant(
        "nobody looks whether the run folder is there",
        "launcher/monitor.py",
        "        if self._parts_looker.is_started:\n",
        "        if False:\n",
        ("tests/launcher/test_monitor_process.py",),
    ),
    Mutant(
        "a cell that a rank has opened is replaced under it",
        "launcher/cells.py",
        "            if os.path.exists(cell.path) or self.view(local_rank).pid:\n",
        "            if os.path.exists(cell.path):\n",
        ("tests/launcher/test_upkeep.py",),
    ),
    Mutant(
        "a run folder that was made anew is not locked, and swept by the next launcher",
        "launcher/folders.py",
        "        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "",
        ("tests/launcher/test_upkeep.py", "tests/launcher/test_folders.py"),
    ),
    Mutant(
        "a full run folder is not left",
        "launcher/upkeep.py",
        "                if not self._is_in_use:\n",
        "                if True:\n",
        ("tests/launcher/test_upkeep.py",),
    ),
    Mutant(
        "whoever floods the control socket keeps the launcher from everything else",
        "launcher/control_socket.py",
        "        for _ in range(_MOST_AT_ONCE):\n",
        "        for _ in range(1 << 20):\n",
        ("tests/launcher/test_control_socket.py",),
    ),
    Mutant(
        "protection that is off is not told",
        "launcher/keeping.py",
        '        return "monitor_lost" if excess == 0 else None\n',
        "        return None\n",
        ("tests/launcher/test_keeping.py",),
    ),
    Mutant(
        "a monitor that could not be started is reported as replaced",
        "launcher/monitor_process.py",
        '                change = None if change == "monitor_replaced" else change  # it was not\n',
        "",
        ("tests/launcher/test_monitor_process.py",),
    ),
    Mutant(
        "a file that is being made anew is not waited for",
        "resilience_core/rank_process.py",
        "    end = time.monotonic() + _LONGEST_WAIT_SECONDS\n",
        "    end = time.monotonic()\n",
        ("tests/resilience_core/test_client.py",),
    ),
)
