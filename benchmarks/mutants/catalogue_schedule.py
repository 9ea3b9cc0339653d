"""Mistakes in when the reports of the straggler detector are made, who is heard, and what all ranks agree to do."""

from __future__ import annotations

from benchmarks.mutants.mutant import Mutant

__all__ = ["MUTANTS_OF_THE_SCHEDULE"]

_PLANS = ("tests/straggler/exchange/test_schedule.py",)
_VOTES = ("tests/straggler/exchange/test_agreement.py",)
_STORE = ("tests/straggler/exchange/test_exchange.py",)
_RANKS = ("tests/straggler/test_scheduled_reports.py",)
_THREAD = ("tests/straggler/test_report_thread.py",)
_RECORDS = ("tests/straggler/reporting/test_report_records.py",)
_SCHEDULE = "straggler/exchange/schedule.py"
_AGREEMENT = "straggler/exchange/agreement.py"
_EXCHANGE = "straggler/exchange/store.py"
_MESSAGES = "straggler/reporting/rank_messages.py"
_REPORTS = "straggler/scheduled_reports.py"

MUTANTS_OF_THE_SCHEDULE = (
    Mutant(
        "a rank that sees the next proposal first forgets what was agreed to",
        _AGREEMENT,
        "            if former.number == proposal.agreed:\n",
        "            if False:\n",
        _VOTES,
    ),
    Mutant(
        "what a function keeps in its own attributes is lost when it is timed no more",
        "straggler/measurement/callables.py",
        "    give_back(change.replacement)\n",
        "",
        ("tests/straggler/measurement/test_callables.py",),
    ),
    Mutant(
        "an attribute that a function has removed comes back",
        "straggler/measurement/timed.py",
        "    for name in before.keys() - now.keys():\n",
        "    for name in ():\n",
        ("tests/straggler/measurement/test_callables.py",),
    ),
    Mutant(
        "a line of the log of reports may have any fields",
        "straggler/reporting/report_records.py",
        "        if name not in record or not is_sound(record[name]):",
        "        if name not in record:",
        _RECORDS,
    ),
    Mutant(
        "nodes of a line of the log may have any number of ranks",
        "straggler/reporting/report_records.py",
        '    if sum(count for _, count in record["nodes"]) > len(record["ranks"]):',
        "    if False:",
        _RECORDS,
    ),
    Mutant(
        "a number of a line of the log may be infinite",
        "straggler/reporting/report_records.py",
        "type(value) in (int, float) and math.isfinite(value)",
        "type(value) in (int, float)",
        _RECORDS,
    ),
    Mutant(
        "a rank that is compared with nobody yet writes over the past of all",
        "straggler/measuring.py",
        "keeps_past=not self._is_early",
        "keeps_past=True",
        ("tests/straggler/reporting/test_kept_past.py",),
    ),
    Mutant(
        "the messages of a thousand ranks go to the store at once",
        _EXCHANGE,
        "max(1, _WRITE_BYTES // max(map(len, values), default=1))",
        "1024",
        _STORE,
    ),
    Mutant(
        "a rank reads the scores of another one",
        _MESSAGES,
        'messages[rank] = head + own.get(rank, b"{}\\n") + column.tobytes()',
        'messages[(rank + 1) % ranks] = head + own.get(rank, b"{}\\n") + column.tobytes()',
        ("tests/straggler/reporting/test_rank_messages.py",),
    ),
    Mutant(
        "a report is made in one go beside training",
        "straggler/scheduled_reports.py",
        "with self._pacer.beside_training(self._paced_for):",
        "if self._paced_for:",
        ("tests/straggler/test_pacing.py",),
    ),
    Mutant(
        "a report that somebody waits for is made in portions",
        "straggler/report_thread.py",
        "        return self._work.qsize() > 0\n",
        "        return False\n",
        ("tests/straggler/test_pacing.py",),
    ),
    Mutant(
        "what is used in one step counts for the next",
        "straggler/pacing.py",
        "if self._seen != self._steps:",
        "if self._seen > self._steps:",
        ("tests/straggler/test_pacing.py",),
    ),
    Mutant(
        "the thread that calls the store works in one go",
        "straggler/exchange/bounded_calls.py",
        "        function = carried(function)\n",
        "        carried(function)\n",
        ("tests/straggler/test_pacing.py",),
    ),
    Mutant(
        "a call to the store that waits for steps counts as one that hangs",
        "straggler/exchange/bounded_calls.py",
        "limit_seconds + min(longest_wait(), limit_seconds)",
        "limit_seconds",
        ("tests/straggler/test_pacing.py",),
    ),
    Mutant(
        "a rank is not told its bar",
        _MESSAGES,
        'bar=np.nan_to_num(wide("bar")),',
        'bar=np.nan_to_num(wide("level_bar")),',
        ("tests/straggler/reporting/test_rank_messages.py",),
    ),
    Mutant(
        "a rank that is behind never ends its window by time",
        _SCHEDULE,
        "if iteration >= plan.iteration or self._clock() >= latest:",
        "if iteration >= plan.iteration:",
        _PLANS,
    ),
    Mutant(
        "a report is planned without a view to how long others need to learn of it",
        _SCHEDULE,
        "        seconds = max(seconds, self._ahead_seconds)\n",
        "",
        _PLANS,
    ),
    Mutant(
        "an old plan is taken again",
        _SCHEDULE,
        "if plan.number >= self._next and self._plan is None:",
        "if self._plan is None:",
        _PLANS,
    ),
    Mutant(
        "the first step counts for the rate of the steps",
        _SCHEDULE,
        "        if iteration == 1 and elapsed < self.interval_seconds:\n",
        "        if False:\n",
        _PLANS,
    ),
    Mutant(
        "a window is planned from the beginning of the job, not from the last one",
        _SCHEDULE,
        "        self._from = (self.iteration, self._clock())\n        return number",
        "        return number",
        _PLANS,
    ),
    Mutant(
        "a rank consents to an iteration that it has passed",
        _AGREEMENT,
        "can = self._iteration() < proposal.iteration",
        "can = True",
        _VOTES,
    ),
    Mutant(
        "a rank that refuses keeps the proposal",
        _AGREEMENT,
        "        if not can:\n            self._set(None)\n",
        "",
        _VOTES,
    ),
    Mutant(
        "a rank does not wait for the final word",
        _AGREEMENT,
        "timeout=_WAIT_FACTOR * self._bound,",
        "timeout=0.0,",
        _VOTES,
    ),
    Mutant(
        "rank 0 makes a proposal final before all have answered",
        _AGREEMENT,
        "return True if count >= others else None",
        "return True",
        _VOTES,
    ),
    Mutant(
        "rank 0 takes a refusal for many consents",
        _AGREEMENT,
        "        if count >= Ballots.REFUSAL:\n            return False\n",
        "",
        _VOTES,
    ),
    Mutant(
        "rank 0 waits for ever for an answer",
        _AGREEMENT,
        "        if outcome is None and time.monotonic() >= self._until:\n            outcome = False\n",
        "",
        _VOTES,
    ),
    Mutant(
        "a proposal that was refused is not made again",
        _AGREEMENT,
        "if not outcome and self._tries < _TRIES:",
        "if False:",
        _VOTES,
    ),
    Mutant(
        "a rank that was late keeps a short grace in reports that nobody waits for",
        _EXCHANGE,
        "            elif grace is None and self._late",
        "            if grace is None and self._late",
        _STORE,
    ),
    Mutant(
        "a window overwrites the one before it",
        _EXCHANGE,
        "return kind_of(sequence), sequence % 2",
        "return kind_of(sequence), 0",
        _STORE,
    ),
    Mutant(
        "windows asked for overwrite those on schedule",
        _EXCHANGE,
        "return kind_of(sequence), sequence % 2",
        "return 0, sequence % 2",
        _STORE,
    ),
    Mutant(
        "a report on schedule waits the whole bound though the next is due",
        "straggler/report_thread.py",
        "return self.waiting > 0 or time.monotonic() >= self._hurried_from",
        "return time.monotonic() >= self._hurried_from",
        _THREAD,
    ),
    Mutant(
        "training makes its report itself",
        _REPORTS,
        "        self._thread.do(lambda: self._make(number, window))\n",
        "        self._make(number, window)\n",
        _RANKS,
    ),
    Mutant(
        "a decision is done at once by rank 0 alone",
        _REPORTS,
        "            self._agreement.propose(decision)\n",
        "            self.decision = decision\n",
        _RANKS,
    ),
    Mutant(
        "what is finished after the last iteration is lost",
        "straggler/measuring.py",
        "return self.reports.take_finished()",
        "return []",
        ("tests/straggler/test_detector.py",),
    ),
    Mutant(
        "a process that ends does not finish the report in hand",
        "straggler/report_thread.py",
        "        thread.close(grace_seconds=0.0, limit_seconds=0.5)\n",
        "        pass\n",
        _THREAD,
    ),
    Mutant(
        "a window that came too late for its report is thrown away",
        "straggler/exchange/gathered.py",
        "counts |= (numbers == sequence - 1) & (heard[windows.ranks] < numbers)",
        "pass",
        ("tests/straggler/test_wire.py",),
    ),
    Mutant(
        "a late window counts again that was in a report",
        "straggler/exchange/gathered.py",
        "counts |= (numbers == sequence - 1) & (heard[windows.ranks] < numbers)",
        "counts |= numbers == sequence - 1",
        ("tests/straggler/test_wire.py",),
    ),
    Mutant(
        "a window of another rank is taken for this one's",
        "straggler/exchange/wire.py",
        'is_sound &= (heads["rank"] == ranks) & (heads["world_size"] == len(payloads))',
        'is_sound &= heads["world_size"] == len(payloads)',
        ("tests/straggler/test_wire.py",),
    ),
    Mutant(
        "a connection that has failed is asked for ever",
        "straggler/exchange/bounded_calls.py",
        "return self._failures < _MOST_FAILURES and (",
        "return (",
        _STORE,
    ),
    Mutant(
        "rows that all ranks send are not put in order",
        "straggler/exchange/gathered.py",
        "        for place, row in zip(self._column.tolist(), by_row, strict=True):\n",
        "        for place, row in enumerate(by_row):\n",
        ("tests/straggler/test_wire.py",),
    ),
    Mutant(
        "ranks that send as many rows are taken to send the same",
        "straggler/exchange/gathered.py",
        "        is_alike = bool((by_rank == by_rank[0]).all()) and ",
        "        is_alike = ",
        ("tests/straggler/test_wire.py",),
    ),
    Mutant(
        "what ranks send is taken to be of as many rows each",
        "straggler/exchange/gathered.py",
        " and bool((owners == owners[:, :1]).all())",
        "",
        ("tests/straggler/test_wire.py",),
    ),
    Mutant(
        "ranks that sent nothing are taken to have sent what the next one did",
        "straggler/exchange/gathered.py",
        "owner[0] == 0 and owner[-1] == owner.size - 1",
        "owner.size",
        ("tests/straggler/test_wire.py",),
    ),
    Mutant(
        "the last window of a report is taken to be as long as the others",
        "straggler/exchange/wire.py",
        "(length := _distance(begins)) and (sizes == sizes[0]).all()",
        "length := _distance(begins)",
        ("tests/straggler/test_wire.py",),
    ),
    Mutant(
        "windows are taken to be equally long where the first two are",
        "straggler/exchange/wire.py",
        "len(between) and (between == between[0]).all() else",
        "len(between) else",
        ("tests/straggler/test_wire.py",),
    ),
    Mutant(
        "a time that is none is a time",
        "straggler/exchange/gathered.py",
        "kinds = np.where(is_time & (all_rows",
        "kinds = np.where((all_rows",
        ("tests/straggler/test_wire.py",),
    ),
)
