"""Sections: samples, threads, nesting, names and places, and the collective counter."""

import threading
import time

import pytest

from resilience_core import ConfigError
from straggler import Detector, DetectorError, SectionNameError
from straggler.measurement.section import Section, SectionClock
from straggler.measurement.summary import Statistic
from straggler.probes.cpu_wall import CpuWallProbe


def drained(section):
    samples = section.drain()
    return samples.durations(), samples.arrivals()


def test_each_entry_is_one_sample():
    section = Section("s", SectionClock())
    for _ in range(5):
        with section:
            pass
    seconds, arrivals = drained(section)
    assert len(seconds) == 5
    assert (seconds > 0).all()
    assert len(arrivals) == 0
    assert len(drained(section)[0]) == 0


def test_every_third_entry_is_measured_with_a_profiling_interval_of_three():
    section = Section("s", SectionClock(), profiling_interval=3)
    for _ in range(7):
        with section:
            pass
    assert len(drained(section)[0]) == 3


def test_an_entry_that_ends_with_an_exception_is_no_sample_and_leaves_the_section_closed():
    section = Section("s", SectionClock())
    with pytest.raises(KeyError), section:
        raise KeyError
    assert not section.is_open
    assert len(drained(section)[0]) == 0


def test_recursion_counts_the_outermost_entry_only():
    section = Section("s", SectionClock())
    with section, section, section:
        pass
    assert not section.is_open
    assert len(drained(section)[0]) == 1


def test_an_entry_at_the_limit_of_recursion_does_not_keep_the_section_open():
    section = Section("s", SectionClock())

    def deeper():
        with section:
            deeper()

    for _ in range(3):
        with pytest.raises(RecursionError):
            deeper()
        assert not section.is_open
    with section:
        pass
    assert len(drained(section)[0]) == 1


def test_two_threads_may_be_inside_at_once():
    section = Section("s", SectionClock())
    inside, leave = threading.Event(), threading.Event()

    def other():
        with section:
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with section:
        thread.start()
        assert inside.wait(60)
    leave.set()
    thread.join(60)
    assert len(drained(section)[0]) == 2


def elsewhere(function):
    """Call on another thread; return what it raised."""
    raised = []

    def other():
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(60)
    return raised


def test_an_entry_left_on_another_thread_is_no_sample_and_said_once(caplog):
    section = Section("data", SectionClock())

    def batches():
        for number in range(3):
            with section:
                yield number

    found = batches()
    for _ in range(2):
        next(found)
        assert not elsewhere(lambda: next(found, None))
    with section:
        pass
    assert not section.is_open
    assert len(drained(section)[0]) == 1, "and entries that follow on this thread are"
    (said,) = caplog.messages
    assert "section 'data' was left on a thread that had not entered it" in said


def test_what_the_training_raises_in_an_entry_left_elsewhere_is_not_hidden(caplog):
    section = Section("data", SectionClock())

    def batches():
        with section:
            yield 1
            raise KeyError("of the training")

    found = batches()
    next(found)
    (raised,) = elsewhere(lambda: next(found))
    assert isinstance(raised, KeyError)
    assert not drained(section)[0].size


def test_a_section_that_nobody_has_entered_can_be_left(caplog):
    section = Section("data", SectionClock())
    section.__exit__(None, None, None)
    assert not section.is_open
    assert len(caplog.messages) == 1


def test_an_inner_entry_left_elsewhere_keeps_the_outer_one():
    section = Section("data", SectionClock())
    with section:
        section.__enter__()
        assert not elsewhere(lambda: section.__exit__(None, None, None))
        assert section.is_open
    assert len(drained(section)[0]) == 1


def test_a_section_that_two_generators_have_open_in_turn_is_said_to_measure_nothing():
    section, probe = Section("parts", SectionClock()), CpuWallProbe()
    probe.watch(section, False)

    def parts():
        while True:
            with section:
                yield

    first, second = parts(), parts()
    for _ in range(3):
        next(first)
        next(second)
    assert probe.collect().notes == [
        "section 'parts' was entered 6 times while it was open, so nothing was measured: if there is a yield inside, "
        "leave the section before it"
    ]
    first.close()
    second.close()
    with section:
        pass
    assert probe.collect().notes == []
    with section:  # a long one
        assert probe.collect().notes == []


def test_a_section_with_a_collective_in_most_entries_is_synchronous_and_has_arrivals():
    number = 0

    def counter():
        return number

    section = Section("s", SectionClock(counter))
    for entry in range(6):
        with section:
            number += entry != 0
    assert section.synchronous
    # Entries 0 to 2 had no majority yet, and the release before the first arrival is entry 3's.
    seconds, arrivals = drained(section)
    assert len(seconds) == 6
    assert 1 <= len(arrivals) <= 4


def test_one_collective_in_a_second_entry_does_not_make_it_synchronous():
    number = 0
    section = Section("s", SectionClock(lambda: number))
    for entry in range(20):
        with section:
            number += entry == 1
    assert not section.synchronous


def test_a_declared_kind_is_believed():
    assert Section("s", SectionClock(), kind="wait").synchronous
    work = Section("s", SectionClock(iter(range(1000)).__next__), kind="work")
    with work:
        pass
    assert not work.synchronous


def test_a_name_belongs_to_one_place(detector):
    with detector.detection_section("fwd"):
        pass
    with pytest.raises(SectionNameError, match=r"'fwd' is already at .*test_section.py:\d+"):
        detector.detection_section("fwd")


def test_a_name_may_be_reused_at_its_place(detector):
    for _ in range(3):
        with detector.detection_section("fwd"):
            pass
    report = detector.generate_report()
    assert list(report.local_section_summaries) == ["fwd"]


def test_both_copies_of_a_finally_block_are_one_place(detector):
    def step(fail):
        try:
            if fail:
                raise KeyError
        finally:
            with detector.detection_section("cleanup"):
                pass

    step(False)
    with pytest.raises(KeyError):
        step(True)


def test_sections_without_a_name_are_told_apart_by_place(detector):
    with detector.detection_section() as first:
        pass
    with detector.detection_section() as second:
        pass
    assert first.name != second.name
    assert first.name.startswith("test_section.py:")


def test_two_files_of_one_name_do_not_share_an_unnamed_section(detector):
    source = "def section(detector):\n    return detector.detection_section()\n"
    made = []
    for folder in ("a", "b"):
        namespace = {}
        exec(compile(source, f"/{folder}/train.py", "exec"), namespace)
        made.append(namespace["section"](detector))
    assert made[0] is not made[1]
    assert made[0].name != made[1].name


def test_names_that_are_made_at_run_time_are_said_once(detector, caplog):
    for number in range(510):
        with detector.detection_section(f"step {number}"):
            pass
    assert [message for message in caplog.messages if "made at run time" in message] == caplog.messages[-1:]


@pytest.mark.parametrize("name", ["", 3, b"x"])
def test_a_name_is_text(detector, name):
    with pytest.raises(ConfigError, match="name is text"):
        detector.detection_section(name)


def test_an_unknown_kind_names_the_nearest(detector):
    with pytest.raises(ConfigError, match="did you mean 'wait'"):
        detector.detection_section("s", kind="waits")


def test_sections_before_initialize_say_what_to_do():
    with pytest.raises(DetectorError, match=r"call Detector.initialize"):
        Detector().detection_section("s")


def test_the_time_spent_in_a_section_counts_entries_that_are_not_measured():
    """A share of all time would else be a quarter of it."""
    probe = CpuWallProbe()
    section = Section("forward", SectionClock(), profiling_interval=4)
    probe.watch(section, False)
    for _ in range(2):
        for _ in range(12):
            with section:
                time.sleep(0.001)
        (row,) = probe.collect().rows
        assert row.summary[Statistic.NUM] == 3
        assert row.total == pytest.approx(12 * row.summary[Statistic.AVG])
