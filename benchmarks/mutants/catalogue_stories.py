"""Mistakes in how nodes find out together who has failed, and in what the machine tells of it."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_STORIES"]

_ATTRIBUTION = ("tests/launcher/incidents/test_job_attribution.py",)
_GATHERING = ("tests/launcher/nodes/test_gathering.py",)
_STORIES = ("tests/launcher/agent/test_job_stories.py",)
_STORE = ("tests/launcher/agent/test_store_exchange.py",)
_KILLS = ("tests/launcher/incidents/test_memory_kills.py",)
_MACHINE = ("tests/launcher/incidents/test_machine.py",)
_KERNEL = ("tests/launcher/incidents/test_kernel_log.py",)


def _mutant(name: str, module: str, old: str, new: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(name, f"launcher/{module}.py", old, new, tests)


MUTANTS_OF_STORIES = (
    _mutant(
        "what is told alone does not say which ranks it is about",
        "agent/story_teller",
        "announce(*own.lines, alone, **own.about)",
        "announce(*own.lines, alone, **{**own.about, 'ranks': []})",
        _STORIES,
    ),
    _mutant(
        "a failure of which a node was told before counts like the first one",
        "incidents/job_attribution",
        "[(account, how) for account, how in own if not account.was_told] or own",
        "own",
        _ATTRIBUTION,
    ),
    _mutant(
        "a doubtful failure is named beside a sure one",
        "incidents/job_attribution",
        "[(account, how) for account, how in first if not how.why.startswith(_LIKELY)]",
        "first",
        _ATTRIBUTION,
    ),
    _mutant(
        "clocks of two machines are compared",
        "incidents/job_attribution",
        "    return e._replace(error=error, ended_ns=min(e.ended_ns, 1), asked_ns=0, last_sign_ns=0)\n",
        "    return e\n",
        _ATTRIBUTION,
    ),
    _mutant(
        "who lost its peer counts as one that stands where it stands",
        "incidents/job_attribution",
        "_as_waiting(e) if e.exit_code not in (None, 0) or e.error is not None else e",
        "e",
        _ATTRIBUTION,
    ),
    _mutant(
        "a lost node is no cause",
        "incidents/job_attribution",
        "    if lost and all(account.was_told for account, _ in sure):\n",
        "    if False:\n",
        _ATTRIBUTION,
    ),
    _mutant(
        "a silent node is blamed whatever the ranks of others do",
        "incidents/job_attribution",
        "and all(e.waits or e.is_victim for e in everybody):",
        ":",
        _ATTRIBUTION,
    ),
    _mutant(
        "iterations of ranks that have just failed are compared as those of hung ones",
        "incidents/job_attribution",
        '    is_hang = any(account.incident.kind == "hang" for account in accounts)\n',
        "    is_hang = True\n",
        _ATTRIBUTION,
    ),
    _mutant(
        "failures with two reasons are told as one",
        "incidents/job_attribution",
        "    if len(whys) == 1 and len(",
        "    if len(",
        _ATTRIBUTION,
    ),
    _mutant(
        "a rank that we have ended is taken for one that has died",
        "incidents/accounts",
        " and rank.local_rank not in ended_by_us",
        "",
        ("tests/launcher/incidents/test_job_incident.py",),
    ),
    _mutant(
        "late ranks are signalled before all nodes have looked",
        "nodes/gathering",
        "if known.suspecting and all(name in known.have_looked for name in known.members if name in nodes):",
        "if known.suspecting:",
        _GATHERING,
    ),
    _mutant(
        "a story is decided while the generation runs",
        "nodes/gathering",
        "                if membership.phase == Phase.RUNNING:\n                    continue\n",
        "",
        _GATHERING,
    ),
    _mutant(
        "a node that never answers is waited for",
        "nodes/gathering",
        "            if silent and now_ns - known.over_ns < LONGEST_GATHERING_NS:\n",
        "            if silent:\n",
        _GATHERING,
    ),
    _mutant(
        "who was no member is heard",
        "nodes/gathering",
        "        if known is None or sender not in known.members:\n",
        "        if known is None:\n",
        _GATHERING,
    ),
    _mutant(
        "an account is not repeated",
        "nodes/gathering",
        "            self._repeat_ns = now_ns + self._period_ns\n            self.outbox.append(self._given)\n",
        "            self._repeat_ns = now_ns + self._period_ns\n",
        (*_GATHERING, "tests/launcher/nodes/test_stories_of_nodes.py"),
    ),
    _mutant(
        "nobody says that no story comes",
        "nodes/gathering",
        "        if now_ns >= self._give_up_ns:\n",
        "        if False:\n",
        _GATHERING,
    ),
    _mutant(
        "a fenced node tells that its ranks were killed",
        "agent/job_stories",
        " or current.is_fenced",
        "",
        _STORIES,
    ),
    _mutant(
        "healthy ranks of other nodes are asked for their stacks by a signal",
        "agent/job_stories",
        "Look(heard.generation, may_signal=False)",
        "Look(heard.generation, may_signal=True)",
        _STORIES,
    ),
    _mutant(
        "a signal asks ranks although it may not",
        "monitor/hang_incident",
        "may_be_asked if may_signal else ()",
        "may_be_asked",
        ("tests/launcher/monitor/test_other_nodes.py",),
    ),
    _mutant(
        "what was seen for another verdict counts for ever",
        "agent/job_stories",
        " and time.monotonic() - looked[0] < _LOOK_COUNTS_SECONDS",
        "",
        _STORIES,
    ),
    _mutant(
        "a verdict that was withdrawn is told as a failure",
        "agent/story_teller",
        "            self._failures.pop(generation, None)\n",
        "            pass\n",
        _STORIES,
    ),
    _mutant(
        "a silence before the failure is known is forgotten",
        "agent/story_teller",
        "            self._silent.add(generation)\n",
        "            pass\n",
        _STORIES,
    ),
    _mutant(
        "the signal does not wait for the other nodes",
        "monitor/termination",
        "            report.await_others()\n",
        "",
        ("tests/launcher/monitor/test_termination.py",),
    ),
    _mutant(
        "the signal waits for other nodes for ever",
        "monitor/parent_channel",
        "            if left_ns <= 0 or generation in words:\n",
        "            if generation in words:\n",
        ("tests/launcher/monitor/test_other_nodes.py",),
    ),
    _mutant(
        "who suspects a rank through a store may signal it at once",
        "agent/store_exchange",
        "store.add(_looks(own), 0) >= watched.round.size",
        "True",
        _STORE,
    ),
    _mutant(
        "a kill of long ago is that of the rank which has just been killed",
        "incidents/memory_kills",
        "        if now_ns - counts.killed_ns[-1] > (_JUST_NOW_NS if was_killed and not is_named else _LATELY_NS):\n",
        "        if False:\n",
        _KILLS,
    ),
    _mutant(
        "one kill is that of every rank",
        "incidents/memory_kills",
        "            counts.killed_ns.pop()\n",
        "            pass\n",
        _KILLS,
    ),
    _mutant(
        "a limit that was not in the way is called the one that was hit",
        "incidents/memory_kills",
        "if hit_ns is not None and now_ns - hit_ns <= _LATELY_NS and group.limit_bytes is not None:",
        "if group.limit_bytes is not None:",
        _KILLS,
    ),
    _mutant(
        "the kernel is asked of a kill of long ago",
        "incidents/kernel_log",
        "if killed == pid and at_ns >= since_ns]",
        "if killed == pid]",
        _KERNEL,
    ),
    _mutant(
        "a file system that hangs holds up the signal",
        "incidents/machine",
        "self._background.call(lambda: [*self._changes(), *self._full()], timeout_seconds)",
        "[*self._changes(), *self._full()]",
        _MACHINE,
    ),
    _mutant(
        "a child's fatal stack is taken for the rank's",
        "incidents/stacks_from_inside",
        'if _FATAL in text and head.strip().replace("-", " ") == _FATAL_TEXTS[number]:',
        "if _FATAL in text:",
        ("tests/launcher/incidents/test_fatal_stack.py",),
    ),
    _mutant(
        "a rank that cleans up after a lost connection is named as a fact",
        "incidents/job_attribution",
        "    if found is None or not found.local_ranks or found.why",
        "    if True or found.why",
        _ATTRIBUTION,
    ),
    _mutant(
        "a rank that cleans up is named though the cause may be on a node that was not heard",
        "incidents/job_attribution",
        "    elif silent:\n",
        "    elif False:\n",
        _ATTRIBUTION,
    ),
    _mutant(
        "who has heard the story of a former leader is blamed for silence",
        "nodes/gathering",
        "may_blame_silent=generation != self._late_for",
        "may_blame_silent=True",
        _GATHERING,
    ),
    _mutant(
        "a new leader makes another story of the same failure",
        "nodes/gathering",
        "            if self._told is not None and self._told.generation == generation:\n",
        "            if False:\n",
        _GATHERING,
    ),
    _mutant(
        "a rank that was getting on is blamed for the exit of another",
        "incidents/job_attribution",
        "if e.is_lively and e.waits is False else e",
        "if False else e",
        _ATTRIBUTION,
    ),
)
