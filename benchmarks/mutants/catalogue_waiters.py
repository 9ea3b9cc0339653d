"""Deliberate mistakes: who waited for a rank that came back, whose limit runs anew, and who left beside failures."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_WAITERS"]

MUTANTS_OF_WAITERS = (
    Mutant(
        "a late rank of which no word has changed is spared with a culprit that stays",
        "launcher/monitor/waiters.py",
        "named[0] if len(named) == len(culprits) else None",
        "named[0] if named else answered[0] if answered else None",
        ("tests/launcher/monitor/test_termination.py",),
    ),
    Mutant(
        "who waits for one of several culprits is spared when only that one is back",
        "launcher/monitor/waiters.py",
        "named[0] if len(named) == len(culprits) else None",
        "named[0] if named else None",
        ("tests/launcher/monitor/test_termination.py",),
    ),
    Mutant(
        "those outside a collective are spared with those that wait",
        "launcher/monitor/waiters.py",
        "any(case.rank.order.local_rank not in waiting",
        "all(case.rank.order.local_rank not in waiting",
        ("tests/launcher/monitor/test_termination.py",),
    ),
    Mutant(
        "who waits for one whose stack was taken too late is killed",
        "launcher/monitor/waiters.py",
        "    return next(iter((*late, *others)), None)\n",
        "    return None\n",
        ("tests/launcher/monitor/test_termination.py",),
    ),
    Mutant(
        "a rank that is under no limit never comes back",
        "launcher/monitor/waiters.py",
        "    return was_silent and now.last_sign_ns > before.last_sign_ns\n",
        "    return False\n",
        ("tests/launcher/monitor/test_termination.py",),
    ),
    Mutant(
        "a rank that gives signs all the time is waited for",
        "launcher/monitor/waiters.py",
        "    return was_silent and now",
        "    return now",
        ("tests/launcher/monitor/test_termination.py",),
    ),
    Mutant(
        "a rank that gives no sign has come back",
        "launcher/monitor/waiters.py",
        "    return was_silent and now.last_sign_ns > before.last_sign_ns\n",
        "    return was_silent\n",
        ("tests/launcher/monitor/test_termination.py",),
    ),
    Mutant(
        "what came back at an earlier look does not count at the last",
        "launcher/monitor/termination.py",
        "(*before, *withdrawn) if each.has_answered",
        "withdrawn if each.has_answered",
        ("tests/launcher/monitor/test_termination.py",),
    ),
    Mutant(
        "who waited for a rank that came back is condemned at the next look",
        "launcher/monitor/termination.py",
        "        rules.renew(each.case for each in withdrawn if each.waited_for is not None)\n",
        "",
        ("tests/launcher/monitor/test_termination.py",),
    ),
    Mutant(
        "who was only due with a rank that came back has its limit anew though it waits for nobody",
        "launcher/monitor/termination.py",
        "withdrawn if each.waited_for is not None)\n",
        "withdrawn)\n",
        ("tests/launcher/monitor/test_termination.py",),
    ),
    Mutant(
        "a limit that has run anew is said to have passed for the first time",
        "launcher/monitor/deadline_rules.py",
        "d in withheld or self._renewed.was_renewed(rank, view, d)",
        "d in withheld",
        ("tests/launcher/monitor/test_renewed_limits.py",),
    ),
    Mutant(
        "the deadline of a limit that has run anew is the one that led to the verdict",
        "launcher/monitor/deadline_rules.py",
        "if c.is_late and not c.held)",
        "if c.is_late)",
        ("tests/launcher/monitor/test_renewed_limits.py",),
    ),
    Mutant(
        "a limit that runs anew never passes",
        "launcher/monitor/renewed_limits.py",
        "            if anew_ns <= now_ns:\n",
        "            if since_ns is None and anew_ns <= now_ns:\n",
        ("tests/launcher/monitor/test_renewed_limits.py",),
    ),
    Mutant(
        "a limit that runs anew is forgotten when the cell cannot be read once",
        "launcher/monitor/renewed_limits.py",
        "(key[0] in sightings and key not in running)",
        "key not in running",
        ("tests/launcher/monitor/test_renewed_limits.py",),
    ),
    Mutant(
        "a limit that ran anew is kept when its deadline was met",
        "launcher/monitor/renewed_limits.py",
        "(key[0] in sightings and key not in running)",
        "False",
        ("tests/launcher/monitor/test_renewed_limits.py",),
    ),
    Mutant(
        "a limit that ran anew is kept when its rank is gone",
        "launcher/monitor/renewed_limits.py",
        "            if key[0] not in ranks or (",
        "            if (",
        ("tests/launcher/monitor/test_renewed_limits.py",),
    ),
    Mutant(
        "a limit that runs anew does not end the sleep",
        "launcher/monitor/deadline_rules.py",
        "        sighting = self._renewed.apply(rank, rank.sight(view, now_ns, freezes), now_ns, freezes)\n",
        "        sighting = rank.sight(view, now_ns, freezes)\n",
        ("tests/launcher/monitor/test_renewed_limits.py",),
    ),
    Mutant(
        "who exits beside ranks that have finished is not named",
        "launcher/incidents/rules_of_nodes.py",
        "    if not first or not left or len(left)",
        "    if True or not left or len(left)",
        ("tests/launcher/incidents/test_job_attribution.py",),
    ),
    Mutant(
        "ranks that have finished are named with one that exits although another was further",
        "launcher/incidents/rules_of_nodes.py",
        " or any(e.iteration < reached for e in left)",
        "",
        ("tests/launcher/incidents/test_job_attribution.py",),
    ),
    Mutant(
        "a rank that left in the midst of a section is named with one that exits",
        "launcher/incidents/rules_of_nodes.py",
        "e.has_left and not e.open_sections]\n    reached",
        "e.has_left]\n    reached",
        ("tests/launcher/incidents/test_job_attribution.py",),
    ),
    Mutant(
        "a rank that came back is halted for its native frames",
        "launcher/monitor/waiters.py",
        "    return [rank for rank in ranks if rank not in back]\n",
        "    return list(ranks)\n",
        ("tests/launcher/monitor/test_termination.py",),
    ),
    Mutant(
        "peers are halted for native frames where the late rank came back",
        "launcher/monitor/waiters.py",
        "    if findings.cases and all(case in answered for",
        "    if not findings.cases and all(case in answered for",
        ("tests/launcher/monitor/test_termination.py",),
    ),
)
