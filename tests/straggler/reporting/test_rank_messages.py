"""What rank 0 sends back: versioned, checked by the reader, and never a reason to stop training."""

import json
import logging

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from straggler.errors import WireError
from straggler.exchange.exchange import LocalExchange
from straggler.exchange.gathered import assemble
from straggler.exchange.wire import encode
from straggler.measurement.measured import Family, Measured
from straggler.measurement.name_table import hash_name
from straggler.measurement.summary import summarise
from straggler.reporter import Reporter
from straggler.reporting.rank_messages import VERSION, RankMessage, decode_for_rank, encode_for_ranks, unknown_scores
from straggler.scoring.robust_scores import OK, SLOW, UNKNOWN, RobustScores
from straggler.scoring.scorer import Scorer
from straggler.settings import DetectorSettings

SCORES = unknown_scores(0, 2)


def test_every_rank_reads_the_decision():
    messages = encode_for_ranks(SCORES, {"stop": "rank 1"}, np.ones(2, bool), details=False)
    assert [decode_for_rank(messages[rank], rank, 2) for rank in (0, 1)] == [RankMessage({"stop": "rank 1"})] * 2


def test_a_rank_reads_scores_of_its_own():
    message = decode_for_rank(encode_for_ranks(SCORES, {}, np.ones(2, bool), details=True)[1], 1, 2)
    assert message.scores is not None
    assert message.scores.measured.shape == (2,)


def scores_of(ranks, windows, slow, settings=None):
    """Score some windows in which one rank is half as slow again from the fourth on, and one measures nothing."""
    scorer, random = Scorer(ranks, settings or DetectorSettings()), np.random.default_rng(1)
    for sequence in range(windows):
        payloads = []
        for rank in range(ranks):
            factor = 1.5 if rank == slow and sequence >= 3 else 1.0
            times = [factor * (0.1 + 0.001 * random.random()) for _ in range(5)]
            made = [Measured(Family.SECTION, name, summarise(times)) for name in ("forward", "backward")]
            rows = [] if rank == 3 else [(hash_name(row.name), row) for row in made]
            header = {"sequence": sequence, "rank": rank, "world_size": ranks, "elapsed": 60.0, "node": b"n"}
            payloads.append(encode(header, rows))
        scores = scorer.score(assemble(payloads, sequence))
    return scores


@pytest.mark.parametrize(
    "settings", [DetectorSettings(), DetectorSettings(scoring="minimum")], ids=["robust", "minimum"]
)
def test_each_rank_reads_what_rank_0_knows_of_it(settings):
    scores = attrs.evolve(scores_of(6, 12, slow=2, settings=settings), ambiguous=((1, 2), (4, 5)), job_wide=(7,))
    messages = encode_for_ranks(scores, {"stop": None}, np.ones(6, bool), details=True)
    for rank in range(6):
        read = decode_for_rank(messages[rank], rank, 6).scores
        assert_is_column(read, scores, rank)
        assert read.ambiguous == tuple(pair for pair in scores.ambiguous if rank in pair)
    if settings.scoring == "robust":
        assert [decode_for_rank(messages[n], n, 6).scores.against_peers.state[0, n] for n in (1, 2, 3)] == [
            OK,
            SLOW,
            UNKNOWN,
        ]


def assert_is_column(read, whole, rank):
    """Compare all that a rank has read with what rank 0 knows, field for field; of other ranks nothing is known."""
    for field in attrs.fields(type(whole)):
        told, known = getattr(read, field.name), getattr(whole, field.name)
        if isinstance(known, RobustScores):
            assert_is_column(told, known, rank)
        elif field.name == "recent":
            shown = [x for x in known if len(x) == len(whole.state)]
            assert len(told) == len(shown)
            for one, other in zip(told, shown, strict=True):
                np.testing.assert_array_equal(one[:, rank], other[:, rank])
        elif isinstance(known, np.ndarray) and field.name not in ("names", "arrival"):
            wide = np.broadcast_to(known, told.shape)
            np.testing.assert_array_equal(told[..., rank], wide[..., rank].astype(told.dtype), err_msg=field.name)
        elif field.name not in ("ambiguous", "kept_waiting"):
            np.testing.assert_array_equal(told, known, err_msg=field.name)


def plain(own=b"", **changes):
    return json.dumps({"version": VERSION, "decision": {}, **changes}).encode() + own


NUMBER = b"\n{}\n" + np.ones(1).tobytes()


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
        (plain(NUMBER, scores={"names": ["a"], "tables": [["relative", 1]]}), "scores that do not fit"),
        (plain(NUMBER, scores={"tables": [["relative", 2]]}), "scores that do not fit: .*1 numbers for the tables"),
        (plain(NUMBER, scores={"tables": [["relative", 2], ["seconds", -1]]}), "1 numbers for the tables"),
        (plain(NUMBER[:-1], scores={"tables": [["relative", 1]]}), "scores that do not fit"),
        (plain(b"\n[]\n", scores={"tables": []}), "scores that do not fit"),
        (plain(scores=7), "scores that do not fit"),
    ],
)
def test_what_is_no_such_message_is_refused(raw, told):
    with pytest.raises(WireError, match=told):
        decode_for_rank(raw, 0, 2)


ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
)


@settings(deadline=None)  # a busy machine fails no property
@given(
    st.one_of(
        st.binary(max_size=60),
        ANYTHING.map(lambda scores: plain(NUMBER, scores={"names": scores, "tables": scores, "ambiguous": scores})),
        st.builds(
            lambda window, number: plain(
                b"\n{}\n" + np.full(12, number).tobytes(),
                scores={
                    "tables": [[f"against_peers.{name}", 1] for name in OF_A_WINDOW],
                    "against_peers": {"names": [1], "k": 1, "number": 1, "recent": 1, "groups": [], **window},
                },
            ),
            st.dictionaries(st.sampled_from(["names", "k", "number", "recent", "groups"]), ANYTHING),
            st.floats(),
        ),
    )
)
def test_no_bytes_at_all_bring_it_down(raw):
    try:
        decode_for_rank(raw, 0, 2)
    except WireError:
        return


OF_A_WINDOW = ("excess", "drift", "reference", "spread", "noise", "strength", "level_bar", "bar")
OF_A_WINDOW += ("state", "since", "in_means", "recent.0")


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
        (
            None,
            "rank 0 did not answer within the bound, or its detector was shut down; this report has local times only",
        ),
        (
            plain(version=7),
            "rank 0 sent a message of version 7, and this rank reads 4: mixed installations?; this report "
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
