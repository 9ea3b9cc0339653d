"""Launchers of which nothing but folders of incidents is left, as after a power cut.

An incident tells its node, its generation and when it was seen, by both clocks. What else events and figures would tell
of such a launcher is not known: when it began and how it ended, and what its ranks did beside these incidents.
"""

from __future__ import annotations

import collections
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from launcher.incidents.incident import Incident
from launcher.records.figures_log import FIGURES
from launcher.reports.found_generations import THAT_END, epoch_of
from launcher.reports.launches import SAFETY_FACTOR, THIN_EVIDENCE_FLOOR, Launch
from launcher.reports.unread import Unread
from launcher.reports.writers import UNKNOWN_NODE
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["folders_of_incidents", "launches_of", "of_folder", "without"]

_SAME_SECONDS = 600.0
"""Clocks of incidents that differ by less are those of one machine that was not started again meanwhile."""
_LEAST_NS = NS_PER_SECOND // 1000
"""Launchers of one run overlap, though each is known from one moment alone."""


class _Seen(NamedTuple):
    """An incident and where it lies."""

    folder: str
    """The log folder."""
    incident: Incident
    at: float
    """Seconds since 1970 when it was written."""

    @property
    def epoch(self) -> float:
        """Seconds since 1970 when the monotonic clock of its machine stood at zero."""
        return self.at - self.incident.seen_ns / NS_PER_SECOND


def folders_of_incidents(unread: Sequence[Unread]) -> list[str]:
    """Return the log folders of which nothing else can be read; what another release has written is refused."""
    return [each.folder for each in unread if each.is_alone and not each.is_of_another_release]


def launches_of(incidents: Mapping[str, Mapping[str, Incident]]) -> list[Launch]:
    """Return the launches that incidents tell of, one for each node of each run.

    Args:
        incidents: By log folder, then by the name of the incident's folder.
    """
    by_name: dict[str, list[_Seen]] = collections.defaultdict(list)
    for folder, found in incidents.items():
        for incident in found.values():
            at = epoch_of(incident.wall_time)
            if incident.kind in THAT_END and at > 0.0 and incident.seen_ns > 0 and incident.generation >= 0:
                by_name[os.path.basename(folder)].append(_Seen(folder, incident, at))
    launches = [launch for own in by_name.values() for run in _runs(own) for launch in _of_run(run)]
    boots: dict[str, float] = {}
    return [_of_one_boot(launch, boots) for launch in launches]


def _runs(seen: Iterable[_Seen]) -> list[list[_Seen]]:
    """Return incidents run by run: generations are numbered from 0 through each, and end once on each node."""
    runs: list[list[_Seen]] = []
    for each in sorted(seen, key=lambda one: (one.at, one.incident.generation, one.incident.seen_ns)):
        before = runs[-1] if runs else []
        last = max((one.incident.generation for one in before), default=-1)
        nodes = {one.incident.node for one in before if one.incident.generation == last}
        is_later = each.incident.generation > last
        if not before or not (is_later or (each.incident.generation == last and each.incident.node not in nodes)):
            runs.append([])
        runs[-1].append(each)
    return runs


def _of_run(run: Sequence[_Seen]) -> list[Launch]:
    """Return a launch for each node of a run; all were there when the first incident was seen, so they overlap."""
    by_node: dict[tuple[str, str], list[_Seen]] = collections.defaultdict(list)
    for each in run:
        by_node[each.folder, each.incident.node].append(each)
    epochs = {key: statistics.median_low(each.epoch for each in own) for key, own in by_node.items()}
    began = min(epochs[key] + each.incident.seen_ns / NS_PER_SECOND for key, own in by_node.items() for each in own)
    before_ns = _LEAST_NS if len(by_node) > 1 else 0
    launches = []
    for (folder, node), own in by_node.items():
        epoch, at_ns = epochs[folder, node], [each.incident.seen_ns for each in own]
        began_ns = min(min(at_ns), round((began - epoch) * NS_PER_SECOND)) if before_ns else min(at_ns)
        launches.append(_launch(folder, node, epoch, max(0, began_ns - before_ns), max(at_ns)))
    return launches


def _launch(folder: str, node: str, epoch: float, first_ns: int, last_ns: int) -> Launch:
    return Launch(
        folder=folder,
        node=node or UNKNOWN_NODE,
        boot="",
        pid=None,
        process_began_ns=None,
        epoch=epoch,
        began_ns=first_ns,
        is_begun_known=False,
        ended_ns=None,
        last_ns=last_ns,
        is_running=False,
        may_run=None,
        outcome=None,
        exit_code=None,
        why=None,
        went_back=False,
        lost_lines=0,
        damaged_lines=0,
        safety_factor=SAFETY_FACTOR,
        thin_evidence_floor=THIN_EVIDENCE_FLOOR,
        section_limits={},
        generations=(),
        spared=(),
        told_incidents=frozenset(),
        met=frozenset(),
        last_generation=None,
        failures=None,
        file=os.path.join(folder, f"{FIGURES}.jsonl"),
        lacks_figures=True,
        is_of_incidents=True,
    )


def _of_one_boot(launch: Launch, boots: dict[str, float]) -> Launch:
    """Return a launch that names its clock as others of that clock do."""
    near = (name for name, epoch in boots.items() if abs(epoch - launch.epoch) < _SAME_SECONDS)
    name = next((each for each in near if each.startswith(f"{launch.node}@")), None)
    if name is None:
        name = f"{launch.node}@{len(boots)}"
        boots[name] = launch.epoch
    return launch._replace(boot=name, epoch=boots[name])


def without(unread: Sequence[Unread], launches: Sequence[Launch]) -> list[Unread]:
    """Return the launchers of which nothing can be read, without those of folders whose incidents tell of them."""
    told = {launch.folder for launch in launches if launch.is_of_incidents}
    return [each for each in unread if each.folder not in told]


def of_folder(unread: Sequence[Unread], launches: Sequence[Launch]) -> list[str]:
    """Return what is to be said of log folders of which incidents alone can be read."""
    told = {launch.folder for launch in launches if launch.is_of_incidents}
    return [
        f"{each.folder}: nothing of events and figures can be read ({each.why}); what is told is from "
        f"{os.path.join(each.folder, 'incidents')} alone, and times go from the first incident to the last one. It is "
        "not known when it began and how it ended, how many ranks and restarts it had, what its steps, saves and "
        "failures took, what was lost with them, and how much room the limits left"
        for each in unread
        if each.folder in told
    ]
