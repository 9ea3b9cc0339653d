"""SectionRegistry: one section per name, one name per place.

A name that is used at two places would mix two durations into one median, so it is refused, at its first use at
the second place. The same place reached twice (a helper, a second function object of the same source line, the
copy of a ``finally`` block) is one place. A name in training and in an evaluation is two sections, the second of which
is shown as ``<name> (evaluation)``: a pass forward without gradients takes another time by nature. A section without a
name is called after its place; where that name is taken by a place in another file, a hash of the file's path tells
them apart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import PurePath
from types import FrameType

from resilience_core.errors import ConfigError
from resilience_core.suggestions import nearest
from straggler.errors import SectionNameError
from straggler.measurement.name_table import hash_name
from straggler.measurement.section import IN_EVALUATION, KINDS, Section, SectionClock, SectionKind
from straggler.measurement.waits import WaitClock
from straggler.probes.probe import Probe

__all__ = ["SectionRegistry"]

logger = logging.getLogger(__name__)

_MANY = 500


class SectionRegistry:
    """The sections of one detector.

    Attributes:
        now: Those by name that are in use now: of training, or of an evaluation.

    Args:
        collectives: Reads the number of collectives so far; None where there are none to watch.
        profiling_interval: Measure every n-th entry of each section.
        probes: May each add a timer to every new section.
        waits: Of the thread that trains; None where nobody is waited for.
    """

    def __init__(
        self,
        collectives: Callable[[], int] | None,
        *,
        profiling_interval: int = 1,
        probes: Sequence[Probe] = (),
        waits: WaitClock | None = None,
    ) -> None:
        self._training: dict[str, Section] = {}
        self._evaluation: dict[str, Section] = {}
        self.now = self._training
        self._unnamed: dict[tuple[str, int], str] = {}
        self._interval = profiling_interval
        self._probes = probes
        self._clock = SectionClock(collectives, waits)

    def at_place(self, name: str | None, frame: FrameType, profile_cuda: bool, kind: SectionKind) -> Section:
        """Return the section of this name, for the place that a frame is at.

        Raises:
            SectionNameError: The name belongs to another place.
            ConfigError: The name is not text, the kind is not known, or ``profile_cuda`` is no bool.
        """
        code, line = frame.f_code, frame.f_lineno
        place = (code.co_filename, line)
        if name is None:
            name = self._name_of_place(place)
        elif not isinstance(name, str) or not name:
            raise ConfigError(f'a section\'s name is text, such as "forward", not {name!r}')
        section = self.now.get(name)
        if section is None:
            if name.endswith(IN_EVALUATION):
                raise ConfigError(f"section {name!r} is named as those of an evaluation; leave {IN_EVALUATION!r} out")
            if kind not in KINDS:
                raise ConfigError(f"kind is {kind!r}{nearest(str(kind), KINDS)}")
            section = self._make(name, profile_cuda, kind)
            section.place = place
        elif section.place != place and not place[0].startswith("<"):
            raise SectionNameError(
                f"section {name!r} is already at {section.place[0]}:{section.place[1]}, and is used again at "
                f"{place[0]}:{line}; two places would be mixed into one median, so give one of them another name"
            )
        section.code, section.lasti = code, frame.f_lasti
        return section

    def named(self, name: str, profile_cuda: bool) -> Section:
        """Return the section of a wrapped callable; one that was unwrapped and wrapped again is the same."""
        section = self.now.get(name)
        if section is None:
            section = self._make(name, profile_cuda, "auto")
            section.place = (f"wrapped callable {name}", 0)
        return section

    def finder(self, name: str, profile_cuda: bool) -> Callable[[], Section]:
        """Return a function that returns the section of a wrapped callable, of training or of an evaluation."""
        self.named(name, profile_cuda)
        return lambda: self.now.get(name) or self.named(name, profile_cuda)

    @property
    def is_evaluating(self) -> bool:
        """Return whether the sections of evaluations are in use."""
        return self.now is self._evaluation

    def evaluate(self, is_evaluation: bool) -> dict[str, Section]:
        """Use the sections of evaluations from now on, or those of training; return them by name."""
        self.forget_release()
        self.now = self._evaluation if is_evaluation else self._training
        return self.now

    def watch(self, collectives: Callable[[], int] | None, waits: WaitClock | None) -> None:
        """Watch for collectives and waits from now on, in the sections that there are already, too."""
        self._clock.collectives, self._clock.waits = collectives, waits
        for section in (*self._training.values(), *self._evaluation.values()):
            section.look_for_collectives()

    def forget_release(self) -> None:
        """Forget the last release: the time from here to the next arrival holds a report, nobody's own work."""
        self._clock.last_release_ns = 0

    def _name_of_place(self, place: tuple[str, int]) -> str:
        name = self._unnamed.get(place)
        if name is None:
            name = f"{PurePath(place[0]).name}:{place[1]}"
            if name in self._training or name in self._evaluation:
                name = f"{name}~{hash_name(place[0]) & 0xFFFF:04x}"
            self._unnamed[place] = name
        return name

    def _make(self, name: str, profile_cuda: bool, kind: SectionKind) -> Section:
        if not isinstance(profile_cuda, bool):
            raise ConfigError(f"profile_cuda of section {name!r} is {profile_cuda!r}; expected True or False")
        if len(self.now) == _MANY:
            logger.warning(
                "there are %d straggler sections, the latest is %r: are names made at run time? Each is kept, and "
                "is compared with those of the same name on other ranks only (said once)",
                _MANY,
                name,
            )
        shown = name + IN_EVALUATION if self.is_evaluating else name
        section = Section(shown, self._clock, profiling_interval=self._interval, kind=kind)
        for probe in self._probes:
            # The kernels of an evaluation have the names of those of training, and other times.
            probe.watch(section, profile_cuda and not self.is_evaluating)
        self.now[name] = section
        return section
