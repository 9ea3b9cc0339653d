"""SavesByThread: whose save ends when a thread reports an end, also one that was abandoned before."""

from __future__ import annotations

from resilience_core._saves_by_thread import SavesByThread
from tests.threads import in_a_thread


def test_each_late_end_of_a_nested_save_that_was_abandoned_ends_no_other() -> None:
    """The second one was taken for the end of a writer's save, which was no longer watched then."""
    saves = SavesByThread()
    saves.begin()
    saves.begin()
    assert saves.abandon()
    assert in_a_thread(saves.begin)
    (writer,) = saves.depths
    for _ in range(2):
        assert saves.thread_of_end() is None
        saves.forget_abandoned()
    assert saves.thread_of_end() == writer


def test_the_late_end_of_an_abandoned_save_is_known_once() -> None:
    saves = SavesByThread()
    saves.begin()
    saves.abandon_all()
    assert [saves.was_abandoned(), saves.was_abandoned()] == [True, False]


def test_an_abandoned_save_is_forgotten_when_its_thread_begins_another() -> None:
    saves = SavesByThread()
    saves.begin()
    saves.abandon()
    in_a_thread(saves.begin)
    assert saves.begin()
    assert saves.end(saves.thread_of_end() or 0)
    assert saves.thread_of_end() is not None
