"""All ranks do what rank 0 proposes at the same iteration, or none does."""

import threading
import time

import hypothesis.strategies as st
from hypothesis import given

from straggler.exchange.agreement import Agreement, Ballots

DECISION = {"stop": "rank 1"}


class Job:
    """Ranks whose messages are delivered, and whose training advances, in any order the test wants."""

    def __init__(self, ranks, bound=60.0):
        self.shown = []
        self.answers = {}
        self.iterations = [0] * ranks
        self.seen = [0] * ranks
        self.done = [None] * ranks
        self.ranks = [self.make(rank, ranks, bound) for rank in range(ranks)]

    def make(self, rank, ranks, bound):
        return Agreement(
            rank=rank,
            others=ranks - 1,
            bound_seconds=bound,
            put=self.shown.append,
            answer=lambda number, amount: self.answers.update({number: self.answers.get(number, 0) + amount}),
            count=lambda number: self.answers.get(number, 0),
            iteration=lambda: self.iterations[rank],
            steps_in=lambda seconds: 2,
            heard_within=0.0,
        )

    def look(self, rank):
        """Let a rank see what rank 0 shows now; what was shown before is gone."""
        if self.shown:
            self.ranks[rank].learn(self.shown[-1])

    def waits(self, rank):
        proposal = self.ranks[rank]._open
        return proposal is not None and proposal.is_final is None and self.iterations[rank] + 1 >= proposal.iteration

    def train(self, rank):
        """Take a step, unless the rank would wait, or has done what was decided."""
        if self.done[rank] is None and not self.waits(rank):
            self.iterations[rank] += 1
            if self.ranks[rank].due(self.iterations[rank]) is not None:
                self.done[rank] = self.iterations[rank]


def test_all_ranks_stop_at_the_proposed_iteration():
    job = Job(3)
    job.ranks[0].propose(DECISION)
    for rank in (1, 2):
        job.look(rank)
    job.ranks[0].settle()
    for rank in (1, 2):
        job.look(rank)
    for _ in range(10):
        for rank in range(3):
            job.train(rank)
    assert job.done == [3, 3, 3]


def test_a_rank_that_sees_the_next_proposal_first_still_does_what_was_agreed_to():
    """Rank 0 has done it and proposes something else, which takes the place of the final word that is shown."""
    job = Job(2)
    job.ranks[0].propose(DECISION)
    job.look(1)
    job.ranks[0].settle()
    for _ in range(3):
        job.train(0)
    assert job.done == [3, None]
    job.ranks[0].propose(DECISION)
    job.look(1)
    for _ in range(3):
        job.train(1)
    assert job.done == [3, 3]


def test_a_refusal_moves_it_further_ahead_and_after_three_nobody_stops():
    job = Job(2)
    job.iterations[1] = 1000
    job.ranks[0].propose(DECISION)
    for _ in range(3):
        assert job.ranks[0].is_open
        job.look(1)
        assert not job.ranks[1].is_open
        job.ranks[0].settle()
    assert not job.ranks[0].is_open
    assert [proposal.iteration for proposal in job.shown if proposal.is_final is None] == [3, 6, 12]
    for _ in range(20):
        job.train(0)
    assert job.done == [None, None]


def test_a_rank_that_does_not_answer_ends_a_proposal_after_the_bound():
    job = Job(3, bound=0.01)
    job.ranks[0].propose(DECISION)
    job.look(1)
    end = time.monotonic() + 60.0
    while job.ranks[0].is_open and time.monotonic() < end:
        job.ranks[0].settle()
        job.look(1)
    assert not job.ranks[0].is_open
    assert not job.ranks[1].is_open


def test_a_rank_waits_for_the_final_word_at_the_iteration_it_has_agreed_to():
    job = Job(2)
    job.ranks[0].propose(DECISION)
    job.look(1)
    job.iterations[1] = 3
    found = []
    training = threading.Thread(target=lambda: found.append(job.ranks[1].due(3)))
    training.start()
    job.ranks[0].settle()
    assert found == []
    job.look(1)
    training.join(60.0)
    assert found == [DECISION]


def test_a_rank_that_never_hears_the_final_word_goes_on_and_says_so(caplog):
    job = Job(2, bound=0.01)
    job.ranks[0].propose(DECISION)
    job.look(1)
    job.iterations[1] = 3
    assert job.ranks[1].due(3) is None
    assert "rank 0 did not say within 0.02 s whether all ranks agree to stop at iteration 3" in caplog.text
    assert job.ranks[1].due(4) is None


def test_a_second_decision_is_dropped_while_the_first_is_open():
    job = Job(2)
    job.ranks[0].propose(DECISION)
    job.ranks[0].propose({"stop": "rank 7"})
    assert [proposal.decision for proposal in job.shown] == [DECISION]


def test_an_answer_is_given_once():
    job = Job(2)
    job.ranks[0].propose(DECISION)
    for _ in range(3):
        job.look(1)
    assert job.answers == {0: 1}


def test_a_refusal_is_told_from_any_number_of_consents():
    assert Ballots.outcome(0, 3) is None
    assert Ballots.outcome(2, 3) is None
    assert Ballots.outcome(3, 3) is True
    assert Ballots.outcome(Ballots.REFUSAL, 3) is False
    assert Ballots.outcome(Ballots.REFUSAL + 2, 3) is False
    assert Ballots.outcome(0, 0) is True


@given(
    st.integers(2, 4).flatmap(
        lambda ranks: st.tuples(
            st.just(ranks),
            st.lists(st.tuples(st.sampled_from("tlps"), st.integers(0, ranks - 1)), max_size=120),
        )
    )
)
def test_in_any_order_of_messages_and_steps_all_stop_at_one_iteration_or_none_does(given_order):
    ranks, order = given_order
    job = Job(ranks)
    for what, rank in order:
        if what == "t":
            job.train(rank)
        elif what == "l" and rank:
            job.look(rank)
        elif what == "p":
            job.ranks[0].propose(DECISION)
        elif what == "s":
            job.ranks[0].settle()
    # Whatever is under way comes to its end: messages arrive, and training goes on.
    for _ in range(60):
        job.ranks[0].settle()
        for rank in range(ranks):
            if rank:
                job.look(rank)
            job.train(rank)
    assert len(set(job.done)) == 1


def test_what_is_done_is_not_done_again_when_the_final_word_comes_once_more():
    """It may be read, or counted, just before training does what it says."""
    job = Job(2)
    job.ranks[0].propose(DECISION)
    job.look(1)
    for _ in range(3):
        job.ranks[0].settle()
    assert [proposal.is_final for proposal in job.shown] == [None, True]
    job.look(1)
    final, at = job.shown[-1], job.shown[-1].iteration
    for rank in job.ranks:
        assert rank.due(at) == DECISION
        rank.learn(final)
        rank._finish(final)
        assert rank.due(at + 1) is None
        assert not rank.is_open
