"""Deliberate mistakes in what is known of ranks that have destroyed their process group."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_DESTROYED_GROUPS"]

_NOTED = ("tests/resilience_core/monitoring/test_group_left.py",)
_CELL = ("tests/resilience_core/protocol/test_cell.py",)
_ATTRIBUTION = ("tests/launcher/incidents/test_attribution.py",)
_OF_NODES = ("tests/launcher/incidents/test_job_attribution.py",)
_WATCH = "resilience_core/monitoring/group_left.py"
_RULES = "launcher/incidents/rules_of_exceptions.py"

MUTANTS_OF_DESTROYED_GROUPS = (
    Mutant(
        "what a rank handles as it destroys its group is not noted",
        _WATCH,
        "                note_error(error)\n",
        "                pass\n",
        _NOTED,
    ),
    Mutant(
        "the end of a group is known once its model is gone",
        _WATCH,
        "    return world.pg_map[group][1] if",
        "    return group if",
        _NOTED,
    ),
    Mutant(
        "who trains in a handler has raised what it handles as it destroys its group",
        _WATCH,
        "not hasattr(error, _HANDLED) and ",
        "",
        _NOTED,
    ),
    Mutant(
        "who has gone on in a handler has raised what it handles as it destroys its group",
        _WATCH,
        " and seen_at(error) is None:",
        ":",
        _NOTED,
    ),
    Mutant(
        "what another thread handles as it destroys the group has been raised by the one that trains",
        _WATCH,
        "exception() if threading.current_thread() is threading.main_thread() else None",
        "exception()",
        _NOTED,
    ),
    Mutant(
        "a process that was forked destroys the group of its parent",
        _WATCH,
        "        if os.getpid() != self._pid:\n            return\n",
        "",
        _NOTED,
    ),
    Mutant(
        "a second group is not looked after",
        _WATCH,
        "(self._watched is None or self._watched() is not store)",
        "self._watched is None",
        _NOTED,
    ),
    Mutant(
        "who has made its group anew has destroyed it",
        _WATCH,
        "                self._cell.words[LEFT_GROUP] = 0\n",
        "",
        _NOTED,
    ),
    Mutant(
        "the end of a group counts for whoever owns the cell after that",
        "resilience_core/protocol/cell.py",
        " = words[ERROR_CHECK] = words[LEFT_GROUP] = 0",
        " = words[ERROR_CHECK] = 0",
        _CELL,
    ),
    Mutant(
        "a cell that is put in order forgets the end of a group",
        "resilience_core/protocol/cell.py",
        "        words[LEFT_GROUP] = known.left_group_ns\n",
        "",
        _CELL,
    ),
    Mutant(
        "who has begun a section since has no group any more",
        "launcher/processes/evidence.py",
        "view.left_group_ns if view.last_sign_ns <= view.left_group_ns else 0",
        "view.left_group_ns",
        ("tests/launcher/processes/test_evidence.py",),
    ),
    Mutant(
        "who has destroyed its group is not named beside one that raised after that",
        _RULES,
        "    if gone := gone_out_before(first, first.error.at_ns, group):\n",
        "    if False:\n",
        _ATTRIBUTION,
    ),
    Mutant(
        "who destroys its group after another one has raised is named beside it",
        _RULES,
        "e.has_gone_out and e.left_group_ns < failed_ns and",
        "e.has_gone_out and",
        _ATTRIBUTION,
    ),
    Mutant(
        "who had destroyed its group may have lost another one",
        _RULES,
        "    return 0 < failed.left_group_ns < (when_raised(failed) or failed.ended_ns) - AT_ONCE_NS\n",
        "    return False\n",
        _ATTRIBUTION,
    ),
    Mutant(
        "who destroys its group on its way out can have lost nobody",
        _RULES,
        "(when_raised(failed) or failed.ended_ns) - AT_ONCE_NS\n",
        "(when_raised(failed) or failed.ended_ns)\n",
        _ATTRIBUTION,
    ),
    Mutant(
        "a crash a moment after another one has destroyed its group is a fact",
        "launcher/incidents/rules_of_exits.py",
        "(0 if was_gone else AT_ONCE_NS)",
        "AT_ONCE_NS",
        _ATTRIBUTION,
    ),
    Mutant(
        "a kill a moment after another one has destroyed its group is none of its own",
        "launcher/incidents/rules_of_exits.py",
        "    was_gone = has_crashed and ",
        "    was_gone = ",
        _ATTRIBUTION,
    ),
    Mutant(
        "who raised some time before another one died is not named",
        "launcher/incidents/rules_of_exits.py",
        "        if raised and _may_have_raised_before(",
        "        if False and _may_have_raised_before(",
        _ATTRIBUTION,
    ),
    Mutant(
        "a crash after another one has destroyed its group is a fact, where nothing is on record",
        "launcher/incidents/rules_of_exits.py",
        "        if first.has_crashed and (gone := gone_out_before(",
        "        if False and (gone := gone_out_before(",
        _ATTRIBUTION,
    ),
    Mutant(
        "a kill after another one has destroyed its group comes of that",
        "launcher/incidents/rules_of_exits.py",
        "        if first.has_crashed and (gone := gone_out_before(",
        "        if (gone := gone_out_before(",
        _ATTRIBUTION,
    ),
    Mutant(
        "an exit is a fact though a script may so give up a peer, having destroyed no group",
        "launcher/incidents/error_kinds.py",
        ' or (error.type == "SystemExit" and error.earlier is None)',
        "",
        _ATTRIBUTION,
    ),
    Mutant(
        "what all ranks exit with by themselves, having destroyed no group, is everybody's",
        _RULES,
        '    is_everybody &= first.error.type != "SystemExit"',
        '    is_everybody &= first.error.type != "-"',
        _ATTRIBUTION,
    ),
    Mutant(
        "a crash after a rank of another node has destroyed its group is a fact",
        "launcher/incidents/rules_of_nodes.py",
        "not all(e.has_raised or e.has_crashed for e in ends)",
        "not all(e.has_raised for e in ends)",
        _OF_NODES,
    ),
    Mutant(
        "a crash may come of a rank that has destroyed nothing, and stands outside any collective",
        "launcher/incidents/rules_of_nodes.py",
        "    if not all(e.has_raised for e in ends):\n        return named\n",
        "",
        _OF_NODES,
    ),
    Mutant(
        "who hangs beside one that has destroyed its group in a handler is its victim",
        "launcher/incidents/attribution.py",
        " or _hung_beside_a_handler(group)) is not None:",
        ") is not None:",
        _ATTRIBUTION,
    ),
    Mutant(
        "one that was caught counts though the rank has sent heartbeats since",
        "resilience_core/protocol/error_record.py",
        "        if self.is_caught and not self.is_consequence and view.last_heartbeat_ns > self.noted_ns:\n",
        "        if False:\n",
        ("tests/resilience_core/protocol/test_error_record.py",),
    ),
    Mutant(
        "nobody looks for the group that is made after the one that has ended",
        _WATCH,
        "            self.when_ended()\n",
        "            pass\n",
        _NOTED,
    ),
    Mutant(
        "who has destroyed its group on another node is not named",
        "launcher/incidents/rules_of_nodes.py",
        "    if gone and not any(was_out(e)",
        "    if False and not any(was_out(e)",
        _OF_NODES,
    ),
    Mutant(
        "who has destroyed its group after another one of its node had raised is named beside it",
        "launcher/incidents/rules_of_nodes.py",
        "if e.has_gone_out and e.local_rank not in ranks_of(known)]",
        "if e.has_gone_out]",
        _OF_NODES,
    ),
    Mutant(
        "who had destroyed its group may have lost a rank of another node",
        "launcher/incidents/rules_of_nodes.py",
        "    if gone and not any(was_out(e) for e in known if e.local_rank in ranks_of(ends)):\n",
        "    if gone:\n",
        _OF_NODES,
    ),
    Mutant(
        "a rank that has destroyed its group holds the others up",
        "launcher/incidents/rank_phrases.py",
        "        if rank.evidence is not None and rank.evidence.has_gone_out:\n",
        "        if False:\n",
        ("tests/launcher/incidents/test_incident.py",),
    ),
)
