"""Verdict: the state of a rank, and the reason.

A rank is SLOW when a row that is its own work is slow *and* the lost time matters to the job: at least
``MATERIAL_SHARE`` of all the time that was measured on it, waits included. A section of 50 microseconds may be 20 %
slow in every report, and rank 0 alone may write a line of a log between two steps: such rows are in the section
tables and not in the verdict. The ``gpu`` row covers all the work of the GPU, and always matters.
"""

from __future__ import annotations

import enum

import attrs
import numpy as np
import numpy.typing as npt

__all__ = ["MATERIAL_SHARE", "State", "Verdict", "core_wait", "device_reasons"]

MATERIAL_SHARE = 0.01


class State(enum.Enum):
    """A rank's state in one report."""

    OK = "OK"
    """It was compared, and nothing is wrong."""
    SLOW = "SLOW"
    """Persistently slower than its peers, or than its own past."""
    UNKNOWN = "UNKNOWN"
    """Nothing can be said; the verdict says why."""

    def __str__(self) -> str:
        return self.value


@attrs.frozen(kw_only=True)
class Verdict:
    """The verdict on one rank.

    Args:
        rank: Which.
        node: Its node, ``""`` while unknown.
        state: OK, SLOW or UNKNOWN.
        slowdown: How much longer it takes than its peers, 0.12 for 12 %; NaN while UNKNOWN.
        section: The row in which that is worst.
        since_report: The report in which it began.
        since_seconds: How long ago that was.
        confidence: Share of such verdicts that are right at least: 0.95 or 0.99, and 0 while not SLOW.
        because: What the rank's device says of itself, or why nothing is known.
        beside: What else was seen of the rank, and may have nothing to do with it.
    """

    rank: int
    node: str = ""
    state: State = State.OK
    slowdown: float = float("nan")
    section: str = ""
    since_report: int = 0
    since_seconds: float = 0.0
    confidence: float = 0.0
    because: str = ""
    beside: str = ""

    def __str__(self) -> str:
        where = f"rank {self.rank}" + (f" on {self.node}" if self.node else "")
        if self.state is not State.SLOW:
            return f"{where}: {self.state}" + (f" ({self.because})" if self.because else "")
        why = f", because: {self.because}" if self.because else ""
        return (
            f"{where}: SLOW, {100 * self.slowdown:.1f} % slower in {self.section!r} "
            f"for {self.since_seconds:.0f} s (since report {self.since_report}), "
            f"over {100 * self.confidence:.0f} % sure{why}{f'; {self.beside}' if self.beside else ''}"
        )


# Bits of nvmlClocksEventReasons; the names are the driver's.
_THROTTLE = {
    0x4: "power cap (software)",
    0x8: "hardware slowdown",
    0x20: "thermal slowdown (software)",
    0x40: "thermal slowdown (hardware)",
    0x80: "power brake (hardware)",
    0x2: "application clocks",
}


def device_reasons(device: npt.NDArray[np.float64], peers: npt.NDArray[np.float64]) -> str:
    """Return what in a device's own state explains that its rank is slow.

    Args:
        device: The rank's ``measured.STATE_FIELDS``, NaN where unknown.
        peers: The same of its peers, shape ``(peers, fields)``.

    Returns:
        Reasons, most telling first, ``""`` when the device says nothing unusual. What most peers show too is no
        reason, and a wait for a core is none by itself: own work is scored without it.
    """
    clock, _, reasons, temperature, ecc, width, max_width, _, _, throttled, loading = (float(v) for v in device)
    said: list[str] = []
    if np.isfinite(reasons):
        for bit, name in _THROTTLE.items():
            others = peers[:, 2][np.isfinite(peers[:, 2])].astype(np.int64)
            common = len(others) > 0 and 2 * np.count_nonzero(others & bit) > len(others)
            if int(reasons) & bit and not common:
                said.append(name)
    usual_clock = _middle(peers[:, 0])
    if np.isfinite(clock) and np.isfinite(usual_clock) and clock < 0.95 * usual_clock:
        said.append(f"SM clock {clock:.0f} MHz, peers {usual_clock:.0f}")
    if np.isfinite(width) and np.isfinite(max_width) and width < max_width:
        said.append(f"PCIe x{width:.0f} of x{max_width:.0f}")
    if np.isfinite(ecc) and ecc > 0:
        said.append(f"{ecc:.0f} uncorrected ECC errors")
    usual_temperature = _middle(peers[:, 3])
    if np.isfinite(temperature) and np.isfinite(usual_temperature) and temperature > usual_temperature + 10.0:
        said.append(f"{temperature:.0f} C, peers {usual_temperature:.0f} C")
    if _is_much(throttled, peers[:, 9]):
        said.append(f"its CPU quota throttled it {100 * throttled:.0f} % of the time")
    if _is_much(loading, peers[:, 10]):
        said.append(f"it waited for its data loader's workers {100 * loading:.0f} % of the time")
    return ", ".join(said)


def core_wait(device: npt.NDArray[np.float64], peers: npt.NDArray[np.float64]) -> str:
    """Return that a rank has waited for a core, where it has more than its peers; arguments as above."""
    waited = float(device[8])
    return f"it also waited for a core {100 * waited:.0f} % of the time" if _is_much(waited, peers[:, 8]) else ""


def _is_much(share: float, peers: npt.NDArray[np.float64]) -> bool:
    return share > 0.03 and not share < _middle(peers) + 0.03


def _middle(values: npt.NDArray[np.float64]) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else float("nan")
