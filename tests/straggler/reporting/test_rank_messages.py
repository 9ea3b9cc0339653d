"""What rank 0 sends back: versioned, checked by the reader, and never a reason to stop training."""

import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from straggler.errors import WireError
from straggler.exchange.exchange import LocalExchange
from straggler.reporter import Reporter
from straggler.reporting.rank_messages import VERSION, RankMessage, decode_for_rank, encode_for_ranks, unknown_scores
from straggler.settings import DetectorSettings

SCORES = unknown_scores(0, 2)


def test_every_rank_reads_the_decision():
    messages = encode_for_ranks(SCORES, {"stop": "rank 1"}, 2, details=False)
    assert [decode_for_rank(messages[rank], rank, 2) for rank in (0, 1)] == [RankMessage({"stop": "rank 1"})] * 2


def test_a_rank_reads_scores_of_its_own():
    message = decode_for_rank(encode_for_ranks(SCORES, {}, 2, details=True)[1], 1, 2)
    assert message.scores is not None
    assert message.scores.measured.shape == (2,)


def plain(**changes):
    return json.dumps({"version": VERSION, "decision": {}, **changes}).encode()


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (plain(version=VERSION + 1), rf"version {VERSION + 1}, and this rank reads {VERSION}: mixed installations"),
        (json.dumps({"decision": {}}).encode(), "no message of a report"),
        (b"[1, 2]", "no message of a report"),
        (b"\xff", "no message of a report"),
        (b"[" * 200_000, "no message of a report"),
        (plain(decision="stop"), "a decision that is str"),
        (plain(scores={"names": ["a"]}), "scores that do not fit"),
        (plain(scores={"relative": [[1.0]]}), "scores that do not fit"),
        (plain(scores=7), "scores that do not fit"),
    ],
)
def test_what_is_no_such_message_is_refused(raw, told):
    with pytest.raises(WireError, match=told):
        decode_for_rank(raw, 0, 2)


@settings(deadline=None)  # a busy machine fails no property
@given(
    st.one_of(
        st.binary(max_size=60),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=5)),
            lambda inner: st.one_of(
                st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
            ),
        ).map(lambda scores: plain(scores={"names": scores, "seconds": scores, "ambiguous": scores})),
    )
)
def test_no_bytes_at_all_bring_it_down(raw):
    try:
        decode_for_rank(raw, 0, 2)
    except WireError:
        return


class Answered(LocalExchange):
    """Rank 1 of 2, and what rank 0 has sent it."""

    rank = 1
    world_size = 2

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def outcome(self, sequence, is_over=None):
        return self.answer


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, "rank 0 did not answer within the bound; this report has local times only"),
        (
            plain(version=7),
            "rank 0 sent a message of version 7, and this rank reads 2: mixed installations?; this report "
            "has local times only",
        ),
    ],
)
def test_a_rank_without_a_readable_answer_has_its_local_times(answer, told, caplog):
    reporter = Reporter(Answered(answer), [], DetectorSettings(node_name="n", gather_on_rank0=False))
    with caplog.at_level(logging.WARNING):
        report, decision = reporter.make(0, reporter.cut(), None)
    assert report is not None
    assert told in str(report.notes)
    assert decision == {}
    assert ("this rank does not know what rank 0 decided" in caplog.text) == (answer is not None)
