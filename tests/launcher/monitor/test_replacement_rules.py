"""When a monitor is replaced: dead, stopped or stuck, but not because everybody was frozen; and when to say so."""

from __future__ import annotations

import itertools

import pytest

from launcher.monitor.replacement_rules import (
    LONGEST_PAUSE_NS,
    MOST_SHORT_LIVES,
    SETTLING_NS,
    SHORT_LIFE_NS,
    STUCK_NS,
    ReplacementRules,
    StoppedLauncher,
)

S = 1_000_000_000
LOOK = S // 4
T = 1_000 * S


class Life:
    """A keeper that looks four times a second at a monitor that beats, until told otherwise."""

    def __init__(self) -> None:
        self.now = T
        self.rules = ReplacementRules(self.now)
        self.beat: int | None = None
        self.busy_until = 0

    def look(self, state: str | None = None, after: int = LOOK) -> str | None:
        self.now += after
        beat = self.now if self.beat is None else self.beat
        return self.rules.what_is_wrong(self.now, state, beat, self.busy_until)

    def stay(self, seconds: float, state: str | None = None) -> list[str | None]:
        return [self.look(state) for _ in range(int(seconds * S / LOOK))]


@pytest.fixture
def life() -> Life:
    life = Life()
    assert not any(life.stay(20))
    return life


@pytest.mark.parametrize("state", ["ended (signal 9)", "stopped"])
def test_one_that_has_ended_or_was_stopped_is_replaced_at_the_next_look(life: Life, state: str) -> None:
    assert life.look(state) is not None


def test_one_that_is_stuck_is_replaced(life: Life) -> None:
    life.beat = life.now
    assert not any(life.stay(STUCK_NS / S))
    assert (life.look() or "").startswith("was stuck for 3.")


def test_one_that_takes_stacks_is_not_stuck_however_long_the_user_lets_it(life: Life) -> None:
    life.beat, life.busy_until = life.now, life.now + 20 * S
    assert not any(life.stay(20 + STUCK_NS / S))
    assert life.look() is not None


def test_one_that_has_just_been_started_has_not_been_silent(life: Life) -> None:
    life.beat = life.now - 60 * S
    life.rules.started(life.now)
    assert life.look() is None


@pytest.mark.parametrize("length", [S // 2, 7 * S])
def test_a_keeper_that_wakes_before_the_rest_waits_for_it(life: Life, length: int) -> None:
    """Everybody was stopped: the monitor is still stopped, or has not run yet, 0.3 s after the launcher runs again."""
    life.beat = life.now
    assert life.look("stopped", after=length) is None
    assert life.look("stopped") is None
    life.beat = None
    assert not any(life.stay(10))


def test_one_that_stays_stopped_after_a_thaw_is_replaced_within_a_second(life: Life) -> None:
    assert life.look("stopped", after=7 * S) is None
    assert "was stopped" in life.stay(SETTLING_NS / S, "stopped")


def test_several_that_die_young_are_a_loss_of_protection_told_once_and_tried_ever_more_slowly(life: Life) -> None:
    told, starts = [], []
    while life.now < T + 300 * S:
        if life.look("ended (exit code 3)") is not None:
            told.append(life.rules.ended(life.now))
            starts.append(life.now)
            life.rules.started(life.now)
    assert [change for change in told if change] == ["monitor_replaced"] * MOST_SHORT_LIVES + ["monitor_lost"]
    pauses = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert pauses[-1] >= LONGEST_PAUSE_NS
    assert pauses == sorted(pauses)
    assert life.rules.recovered(life.now, "ended (exit code 3)") is None

    life.rules.started(life.now)
    since_ns = life.now
    life.stay(SHORT_LIFE_NS / S + 1)
    assert life.rules.recovered(life.now, None) == (starts[0], since_ns)
    assert life.rules.recovered(life.now, None) is None
    assert life.look("ended (signal 9)") is not None
    assert life.rules.ended(life.now) == "monitor_replaced"


def lose(life: Life, state: str) -> list[str | None]:
    """Hit one monitor after the other as soon as it has been started; what is told."""
    told = []
    for _ in range(MOST_SHORT_LIVES + 1):
        while life.look(state) is None:
            pass
        told.append(life.rules.ended(life.now))
        life.rules.started(life.now)
    return told


@pytest.mark.parametrize("state", ["ended (signal 9)", "stopped"])
def test_protection_is_on_again_as_soon_as_one_has_lived_on_not_before(life: Life, state: str) -> None:
    off_ns = life.now + LOOK  # the first one of the row is lost at the next look
    assert lose(life, state)[-1] == "monitor_lost"
    assert life.rules.off_since_ns == off_ns
    life.stay(1)
    assert life.look(state) is not None
    assert life.rules.ended(life.now) is None  # said once
    life.now += S
    life.rules.started(life.now)
    on_ns = life.now
    life.stay(SHORT_LIFE_NS / S - 1)
    assert life.rules.recovered(life.now, None) is None
    life.stay(1)
    assert life.rules.recovered(life.now, state) is None
    assert life.rules.recovered(life.now, None) == (off_ns, on_ns)
    assert life.rules.off_since_ns is None


@pytest.mark.parametrize("state", ["ended (signal 9)", "stopped"])
def test_a_loss_that_was_told_stays_one_until_its_end_is_told(life: Life, state: str) -> None:
    """The one that lived on is hit while the keeper does not run either, before anybody could say that it lived."""
    lose(life, state)
    if life.look(state, after=SHORT_LIFE_NS + S) is None:
        assert life.stay(SETTLING_NS / S, state)[-1] is not None
    assert life.rules.ended(life.now) is None
    life.rules.started(life.now)
    life.stay(SHORT_LIFE_NS / S)
    assert life.rules.recovered(life.now, None) is not None


@pytest.mark.parametrize("hits", [1, 5, 50])
def test_however_often_one_was_lost_the_next_is_tried_within_half_a_minute(life: Life, hits: int) -> None:
    lose(life, "stopped")
    for _ in range(hits):
        assert life.look("stopped") is not None
        life.rules.ended(life.now)
        life.rules.started(life.now)
    since_ns = life.now
    while life.look("ended (signal 9)") is None:
        assert life.now - since_ns <= LONGEST_PAUSE_NS


# ---- a launcher that is stopped -------------------------------------------------------------------------


def looks(stopped: StoppedLauncher, states: str, after: int = S // 2, since: int = T) -> str:
    """Look once per letter (``T`` for stopped); an exclamation mark for each look that people are told of."""
    return "".join("!" if stopped.look(since + n * after, state == "T") else "." for n, state in enumerate(states))


def test_a_launcher_that_is_stopped_for_two_seconds_is_told_once_per_stop() -> None:
    stopped = StoppedLauncher()
    assert looks(stopped, "RRTTTTTTTTT") == "......!...."
    assert looks(stopped, "RTTTTTTT", since=T + 20 * S) == ".....!.."


def test_a_launcher_that_goes_on_in_time_is_not_told() -> None:
    assert "!" not in looks(StoppedLauncher(), "RTTTTRTTTTR")


def test_a_whole_tree_that_was_stopped_is_not_told() -> None:
    """The monitor has not run either, and wakes a moment before its launcher does."""
    assert "!" not in looks(StoppedLauncher(), "RTTTT", after=5 * S)
