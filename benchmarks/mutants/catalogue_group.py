"""Deliberate mistakes in what starts, watches, ends and restarts the group: generations, agent, workers, nodes, looks.

Made after those of ``catalogue``, in places that had few of them or none.
"""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_THE_GROUP"]

MUTANTS_OF_THE_GROUP = (
    # ---- generations ----
    Mutant(
        "a startup limit that comes to count later strikes at once",
        "launcher/generation.py",
        "                if since_ns + limit.seconds * _NS < from_ns:\n",
        "                if False:\n",
        ("tests/launcher/test_generation.py",),
    ),
    Mutant(
        "a startup limit does not come to count when a rank has initialised monitoring",
        "launcher/generation.py",
        "            self._have_them_watched(from_ns=now_ns)\n",
        "            pass\n",
        ("tests/launcher/test_generation.py",),
    ),
    Mutant(
        "nobody looks whether a startup limit has come to count",
        "launcher/generation.py",
        "            due.append(_EVIDENCE_SECONDS)\n",
        "            pass\n",
        ("tests/launcher/test_generation.py",),
    ),
    Mutant(
        "whoever was given the number of a dead rank is asked to end in its place",
        "launcher/generation.py",
        'status.state not in "ZX" and process_start_time(view.pid) == view.start_time',
        'status.state not in "ZX"',
        ("tests/launcher/test_generation.py",),
    ),
    Mutant(
        "the number that a rank has in its container is signalled outside",
        "launcher/generation.py",
        "if view is None or view.pid == 0 or view.pid_namespace not in (0, own_pid_namespace()):",
        "if view is None or view.pid == 0:",
        ("tests/launcher/test_generation.py",),
    ),
    Mutant(
        "the exit codes of workers are collected with the orphans of their generation",
        "launcher/generation.py",
        "*self._outfit.starter.children(), *self.processes.unreaped()}",
        "*self._outfit.starter.children()}",
        ("tests/launcher/test_generation.py",),
    ),
    Mutant(
        "the monitor condemns ranks that have been asked to end",
        "launcher/generation.py",
        "        self.stop_judging()\n        self.processes.ask_to_end(",
        "        self.processes.ask_to_end(",
        ("tests/launcher/test_generation.py",),
    ),
    Mutant(
        "the monitor condemns ranks of a job that is being shut down",
        "launcher/generation.py",
        "        self.stop_judging()\n        self.processes.stop(",
        "        self.processes.stop(",
        ("tests/launcher/test_generation.py",),
    ),
    Mutant(
        "a rank that is late while its group is being killed after a verdict is a second incident",
        "launcher/monitor.py",
        "                self._settled.add(generation)\n",
        "                pass\n",
        ("tests/launcher/test_monitor.py",),
    ),
    Mutant(
        "whoever the launcher is ending is condemned and blamed for that",
        "launcher/monitor.py",
        'return any(message.get("forget") == generation for message, _ in self._orders)',
        "return False",
        ("tests/launcher/test_monitor.py",),
    ),
    Mutant(
        "a node that saw no failure times its restart from its own last one",
        "launcher/agent.py",
        "            self._restart_reason = None\n            if self._has_event_log:",
        "            if self._has_event_log:",
        ("tests/launcher/test_agent.py",),
    ),
    Mutant(
        "whoever has raised an exception and is still ending is said to hold the others up",
        "launcher/incident.py",
        "            if rank.error is not None and rank.error.thread is None:\n                raised =",
        "            if False:\n                raised =",
        ("tests/launcher/test_incident.py",),
    ),
    Mutant(
        "a verdict that comes too late is told as an incident of its own",
        "launcher/agent.py",
        "is_another = current.is_being_ended or bool(current.condemned)",
        "is_another = bool(current.condemned)",
        ("tests/launcher/test_agent.py",),
    ),
    Mutant(
        "a cell that was made anew is not watched",
        "launcher/generation.py",
        "            order = self._orders[local_rank]\n"
        "            self._outfit.monitor.watch(order, self._cells[local_rank], is_session_leader=True)\n",
        "            pass\n",
        ("tests/launcher/test_generation.py",),
    ),
    # ---- the agent ----
    Mutant(
        "a verdict on a generation that is over condemns ranks of the present one",
        "launcher/agent.py",
        '            elif report["generation"] == self._current.number:\n',
        "            else:\n",
        ("tests/launcher/test_agent.py",),
    ),
    Mutant(
        "a verdict on a generation that is over is withdrawn from the present one",
        "launcher/agent.py",
        "if self._current is not None and self._current.number == generation:",
        "if self._current is not None:",
        ("tests/launcher/test_agent.py",),
    ),
    Mutant(
        "a verdict is read after the exit code that it caused",
        "launcher/agent.py",
        "            processes.collect_exits()\n            self._read_reports()  #",
        "            processes.collect_exits()\n            #",
        ("tests/launcher/test_agent.py",),
    ),
    Mutant(
        "a node keeps restarts of its own beside those that all nodes have left",
        "launcher/agent.py",
        "        self._remaining_restarts = worker_group.spec.max_restarts - self._rendezvous_handler.failures\n",
        "",
        ("tests/launcher/test_agent.py",),
    ),
    Mutant(
        "a generation that lived does not end a row of early deaths",
        "launcher/agent.py",
        "self._early_deaths + 1 if died_young else 0\n",
        "self._early_deaths + died_young\n",
        ("tests/launcher/test_agent.py",),
    ),
    Mutant(
        "a generation that showed life counts as an early death",
        "launcher/agent.py",
        "< story.YOUNG_NS and not showed_life\n",
        "< story.YOUNG_NS\n",
        ("tests/launcher/test_agent.py",),
    ),
    Mutant(
        "a damaged cell counts as progress that nobody can reach",
        "launcher/agent.py",
        "if 0 <= each < _IMPLAUSIBLE_ITERATION)",
        "if 0 <= each)",
        ("tests/launcher/test_agent.py",),
    ),
    Mutant(
        "a node without a restart left does not tell the others",
        "launcher/agent.py",
        '            self._rendezvous_handler.end(f"a rank failed on',
        '            str(f"a rank failed on',
        ("tests/launcher/test_agent.py",),
    ),
    # ---- whom to ask ----
    Mutant(
        "a wrapper is asked to end in the moment in which its training has ended",
        "launcher/workers.py",
        "            if local_rank in self._outlived:\n",
        "            if local_rank in self._outlived or has_exited(pidfd):\n",
        ("tests/launcher/test_ending_workers.py",),
    ),
    Mutant(
        "a wrapper is asked to end while its training saves",
        "launcher/workers.py",
        "            elif has_exited(pidfd):\n                self._outlived",
        "            else:\n                self._outlived",
        ("tests/launcher/test_ending_workers.py",),
    ),
    Mutant(
        "a wrapper alone is asked, and not what else it runs",
        "launcher/workers.py",
        "            os.killpg(worker.pid, death_signal)",
        "            os.kill(worker.pid, death_signal)",
        ("tests/launcher/test_ending_workers.py",),
    ),
    Mutant(
        "workers that had ended by themselves count as asked",
        "launcher/workers.py",
        "        for worker in self.running:\n            self._were_asked = True\n",
        "        self._were_asked = True\n        for worker in self.running:\n",
        ("tests/launcher/test_workers.py", "tests/launcher/test_ending_workers.py"),
    ),
    # ---- when to look ----
    Mutant(
        "a limit that a rank sets between two looks is noticed half a second late",
        "launcher/rounds.py",
        "        if smallest_ns:\n            wake_ns",
        "        if False:\n            wake_ns",
        ("tests/launcher/test_rounds.py",),
    ),
    Mutant(
        "a rank that has not started yet is under no limit",
        "launcher/rounds.py",
        "view.smallest_limit_ns if view.state != UNUSED else self._smallest_configured_ns",
        "view.smallest_limit_ns",
        ("tests/launcher/test_rounds.py",),
    ),
    Mutant(
        "the largest limit in force says how often to look",
        "launcher/rounds.py",
        "            if limit_ns and (limit_ns < smallest_ns or not smallest_ns):\n",
        "            if limit_ns and limit_ns > smallest_ns:\n",
        ("tests/launcher/test_rounds.py",),
    ),
    Mutant(
        "a cell that cannot be read spares its rank at the last look",
        "launcher/rounds.py",
        "        if view is None:\n            return False\n",
        "        if view is None:\n            return True\n",
        ("tests/launcher/test_rounds.py",),
    ),
    # ---- the nodes ----
    Mutant(
        "generations are numbered by the node that joined last",
        "launcher/rendezvous.py",
        "max(generation for generation, _ in counts) + 1",
        "min(generation for generation, _ in counts) + 1",
        ("tests/launcher/test_rendezvous.py",),
    ),
    Mutant(
        "the reason of whoever ends the job last is told",
        "launcher/rendezvous.py",
        '                if not _has(self._round, "ft/ended"):\n',
        "                if True:\n",
        ("tests/launcher/test_rendezvous.py",),
    ),
    Mutant(
        "a launcher dies of asking a store whose host has gone",
        "launcher/rendezvous.py",
        "    except DistNetworkError:\n        return False\n",
        "    except ZeroDivisionError:\n        return False\n",
        ("tests/launcher/test_rendezvous.py",),
    ),
    Mutant(
        "a launcher dies of telling a failure to a store whose host has gone",
        "launcher/rendezvous.py",
        "        self.failures += 1\n        if self._round is not None:\n"
        "            with contextlib.suppress(RuntimeError):",
        "        self.failures += 1\n        if self._round is not None:\n"
        "            with contextlib.suppress(KeyError):",
        ("tests/launcher/test_rendezvous.py",),
    ),
    Mutant(
        "a failure is told to the other nodes in the next generation, too",
        "launcher/rendezvous.py",
        'f"ft/failed/{self._attempt if self._is_static else 0}"',
        '"ft/failed/0"',
        ("tests/launcher/test_rendezvous.py",),
    ),
    # ---- what would stand in the way of a group that is being formed ----
    Mutant(
        "workers are forked while a new generation forms its group",
        "launcher/warm_starter.py",
        "        self._wanted = 0  # until prepare() is called",
        "        # until prepare() is called",
        ("tests/launcher/test_warm_starter.py",),
    ),
    Mutant(
        "later starts leave torch's handlers in place",
        "launcher/torch_processes.py",
        "            _taken.extend(changed)\n",
        "            _taken.append(signal.SIGUSR1)\n",
        ("tests/launcher/test_torch_processes.py",),
    ),
    Mutant(
        "chores are never done",
        "launcher/agent.py",
        "        if left_ns > 0:\n            return left_ns / _NS\n        current.reap_orphans()\n",
        "        if left_ns > -(10**18):\n            return abs(left_ns) / _NS\n        current.reap_orphans()\n",
        ("tests/launcher/test_agent.py",),
    ),
    # ---- what a failed rank has left ----
    Mutant(
        "a disk is touched before the peers are asked to end",
        "launcher/agent.py",
        "        current.ask_to_end(signal.SIGTERM)\n        asked_ns",
        "        self._outfit.on_disk('early', lambda: None, None)\n"
        "        current.ask_to_end(signal.SIGTERM)\n        asked_ns",
        ("tests/launcher/test_agent.py",),
    ),
    Mutant(
        "ranks are looked at after they were asked to end",
        "launcher/agent.py",
        "        known = story.look(group, processes, views, current.errors(), current.asked_ns())\n",
        "        current.ask_to_end(signal.SIGTERM)\n"
        "        known = story.look(group, processes, views, current.errors(), current.asked_ns())\n",
        ("tests/launcher/test_agent.py",),
    ),
    Mutant(
        "an error file that was cut short is handed to torch",
        "launcher/workers.py",
        "        check_error_file(path)\n",
        "",
        ("tests/e2e/test_lost_parts.py",),
    ),
    Mutant(
        "a new monitor is told whom to end only after it was started",
        "launcher/monitor_process.py",
        "        self._send_every_order()\n        try:\n",
        "        try:\n",
        ("tests/launcher/test_monitor_process.py",),
    ),
    Mutant(
        "orders that the former monitor has read are not told to the new one",
        "launcher/monitor_process.py",
        "            # Again, for the former one may have read them.\n            self._send_every_order()\n",
        "",
        ("tests/launcher/test_monitor_process.py",),
    ),
    Mutant(
        "an order that is told again undoes a verdict",
        "launcher/monitor.py",
        "        if key in self._ranks and self._ranks[key].is_told_again(order, descriptors):\n",
        "        if False:\n",
        ("tests/launcher/test_monitor.py",),
    ),
    Mutant(
        "a cell that was made anew is not watched",
        "launcher/watch.py",
        " or not os.path.sameopenfile(descriptors[0], self._cell.descriptor):\n",
        ":\n",
        ("tests/launcher/test_monitor.py",),
    ),
    Mutant(
        "a worker that was not known before is not taken over",
        "launcher/watch.py",
        "        if len(descriptors) > 1 and self._worker_pidfd is None:\n            return False\n",
        "",
        ("tests/launcher/test_monitor.py",),
    ),
    Mutant(
        "a stopped monitor is killed before there is another one",
        "launcher/monitor_process.py",
        "            failure = self._start_successor()\n            former.send_signal(signal.SIGKILL)\n",
        "            former.send_signal(signal.SIGKILL)\n            failure = self._start_successor()\n",
        ("tests/launcher/test_monitor_process.py",),
    ),
    Mutant(
        "a monitor that is lost where there is room for one only is not replaced",
        "launcher/monitor_process.py",
        "                failure = self._start_successor()  #",
        "                pass  #",
        ("tests/launcher/test_monitor_process.py",),
    ),
    Mutant(
        "whatever lies where standard error went is opened",
        "launcher/story.py",
        'with open(path, "rb", opener=only_plain) as file:\n            status',
        'with open(path, "rb") as file:\n            status',
        ("tests/launcher/test_story.py",),
    ),
    Mutant(
        "an error file is read without end",
        "launcher/torch_processes.py",
        "file.read(_LONGEST_ERROR_FILE_BYTES + 1)",
        "file.read(_LONGEST_ERROR_FILE_BYTES)",
        ("tests/launcher/test_torch_processes.py",),
    ),
    Mutant(
        "folders of a run lie where its name says",
        "launcher/bounded_logs.py",
        'as_file_name(env.get(_RUN_ID, "none"))',
        'env.get(_RUN_ID, "none")',
        ("tests/launcher/test_folders.py",),
    ),
    Mutant(
        "an abort of a rank beside a GPU is its own",
        "launcher/story.py",
        "if any(evidence.exit_code == -signal.SIGABRT for evidence in known.values()):",
        "if False:",
        ("tests/launcher/test_story.py",),
    ),
)
