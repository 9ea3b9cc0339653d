"""Which limit is in force: what was learned never undercuts what evidence, or a person's word, supports."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_core import FaultToleranceConfig, RankMonitorClientError
from resilience_core.monitoring.interval_evidence import (
    ENOUGH_INTERVALS,
    ENOUGH_OF_ITS_OWN,
    ENOUGH_SECONDS,
    MEMORY_SECONDS,
    Evidence,
)
from resilience_core.monitoring.learned_limits import LearnedLimits, Seen
from resilience_core.monitoring.limit_resolver import no_restart_is_left
from resilience_core.protocol.cell import Cell
from resilience_core.protocol.cell_layout import LIMITS_TEXT, MAX_SECTIONS, NO_LIMIT, SHARED_SECTION, shown_name
from resilience_core.protocol.limit_kinds import FIRST_HEARTBEAT, HEARTBEAT, OUT_OF_SECTION
from resilience_core.protocol.limit_messages import origin_of
from resilience_core.protocol.limits_text import write_limits

S = 1_000_000_000
PLENTY = Seen(S // 10, ENOUGH_INTERVALS, int(ENOUGH_SECONDS * S))


def learned(sections: Any = None, gap: Seen | None = None, relaxed: Any = None, **settings: Any) -> LearnedLimits:
    limits = LearnedLimits(FaultToleranceConfig(**settings), relaxed, "ft_state.json")
    limits.learn_sections(sections or {}, gap, skip_if_not_ready=False)
    return limits


def step_limit(limits: LearnedLimits) -> float | None:
    return limits.section_timeouts.section["step"]


# ---- thin evidence ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "in_force"),
    [
        (PLENTY, 1.0),  # learned_timeout_floor
        (PLENTY._replace(longest_ns=S), 5.0),
        (PLENTY._replace(intervals=ENOUGH_INTERVALS - 1), 60.0),
        (PLENTY._replace(observed_ns=int(ENOUGH_SECONDS * S) - 1), 60.0),
        (Seen(20 * S, 3, 60 * S), 100.0),
    ],
)
def test_a_limit_from_thin_evidence_keeps_the_generous_floor(seen: Seen, in_force: float) -> None:
    assert step_limit(learned({"step": seen})) == in_force


@pytest.mark.parametrize("longest_seconds", [0.001, 30])
def test_what_happens_out_of_section_is_rare_and_keeps_the_floor_whatever_was_seen(longest_seconds: float) -> None:
    """No number of gaps between steps says how long the DataLoader's workers take to start at the next epoch."""
    seen = PLENTY._replace(longest_ns=int(longest_seconds * S), intervals=10**6)
    limits = learned(gap=seen)
    limits.learn_heartbeats(seen, seen, skip_if_not_ready=False)

    expected = max(60.0, 5 * longest_seconds)
    assert limits.section_timeouts.out_of_section == expected
    assert (limits.heartbeat_timeouts.initial, limits.heartbeat_timeouts.subsequent) == (expected, expected)


def test_another_runs_evidence_counts_only_once_this_process_has_seen_enough_itself() -> None:
    """The state file of a small run must not kill a larger one."""
    small = learned({"step": PLENTY})
    assert step_limit(small) == 1.0

    larger = LearnedLimits(FaultToleranceConfig())
    larger.load(json.loads(json.dumps(small.state_dict())))
    assert step_limit(larger) == 60.0
    larger.learn_sections({"step": Seen(2 * S, ENOUGH_OF_ITS_OWN - 1, 200 * S)}, None, False)
    assert step_limit(larger) == 60.0
    larger.learn_sections({"step": Seen(2 * S, 1, 2 * S)}, None, False)
    assert step_limit(larger) == 10.0


def test_a_long_interval_is_remembered_for_a_day_of_observation_and_then_halves_away() -> None:
    """What happens once per epoch does not happen between two saves; its limit must not fade meanwhile."""
    limits = learned({"step": PLENTY._replace(longest_ns=100 * S)})
    for _ in range(5):
        limits.learn_sections({"step": PLENTY}, None, False)
    assert step_limit(limits) == 500.0

    limits.learn_sections({"step": PLENTY._replace(observed_ns=int((MEMORY_SECONDS + 1) * S))}, None, False)
    assert step_limit(limits) < 20.0


# ---- where no restart is left ----------------------------------------------------------------------------


def in_the_last_generation(state: dict[str, Any], relaxed: Any = None, **settings: Any) -> LearnedLimits:
    limits = LearnedLimits(FaultToleranceConfig(**settings), relaxed, "ft_state.json", is_last=True)
    limits.load(state)
    return limits


def test_thin_evidence_ends_no_job_that_no_restart_could_save() -> None:
    """A run of 23 s had learned 60 s out of section; the next one evaluated for 72 s, and was lost."""
    limits = in_the_last_generation(learned({"step": PLENTY}, gap=Seen(49_820_701, 418, 6 * S)).state_dict())

    assert limits.section_timeouts.out_of_section == 3600.0  # which still finds a hang
    assert step_limit(limits) == 3600.0  # another run's evidence, as yet
    said = phrase(limits, "out of section", None, 3600).phrase
    assert "5 x 0.0498 s over 418 intervals, at least 3600 s where no restart is left, else 60 s; ft_state.json" in said
    assert limits.spared() == {
        "out of section": "out of section 3600 s (else 60 s)",
        "section step": "section step 3600 s (else 60 s)",
    }


def test_one_interval_is_one() -> None:
    limits = in_the_last_generation(learned({"step": Seen(S, 1, S)}, gap=Seen(S, 1, S)).state_dict())
    assert "over 1 interval, at least" in phrase(limits, "out of section", None, 3600).phrase
    assert "over 1 step, at least" in phrase(limits, "section", "step", 3600).phrase


def test_where_a_restart_is_left_thin_evidence_keeps_its_floor_and_nothing_is_said() -> None:
    limits = learned(gap=Seen(S, 9, S))
    assert (limits.section_timeouts.out_of_section, limits.spared()) == (60.0, {})


@pytest.mark.parametrize(
    ("settings", "in_force"),
    [
        ({"thin_evidence_floor": 6}, 360.0),
        ({"thin_evidence_floor": 0}, 5.0),  # somebody has switched it off
        ({"learned_limits": "replace"}, 5.0),
        ({"learned_limits": "off"}, None),
        ({"rank_section_timeouts": {"step": 3}}, 5.0),  # a person's word, lengthened by what was observed
        ({"rank_section_timeouts": {"step": 30}}, 30.0),
    ],
)
def test_what_somebody_has_chosen_is_in_force_where_no_restart_is_left(settings: Any, in_force: float | None) -> None:
    limits = in_the_last_generation(learned({"step": Seen(S, 9, S)}).state_dict(), **settings)
    assert limits.section_timeouts.section.get("step") == in_force


def test_plenty_of_evidence_counts_where_no_restart_is_left() -> None:
    limits = in_the_last_generation(learned({"step": PLENTY}).state_dict())
    limits.learn_sections({"step": PLENTY}, None, False)
    assert (step_limit(limits), limits.spared()) == (1.0, {})


@pytest.mark.parametrize(("longest", "verdicts", "in_force"), [(1, 1, 3600.0), (1, 4, 15_360.0), (900, 0, 4500.0)])
def test_a_limit_that_is_longer_anyway_is_not_lengthened_once_more(
    longest: int, verdicts: int, in_force: float
) -> None:
    state = learned(gap=Seen(longest * S, 9, S)).state_dict()
    assert in_the_last_generation(state, {OUT_OF_SECTION: verdicts}).section_timeouts.out_of_section == in_force


@pytest.mark.parametrize(
    ("taken", "allowed", "is_last"),
    [("0", "0", True), ("3", "3", True), ("2", "3", False), (None, "0", False), ("0", None, False), ("x", "0", False)],
)
def test_whether_a_restart_is_left_is_what_torchruns_variables_say(
    taken: str | None, allowed: str | None, is_last: bool
) -> None:
    variables = {"TORCHELASTIC_RESTART_COUNT": taken, "TORCHELASTIC_MAX_RESTARTS": allowed}
    assert no_restart_is_left({name: value for name, value in variables.items() if value is not None}) is is_last


# ---- configured and learned ------------------------------------------------------------------------------


@given(
    mode=st.sampled_from(["off", "relax", "replace"]),
    configured=st.none() | st.floats(0.5, 1000),
    longest=st.floats(0.001, 1000),
    intervals=st.integers(1, 1000),
    observed=st.floats(1, 10_000),
)
def test_how_a_configured_and_a_learned_limit_meet(
    mode: str, configured: float | None, longest: float, intervals: int, observed: float
) -> None:
    seen = Seen(int(longest * S), intervals, int(observed * S))
    limits = learned({"step": seen}, rank_section_timeouts={"step": configured}, learned_limits=mode)
    in_force = step_limit(limits)
    document = max(5 * (seen.longest_ns / S), 1.0)

    assert limits.state_dict()["current_timeouts"]["section"]["section"] == {"step": document}
    if mode == "off":
        assert in_force == configured
    elif mode == "replace":
        assert in_force == document
    else:
        is_thin = intervals < ENOUGH_INTERVALS or observed < ENOUGH_SECONDS
        lengthened = max(configured or 0, 5 * (seen.longest_ns / S))
        assert in_force == (max(document, 60.0 if is_thin else 1.0) if configured is None else lengthened)


@pytest.mark.parametrize(
    ("configured", "longest", "in_force"), [(3.0, 0.07, 3.0), (0.5, 0.07, 0.5), (3.0, 1.0, 5.0), (180.0, 0.07, 180.0)]
)
def test_what_a_person_has_configured_is_lengthened_by_observation_and_by_no_floor(
    configured: float, longest: float, in_force: float
) -> None:
    """A step limit of 3 s was 60 s in force after the first checkpoint of a short run."""
    seen = Seen(int(longest * S), 19, 2 * S)
    limits = learned(
        {"step": seen}, seen, rank_section_timeouts={"step": configured}, rank_out_of_section_timeout=configured
    )
    assert (step_limit(limits), limits.section_timeouts.out_of_section) == (in_force, in_force)


def test_a_default_is_nobodys_word_and_a_value_that_was_written_is() -> None:
    given_down = FaultToleranceConfig(given=frozenset({"rank_heartbeat_timeout"}))
    for config, in_force in ((FaultToleranceConfig(), 60.0), (given_down, 2700.0)):
        limits = LearnedLimits(config)
        limits.learn_heartbeats(Seen(S, 1, S), Seen(S, 5, S), False)
        assert limits.heartbeat_timeouts.subsequent == in_force


@given(verdicts=st.integers(1, 4), mode=st.sampled_from(["relax", "replace"]))
def test_a_learned_limit_that_led_to_verdicts_is_longer(verdicts: int, mode: str) -> None:
    counts = {"section step": verdicts}
    seen = {"step": PLENTY._replace(longest_ns=S), "other": PLENTY._replace(longest_ns=S)}

    limits = learned(seen, relaxed=counts, learned_limits=mode)

    assert limits.section_timeouts.section == {"step": 5.0 * 4**verdicts, "other": 5.0}
    assert limits.state_dict()["current_timeouts"]["section"]["section"] == {"step": 5.0, "other": 5.0}


# ---- the state -------------------------------------------------------------------------------------------


def test_a_state_that_was_written_before_evidence_was_kept_still_loads() -> None:
    state = learned({"step": PLENTY}).state_dict()
    del state["evidence"]
    limits = LearnedLimits(FaultToleranceConfig())
    limits.load(state)

    assert limits.state_dict() == state
    assert step_limit(limits) == 60.0


@pytest.mark.parametrize("evidence", [[], {"section step": 3}, {"section step": {"intervals": "many"}}])
def test_evidence_of_another_shape_is_refused_and_changes_nothing(evidence: Any) -> None:
    limits = learned({"step": PLENTY})
    before = limits.state_dict()

    with pytest.raises(RankMonitorClientError, match="evidence"):
        limits.load({**before, "evidence": evidence})
    assert limits.state_dict() == before


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.floats(0, 1e5), st.floats(1e-6, 1e4)), min_size=1, max_size=20),
)
def test_the_longest_interval_of_the_last_day_is_never_forgotten(windows: list[tuple[int, float, float]]) -> None:
    evidence, now, seen = Evidence(), 0.0, []
    for intervals, seconds, longest in windows:
        evidence = evidence.grown(intervals=intervals, seconds=seconds, longest=longest, factor=5)
        now += seconds
        seen.append((now, longest))

    assert evidence.intervals == sum(intervals for intervals, _, _ in windows)
    assert evidence.longest >= seen[-1][1]
    assert Evidence.from_json(json.loads(json.dumps(evidence.to_json())), "here") == evidence


# ---- in words --------------------------------------------------------------------------------------------


def phrase(limits: LearnedLimits, cause: str, section: str | None, seconds: float) -> Any:
    return origin_of(write_limits(limits.document(), 8192), cause, section, seconds)


def test_a_learned_limit_says_what_it_was_made_of_and_what_switches_it_off() -> None:
    seen = {"step": Seen(640_000_000, 812, 1000 * S)}
    limits = learned(seen, rank_section_timeouts={"step": 180}, learned_limits="replace")

    origin = phrase(limits, "section", "step", 3.2)

    assert origin.source == "learned"
    assert origin.phrase == (
        "learned: 5 x 0.64 s over 812 steps; configured 180 s; ft_state.json; --ft-learned-limits off switches it off"
    )
    assert "--ft-rank-section-timeouts" not in origin.advice  # it would be replaced again
    assert "--ft-learned-limits off (or relax)" in origin.advice


def test_the_advice_has_an_effect() -> None:
    """A named section makes every unnamed one an error; where none is named, that must not be advised."""
    alone = phrase(learned({"step": Seen(S, 9, S)}), "section", "step", 60)
    named = phrase(learned({"step": Seen(50 * S, 9, S)}, rank_section_timeouts={"step": 180}), "section", "step", 250)

    assert "at least 60 s" in alone.phrase
    assert "step:SECONDS" not in alone.advice
    assert "--ft-rank-section-timeouts step:SECONDS" in named.advice
    kept = phrase(learned({"step": Seen(S, 9, S)}, rank_section_timeouts={"step": 180}), "section", "step", 180)
    assert (kept.source, kept.phrase) == ("configured", "configured: --ft-rank-section-timeouts")


def test_what_is_rare_counts_for_less_with_each_calculation_where_limits_replace() -> None:
    """And the message says so, instead of a product that is not the limit; relax remembers."""
    limits = learned({"step": Seen(4 * S, 1, S)}, learned_limits="replace", rank_section_timeouts={"step": 20})
    relax = learned({"step": Seen(4 * S, 1, S)}, rank_section_timeouts={"step": 19})
    for each in (limits, relax):
        each.learn_sections({"step": Seen(S // 10, 1, S)}, None, skip_if_not_ready=False)
    assert (step_limit(limits), step_limit(relax)) == (10.25, 20)
    averaged = "averaged with, or kept from, other calculations; configured"
    assert f"learned: 5 x 4 s over 2 steps, {averaged}" in phrase(limits, "section", "step", 10.25).phrase
    limits.load({**limits.state_dict(), "evidence": {"section step": {"intervals": 2, "longest": 1.0, "factor": 5.0}}})
    assert f"learned: 5 x 1 s over 2 steps, {averaged}" in phrase(limits, "section", "step", 10.25).phrase


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (180.0, ""),
        (181.7, ""),  # ``load_state_dict`` right after init has it count from there on
        (250.0, "it changed meanwhile, or began to count later, and is 180 s now; "),
        (100.0, "it changed meanwhile, and is 180 s now; "),
    ],
)
def test_a_limit_is_said_to_have_changed_only_where_it_may_have(seconds: float, said: str) -> None:
    limits = LearnedLimits(FaultToleranceConfig(rank_section_timeouts={"step": 180}))
    assert phrase(limits, "section", "step", seconds).phrase == f"{said}configured: --ft-rank-section-timeouts"


def test_the_two_heartbeat_limits_are_told_apart() -> None:
    limits = LearnedLimits(FaultToleranceConfig(initial_rank_heartbeat_timeout=9))

    assert phrase(limits, "heartbeat", None, 9.0)[:3] == (
        FIRST_HEARTBEAT,
        "configured",
        "configured: --ft-initial-rank-heartbeat-timeout",
    )
    assert phrase(limits, "heartbeat", None, 2700.0)[:3] == (
        HEARTBEAT,
        "default",
        "default: --ft-rank-heartbeat-timeout",
    )


def test_heartbeat_limits_of_equal_length_are_told_apart_by_whether_one_was_sent() -> None:
    limits = LearnedLimits(FaultToleranceConfig(initial_rank_heartbeat_timeout=60, rank_heartbeat_timeout=60))
    text = write_limits(limits.document(), 8192)

    origins = {has_beaten: origin_of(text, "heartbeat", None, 60.0, has_beaten) for has_beaten in (True, False)}
    assert {has_beaten: origin and origin.kind for has_beaten, origin in origins.items()} == {
        True: HEARTBEAT,
        False: FIRST_HEARTBEAT,
    }


@pytest.mark.parametrize(
    ("mode", "configured", "longest", "basis"),
    [
        ("relax", None, 1, "learned"),
        ("relax", 180, 1, "configured"),
        ("relax", 180, 50, "configured"),  # lengthened, hence no shorter than what somebody has chosen
        ("replace", 180, 1, None),
        ("replace", None, 1, None),
        ("off", 180, 1, "configured"),
    ],
)
def test_what_a_limit_rests_on(mode: str, configured: int | None, longest: int, basis: str | None) -> None:
    limits = learned({"step": Seen(longest * S, 9, S)}, rank_section_timeouts={"step": configured}, learned_limits=mode)
    assert phrase(limits, "section", "step", step_limit(limits) or 0.0).basis == basis


def test_a_limit_that_nobody_has_chosen_is_no_configured_one() -> None:
    assert phrase(LearnedLimits(FaultToleranceConfig()), "heartbeat", None, 2700.0).basis is None


@pytest.mark.parametrize("name", ["step " * 20, "\udcff", "\u00e9" * 40, "a\0"])
def test_a_limit_is_found_by_the_name_that_the_cell_shows(name: str) -> None:
    """The cell cuts long names, and has no bytes for a lone surrogate."""
    limits = learned({name: Seen(S, 9, S), f"{name}, another": Seen(50 * S, 9, S)})
    with contextlib.closing(Cell.detached()) as cell:
        cell.words[cell.add_section(name)] = NO_LIMIT
        (section,) = cell.view().sections

    origin = phrase(limits, "section", section.name, 60)
    assert (origin.kind, origin.source) == (f"section {name}", "learned")


def test_a_relaxed_limit_says_so() -> None:
    limits = learned(gap=Seen(S, 9, S), relaxed={OUT_OF_SECTION: 2})

    assert "16 times as long after 2 verdicts" in phrase(limits, "out of section", None, 960).phrase


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", '{"limits": [1]}', '{"limits": {"section step": {}}}'])
def test_a_text_that_cannot_be_read_explains_nothing(text: str | None) -> None:
    assert origin_of(text, "section", "step", 1.0) is None


def test_more_limits_than_fit_leave_a_text_that_can_be_read() -> None:
    limits = learned({f"section number {n}": PLENTY for n in range(200)})
    limits.state_file = "of no UTF-8: \udcff"
    text = write_limits(limits.document(), 8192)

    assert len(text.encode()) <= 8192
    assert origin_of(text, "section", "section number 0", 1.0) is not None


@pytest.mark.parametrize("character", ["\udcff", "\u00e9", "\\", "f"])
def test_a_path_that_does_not_fit_is_cut(character: str) -> None:
    """Of undecodable bytes each takes six; a rank with such a path could not leave its limits at all."""
    names = [f"{n:02}" for n in range(MAX_SECTIONS - 1)]
    limits = learned(dict.fromkeys(names, PLENTY))
    limits.state_file = character * 4000 + "state.json"
    text = write_limits(limits.document(names), LIMITS_TEXT.size)

    assert len(text.encode()) <= LIMITS_TEXT.size
    for name in names:
        origin = origin_of(text, "section", name, 1.0)
        assert origin is not None
        assert f"{character}state.json; " in origin.phrase


def test_full_names_of_any_letters_are_kept_where_they_fit() -> None:
    names = [f"{n:02}" + "\u00e9" * 60 for n in range(MAX_SECTIONS - 1)]
    text = write_limits(learned(dict.fromkeys(names, PLENTY)).document(names), LIMITS_TEXT.size)

    for name in names:
        origin = origin_of(text, "section", shown_name(name), 1.0)
        assert origin is not None
        assert origin.kind == f"section {name}"


@pytest.mark.parametrize("letter", ["n", "\u00e9", "a\u00e9", "\u20ac", "a\u20ac", "aa\u20ac"])
def test_names_that_are_the_same_where_they_are_cut_keep_a_limit_each(letter: str) -> None:
    """Learned and configured alike: else a learned limit passes for a configured one, and yields to nobody."""
    names = [letter * 400 + str(n) for n in range(MAX_SECTIONS - 1)]
    configured = dict.fromkeys(names, 20.0)
    limits = learned({names[0]: Seen(S, 9, S)}, rank_section_timeouts={**configured, names[0]: None})
    shown = shown_name(names[0])
    text = write_limits(limits.document(names), LIMITS_TEXT.size)

    assert len(text.encode()) <= LIMITS_TEXT.size
    for seconds, source in ((60.0, "learned"), (20.0, "configured")):
        origin = origin_of(text, "section", shown, seconds)
        assert origin is not None
        assert (origin.kind, origin.source, origin.basis) == (f"section {shown}", source, source)


@pytest.mark.parametrize("letter", ["n", "\u00e9"])
def test_the_limits_of_all_that_have_a_slot_fit(letter: str) -> None:
    """What is not in the text yields to nobody: a rank that waited for a peer was condemned."""
    names = [f"{n:02}" + letter * 300 for n in range(MAX_SECTIONS - 1)]
    limits = learned({name: Seen(S + n, 812, S) for n, name in enumerate(names)})
    limits.state_file = "/" + "folder/" * 500
    for number in range(150):
        limits.share(f"shared {number}")
    text = write_limits(limits.document(names), LIMITS_TEXT.size)

    assert len(text.encode()) <= LIMITS_TEXT.size
    bases = set()
    for name in names:
        origin = origin_of(text, "section", shown_name(name), 60.0)
        assert origin is not None
        bases.add((origin.source, origin.basis))
    assert bases == {("learned", "learned")}


def test_a_limit_of_sections_that_share_a_slot_is_told_by_its_length() -> None:
    """Nobody knows which section it is; whether it yields to a peer's configured limit depends on it."""
    configured: dict[str, float | None] = {"b": 20, "c": 30, "free": None, "a": None, "named": 5}
    limits = learned({"a": Seen(S, 9, S)}, rank_section_timeouts=configured)
    for name in ("a", "b", "c", "free"):
        limits.share(name)
    text = write_limits(limits.document(["named"]), 8192)

    found = {seconds: origin_of(text, "section", SHARED_SECTION, seconds) for seconds in (60.0, 20.0, 30.5)}
    assert {seconds: origin and (origin.source, origin.basis, origin.kind) for seconds, origin in found.items()} == {
        60.0: ("learned", "learned", f"section {SHARED_SECTION}"),
        20.0: ("configured", "configured", f"section {SHARED_SECTION}"),
        30.5: ("configured", "configured", f"section {SHARED_SECTION}"),
    }
    assert found[60.0] is not None
    assert (found[60.0].phrase, found[60.0].advice) == (
        "learned; --ft-learned-limits off switches it off",
        "If this is legitimately slow, switch learned limits off: --ft-learned-limits off",
    )
    assert found[20.0] is not None
    assert (found[20.0].phrase, found[20.0].advice) == ("configured: --ft-rank-section-timeouts", "")


def test_limits_of_sections_that_share_a_slot_are_left_out_where_they_do_not_fit() -> None:
    """Where all have one source, that is still told; where not, nothing is."""
    both = learned(
        {f"a{n}": Seen(S + n * S, 9, S) for n in range(200)}, rank_section_timeouts={"b": 20}, learned_limits="replace"
    )
    for name in (*(f"a{n}" for n in range(200)), "b"):
        both.share(name)
    one = learned({f"a{n}": Seen(S + n * S, 9, S) for n in range(200)}, learned_limits="replace")
    for number in range(200):
        one.share(f"a{number}")
    assert origin_of(write_limits(both.document([]), 8192), "section", SHARED_SECTION, 20) is not None
    assert origin_of(write_limits(both.document([]), 400), "section", SHARED_SECTION, 20) is None
    text = write_limits(one.document([]), 400)
    origin = origin_of(text, "section", SHARED_SECTION, 20)
    assert origin is not None
    assert origin.source == "learned"
    assert len(text) <= 400


def test_many_limits_of_sections_that_share_a_slot_are_told_with_fewer_digits() -> None:
    names = [f"a{n}" for n in range(4000)]
    limits = learned(
        {name: Seen(S + n * S // 100, 9, S) for n, name in enumerate(names)},
        rank_section_timeouts={"b": 3.0},
        learned_limits="replace",
    )
    for name in (*names, "b"):
        limits.share(name)
    text = write_limits(limits.document([]), LIMITS_TEXT.size)

    assert len(text) <= LIMITS_TEXT.size
    found = [origin_of(text, "section", SHARED_SECTION, seconds) for seconds in (3.0, 5.0, 105.15, 204.9)]
    assert [origin and origin.source for origin in found] == ["configured", "learned", "learned", "learned"]

    names = [f"a{n}" for n in range(4000)]
    mixed = learned(
        {name: Seen(S + n * S // 100, 9, S) for n, name in enumerate(names)},
        rank_section_timeouts={**dict.fromkeys(names), "b": 103.04},
        learned_limits="replace",
    )
    for name in (*names, "b"):
        mixed.share(name)
    text = write_limits(mixed.document([]), LIMITS_TEXT.size)
    assert len(text) <= LIMITS_TEXT.size
    assert origin_of(text, "section", SHARED_SECTION, 103.04) is None, "with three digits both have 103"


@pytest.mark.parametrize(
    ("name", "is_shared", "told_as", "times"),
    [
        ("step", False, "step", 4),
        ("step", True, SHARED_SECTION, 4),
        ("step", False, SHARED_SECTION, 1),
        ("n" * 60, False, "n" * 47, 4),
        ("n" * 60, False, "n" * 46, 1),
    ],
)
def test_a_verdict_is_counted_by_the_name_that_the_report_has(
    name: str, is_shared: bool, told_as: str, times: int
) -> None:
    limits = learned({name: PLENTY}, relaxed={f"section {told_as}": 1}, learned_limits="replace")
    before = learned({name: PLENTY}, learned_limits="replace").section_timeouts.section[name]
    if is_shared:
        limits.share(name)
    assert before is not None
    assert limits.section_timeouts.section[name] == times * before


@pytest.mark.parametrize(
    ("counts", "times"),
    [
        ({"step": 1, SHARED_SECTION: 1}, 16),
        ({"step": 2, SHARED_SECTION: 1}, 64),
        ({"step": 9, SHARED_SECTION: 9}, 4**10),
        ({"step": 1, "other": 1}, 4),
    ],
)
def test_verdicts_under_several_names_count_together(counts: dict[str, int], times: int) -> None:
    """With each of them the launcher has announced that the limit is longer."""
    relaxed = {f"section {name}": count for name, count in counts.items()}
    limits = learned({"step": PLENTY}, relaxed=relaxed, learned_limits="replace")
    before = learned({"step": PLENTY}, learned_limits="replace").section_timeouts.section["step"]
    assert limits.section_timeouts.section["step"] == 4 ** counts["step"] * (before or 0)
    limits.share("step")
    assert limits.section_timeouts.section["step"] == times * (before or 0)


def test_what_is_learned_or_loaded_changes_what_was_found_before() -> None:
    limits = learned(learned_limits="replace", gap=Seen(S, 9, S))
    assert limits.section_timeouts.out_of_section == 5
    limits.learn_sections({"step": Seen(2 * S, 9, S)}, None, skip_if_not_ready=False)
    assert limits.section_timeouts.section == {"step": 10}
    limits.learn_heartbeats(Seen(S, 1, S), Seen(S, 2, S), skip_if_not_ready=False)
    assert limits.heartbeat_timeouts.subsequent == 5
    limits.load(learned({"step": Seen(3 * S, 9, S)}, learned_limits="replace").state_dict())
    assert limits.section_timeouts.section == {"step": 15}


def test_a_change_that_a_signal_handler_interrupts_leaves_nothing_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = learned(learned_limits="replace", gap=Seen(S, 9, S))
    assert limits.section_timeouts.section == {}

    def interrupted(kind: str, seen: Seen) -> None:
        raise TimeoutError

    monkeypatch.setattr(limits, "_note", interrupted)
    with pytest.raises(TimeoutError):
        limits.learn_sections({"step": Seen(2 * S, 9, S)}, None, skip_if_not_ready=False)
    assert limits.section_timeouts.section == {
        "step": limits.state_dict()["current_timeouts"]["section"]["section"]["step"]
    }


@pytest.mark.parametrize("configured", [None, 4.0, 60.0])
def test_what_an_earlier_run_has_learned_keeps_the_floor_of_this_one(configured: float | None) -> None:
    """Who raises it after a job was lost to a limit of 1 s lost the next job to the same limit."""
    state = learned({"step": Seen(S // 20, 9, S)}, Seen(S // 20, 9, S), learned_limits="replace").state_dict()
    assert state["current_timeouts"]["section"]["section"] == {"step": 1.0}
    limits = LearnedLimits(
        FaultToleranceConfig(
            rank_section_timeouts={"step": configured}, learned_limits="replace", learned_timeout_floor=30
        ),
        {"section step": 1},
    )
    limits.load(state)
    assert step_limit(limits) == 120, "after a verdict four times as long"
    assert limits.section_timeouts.out_of_section == 30
    assert limits.state_dict() == state


def test_a_learned_limit_that_lengthens_a_configured_one_needs_no_floor() -> None:
    limits = learned({"step": Seen(S, 9, S)}, rank_section_timeouts={"step": 2.0}, learned_timeout_floor=30)
    assert step_limit(limits) == 5.0, "five times what was seen"
