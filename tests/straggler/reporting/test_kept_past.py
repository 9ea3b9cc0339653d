"""What ranks took before, over a restart of the job: kept, given back, and not given to other ranks."""

import json
import os
import re
import time

import numpy as np
import pytest

from straggler import Detector
from straggler.exchange.gathered import assemble
from straggler.exchange.wire import encode
from straggler.measurement.measured import Family, Measured
from straggler.measurement.name_table import hash_name
from straggler.measurement.summary import summarise
from straggler.reporting.kept_past import KeptPast
from straggler.scoring.robust_scores import SLOW
from straggler.scoring.scorer import Scorer
from straggler.settings import DetectorSettings

SECTIONS = ("forward", "backward", "loader")
LONGEST_REST = 30.0
NOISE = np.random.default_rng(5)


def windows(sequence, *, slow=(), factor=1.0, ranks=4, missing=(), hosts="abcd", group="", sections=SECTIONS):
    """One report's windows: ``slow`` ranks take twice as long, all of them ``factor`` times."""
    made = []
    for rank in range(ranks):
        head = {"sequence": sequence, "rank": rank, "world_size": ranks, "elapsed": 1.0}
        head |= {"node": hosts[rank % len(hosts)].encode(), "peer_group": hash_name(f"{group}{rank}" if group else "")}
        rows = []
        for number, name in enumerate(sections):
            seconds = (number + 1) * factor * (2.0 if rank in slow else 1.0) * (1.0 + 0.01 * NOISE.random())
            rows.append((hash_name(name), Measured(Family.SECTION, name, summarise([seconds] * 5))))
        made.append(None if rank in missing else encode(head, rows))
    return assemble(made, sequence, list(hosts[:1] * ranks) if missing else None)


def generation(path, number, reports, *, scoring="robust", run="run", **first):
    """Make some reports in a generation of the job; return the scores of each."""
    kept = KeptPast(path, number, run)
    scorer = Scorer(first.get("ranks", 4), DetectorSettings(scoring=scoring))
    found = []
    for sequence in range(reports):
        found.append(kept.score(scorer, windows(sequence, **first)))
    kept.close()
    return found


@pytest.fixture(params=["robust", "minimum"])
def scoring(request):
    return request.param


def test_a_rank_that_became_slower_over_a_restart_is_slower_than_its_own_past(tmp_path, scoring):
    path = tmp_path / "reports.jsonl.past"
    generation(path, 0, 20, scoring=scoring)
    (first,) = generation(path, 1, 1, scoring=scoring, slow=[2])
    individual = first.individual
    assert individual[:, 2] == pytest.approx(0.5, abs=0.02)
    assert individual[:, [0, 1, 3]].min() > 0.97
    # And the generation after that still knows how fast rank 2 once was.
    (second,) = generation(path, 2, 1, scoring=scoring, slow=[2])
    assert second.individual[:, 2] == pytest.approx(0.5, abs=0.05)


def test_healthy_ranks_stay_healthy_over_restarts(tmp_path):
    path = tmp_path / "past"
    for number in range(3):
        for scores in generation(path, number, 15, sections=SECTIONS[: 3 - number % 2]):
            for of in (scores.against_peers, scores.against_past):
                assert not (of.state == SLOW).any()
            assert np.nanmin(scores.individual) > 0.97


def test_a_job_that_is_slower_as_a_whole_after_a_restart_has_no_slow_rank(tmp_path):
    """Longer data, for example: what all ranks share is a change of the work."""
    path = tmp_path / "past"
    generation(path, 0, 20)
    for scores in generation(path, 1, 15, factor=1.5):
        assert not (scores.against_past.state == SLOW).any()
        assert not (scores.against_peers.state == SLOW).any()
    assert np.nanmin(scores.individual) > 0.97, "learned anew"


def test_of_two_ranks_that_are_slower_together_none_is_slow(tmp_path):
    """There is no majority of two that would make the change one of the job; the peer has the last word."""
    path = tmp_path / "past"
    generation(path, 0, 20, ranks=2)
    for scores in generation(path, 1, 15, factor=1.5, ranks=2):
        assert not (scores.against_past.state == SLOW).any()
        assert not (scores.against_peers.state == SLOW).any()


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"hosts": "abce"}, "other hosts"),
        ({"hosts": "bacd"}, "other hosts"),
        ({"ranks": 5}, "another number of ranks"),
        ({"group": "stage"}, "other peer groups"),
        ({"run": "another"}, "another run"),
        ({"missing": [3]}, "other hosts|not all ranks"),
        ({"number": 0}, ""),
    ],
)
def test_other_ranks_begin_anew(tmp_path, caplog, scoring, changed, why):
    path = tmp_path / "past"
    generation(path, 0, 20, scoring=scoring)
    with caplog.at_level("INFO"):
        (first,) = generation(path, **{"number": 1, "reports": 1, "scoring": scoring, "slow": [2], **changed})
    assert np.nanmin(first.individual) == 1.0
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == bool(why)
    assert not why or any(part in said[0] for part in why.split("|"))


def _without(kept, key):
    return json.dumps({name: value for name, value in kept.items() if name != key})


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[:-10],
        lambda text: text[:3],
        lambda text: text[:27] + ":" + "[" * 100_000,
        lambda text: "\x00" * 64,
        lambda text: _without(json.loads(text), "nodes"),
        lambda text: _without(json.loads(text), "past"),
        lambda text: json.dumps({**json.loads(text), "version": 2}),
        lambda text: json.dumps({**json.loads(text), "past": {}}),
        lambda text: json.dumps({**json.loads(text), "past": {"usual": {"names": "AAAA"}}}),
        lambda text: text.replace('"learnt": "', '"learnt": "AAAA'),
        lambda text: text.replace('"seconds": "', '"seconds": "!'),
    ],
)
def test_a_damaged_file_begins_anew_with_one_message(tmp_path, caplog, damage):
    path = tmp_path / "past"
    generation(path, 0, 20)
    path.write_text(damage(path.read_text()))
    found = generation(path, 1, 2, slow=[2])
    assert np.nanmin(found[0].individual) == 1.0
    (said,) = [record.getMessage() for record in caplog.records]
    assert "cannot be read" in said
    assert "begins anew" in said
    assert json.loads(path.read_text())["generation"] == 1


@pytest.mark.parametrize(
    "content",
    [
        b"my own notes\n",
        b'{"a": 1}',
        b"[]",
        b"{\n",
        b"\x7fELF\x00\x00",
        b"\x00\x00notes",
        b'{"format": "straggler-report"}\n',
    ],
)
def test_what_is_not_ours_stays_and_is_said_once(tmp_path, caplog, content):
    path = tmp_path / "past"
    path.write_bytes(content)
    found = generation(path, 1, 2)
    assert np.nanmin(found[0].individual) == 1.0
    assert path.read_bytes() == content
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"{path}: it holds something else and is left as it is; move it away" in said
    path.unlink()
    generation(path, 1, 2)
    assert json.loads(path.read_text())["generation"] == 1
    assert [each.name for each in tmp_path.iterdir()] == ["past"]


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (os.mkdir, "a folder"),
        (os.mkfifo, "a pipe"),
        (lambda path: os.symlink("/dev/full", path), "a device"),
        (lambda path: os.symlink(path, path), "symbolic links|loop"),
    ],
)
def test_what_is_no_file_stays_and_is_said_once_without_a_wait(tmp_path, caplog, make, what):
    path = tmp_path / "past"
    make(path)
    before = os.lstat(path)
    began = time.monotonic()
    generation(path, 1, 3)
    assert time.monotonic() - began < LONGEST_REST
    assert os.path.samestat(os.lstat(path), before)
    said = [record.getMessage() for record in caplog.records if "cannot be kept" in record.getMessage()]
    assert len(said) == 1
    assert re.search(what, said[0])


def test_through_a_link_the_file_that_it_leads_to_is_replaced(tmp_path):
    target, path = tmp_path / "folder" / "kept", tmp_path / "past"
    target.parent.mkdir()
    path.symlink_to("folder/kept")
    generation(path, 0, 1)
    generation(path, 1, 1)
    assert path.is_symlink()
    assert json.loads(target.read_text())["generation"] == 1
    assert [each.name for each in target.parent.iterdir()] == ["kept"]


def test_a_link_to_a_file_that_is_not_ours_stays_with_its_file(tmp_path, caplog):
    target, path = tmp_path / "notes", tmp_path / "past"
    target.write_text("my own notes\n")
    path.symlink_to(target)
    generation(path, 1, 1)
    assert path.is_symlink()
    assert target.read_text() == "my own notes\n"
    assert len(caplog.records) == 1


def test_no_file_is_no_message(tmp_path, caplog):
    generation(tmp_path / "past", 1, 1)
    assert not caplog.records


def test_a_file_that_cannot_be_written_is_said_once(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    kept = KeptPast(tmp_path / "file" / "past", 0, "run")
    scorer = Scorer(4, DetectorSettings())
    for sequence in range(2):
        kept.score(scorer, windows(sequence))
        kept.close()
    (said,) = [record.getMessage() for record in caplog.records]
    assert "cannot be kept" in said


def test_a_system_that_refuses_threads_stops_no_report(tmp_path, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    generation(tmp_path / "past", 0, 12)
    monkeypatch.setattr("threading.Thread.start", refuse)
    (first,) = generation(tmp_path / "past", 1, 1, slow=[2])
    assert np.nanmin(first.individual) == 1.0


def test_it_is_kept_beside_the_log_where_a_launcher_restarts(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert KeptPast.beside(tmp_path / "reports.jsonl") is None
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    assert KeptPast.beside(None) is None
    assert KeptPast.beside(tmp_path / "reports.jsonl").path == tmp_path / "reports.jsonl.past"


def test_a_detector_that_is_made_before_the_process_group_leaves_the_past_of_all_ranks_alone(tmp_path, monkeypatch):
    """A rank that is compared with nobody yet would write its own, and the next report would find that."""
    generation(tmp_path / "reports.jsonl.past", 0, 20)
    before = (tmp_path / "reports.jsonl.past").read_bytes()
    for name, value in (("RUN_ID", "run"), ("RESTART_COUNT", "1")):
        monkeypatch.setenv(f"TORCHELASTIC_{name}", value)
    for name, value in (("WORLD_SIZE", "4"), ("RANK", "0")):
        monkeypatch.setenv(name, value)
    detector = Detector()
    detector.initialize(log_path=tmp_path / "reports.jsonl")
    for _ in range(3):
        with detector.detection_section("work"):
            pass
    assert detector.generate_report().world_size == 1
    detector.shutdown()
    assert (tmp_path / "reports.jsonl").stat().st_size > 0
    assert (tmp_path / "reports.jsonl.past").read_bytes() == before
