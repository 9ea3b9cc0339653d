"""Who was named, from when until when."""

from straggler.reporting.named_slow import Episodes, entries

VERDICT = {"node": "n", "state": "SLOW", "slowdown": 0.2, "section": "s", "since_report": 0, "because": ""}


def found(*reports):
    """Episodes of reports: (number, verdicts)."""
    episodes = Episodes()
    for index, (number, verdicts) in enumerate(reports):
        episodes.add(index, number, [{**VERDICT, **verdict} for verdict in verdicts])
    return [(e.rank, e.since, e.named, e.until) for e in episodes.found], episodes.found


def test_a_rank_that_is_sound_in_between_was_named_twice():
    spans, _ = found((0, [{"rank": 1}]), (1, []), (2, [{"rank": 1, "since_report": 2}]))
    assert spans == [(1, 0, 0, 0), (1, 2, 2, 2)]


def test_a_rank_that_does_not_answer_in_between_was_named_once():
    spans, _ = found((0, [{"rank": 1}]), (1, [{"rank": 1, "state": "UNKNOWN"}]), (2, [{"rank": 1}]))
    assert spans == [(1, 0, 0, 2)]


def test_a_rank_of_which_nothing_is_known_was_not_named():
    assert found((0, [{"rank": 1, "state": "UNKNOWN"}]), (1, [{"rank": 1, "state": "OK"}]))[0] == []


def test_since_is_a_report_of_the_same_run():
    spans, _ = found((0, []), (1, []), (2, []), (0, []), (1, [{"rank": 1, "since_report": 0}]))
    assert spans == [(1, 3, 4, 4)]


def test_since_is_no_report_of_the_run_before_where_its_own_line_is_lost():
    spans, _ = found((0, []), (1, []), (2, []), (2, [{"rank": 1, "since_report": 1}]))
    assert spans == [(1, 3, 3, 3)]


def test_since_before_the_log_begins_is_the_report_that_names_it():
    assert found((7, [{"rank": 1, "since_report": 5}]))[0] == [(1, 0, 0, 0)]


def test_ranks_of_a_node_that_were_slow_at_other_times_are_entries_of_their_own():
    _, episodes = found((0, [{"rank": 0}]), (1, []), (2, [{"rank": 1, "since_report": 2}]), (3, []))
    assert [entry.title for entry in entries(episodes, {"n": 2})] == ["rank 1", "rank 0"]


def test_the_last_to_be_named_is_first_and_of_those_the_slowest():
    _, episodes = found(
        (0, [{"rank": 0, "node": "a"}, {"rank": 8, "node": "b"}]),
        (1, [{"rank": 8, "node": "b"}, {"rank": 16, "node": "c", "slowdown": 0.5}]),
    )
    assert [entry.title for entry in entries(episodes, {"a": 8, "b": 8, "c": 8})] == ["rank 16", "rank 8", "rank 0"]
