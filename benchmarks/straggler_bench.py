"""Straggler figures: section cost, scoring speed, report cost, evaluation on the simulator.

    python benchmarks/straggler_bench.py [--quick] [--reports RANKS,...]

Timings are medians over repetitions; run it on an idle machine, and pin it to one core (``taskset -c 0``) for the
scoring figures, which are meant for one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from datetime import timedelta

import numpy as np

from straggler import Detector
from straggler.exchange.gathered import assemble
from straggler.exchange.store import StoreExchange
from straggler.exchange.wire import encode
from straggler.measurement.measured import Family, Measured
from straggler.measurement.name_table import hash_name
from straggler.measurement.summary import summarise
from straggler.probes.cpu_wall import CpuWallProbe
from straggler.reporting.rank_messages import encode_for_ranks
from straggler.reporting.report import Report
from straggler.scoring.minimum import MinimumScorer
from straggler.scoring.peers import PeerGroups
from straggler.scoring.robust import RobustScorer
from straggler.scoring.scorer import Scorer
from straggler.settings import DetectorSettings
from straggler.simulation.evaluation import Confusion, clean_windows, evaluate, with_stragglers
from straggler.simulation.simulator import SimulatedJob, SimulatedSlowdown


class Timing(float):
    """A median in milliseconds that remembers the best, which says more on a machine that is not idle."""

    best: float = 0.0


def median_ms(call: Callable[[], object], repeats: int) -> Timing:
    """Median wall time of a call, in milliseconds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    timing = Timing(1e3 * statistics.median(times))
    timing.best = 1e3 * min(times)
    return timing


def section_cost() -> None:
    """Nanoseconds of one enter and exit."""
    detector = Detector()
    detector.initialize(probes=[CpuWallProbe()])
    count = 100_000

    def loop() -> None:
        for _ in range(count):
            with detector.detection_section("step"):
                pass

    def class_loop() -> None:
        for _ in range(count):
            with Detector.detection_section("step"):
                pass

    timing = median_ms(loop, 15)
    print(
        f"detection_section enter+exit, instance: {1e6 * timing / count:.0f} ns, best {1e6 * timing.best / count:.0f}"
    )
    detector.shutdown()
    Detector.initialize(probes=[CpuWallProbe()])
    timing = median_ms(class_loop, 15)
    print(
        f"detection_section enter+exit, class:    {1e6 * timing / count:.0f} ns, best {1e6 * timing.best / count:.0f}"
    )
    Detector.shutdown()


def scoring_speed(ranks: int) -> None:
    """Milliseconds to score one window, robust and minimum."""
    random = np.random.default_rng(0)
    names = np.arange(16, dtype=np.uint64)
    constant = 1.0 + 0.02 * random.standard_normal((16, ranks))
    windows = [constant * (1.0 + 0.014 * random.standard_normal((16, ranks))) for _ in range(4)]
    scorer = RobustScorer(ranks)
    began = time.perf_counter()
    scorer.update(names, windows[0])
    first = 1e3 * (time.perf_counter() - began)
    for number in range(9):
        scorer.update(names, windows[number % 4])
    steady = iter(range(10**6))
    robust = median_ms(lambda: scorer.update(names, windows[next(steady) % 4]), 15)
    grouped_scorer, groups = RobustScorer(ranks), PeerGroups(np.arange(ranks, dtype=np.int64) % 8)
    for number in range(10):
        grouped_scorer.update(names, windows[number % 4], groups=groups)
    grouped = median_ms(lambda: grouped_scorer.update(names, windows[next(steady) % 4], groups=groups), 9)
    minimum = MinimumScorer()
    least = median_ms(lambda: minimum.relative_sections(windows[0]), 9)
    print(
        f"scoring {ranks} x 16: robust {robust:.1f} ms, best {robust.best:.1f} "
        f"(first window {first:.0f} ms, it makes the memory; "
        f"in 8 peer groups {grouped:.1f} ms, best {grouped.best:.1f}), minimum {least:.1f} ms"
    )


def report_cost(ranks: int) -> None:
    """What a report costs rank 0 and any other rank, through a real TCPStore on this machine."""
    import torch.distributed as dist

    server = dist.TCPStore("127.0.0.1", 0, None, True, timeout=timedelta(seconds=60))
    made = [Measured(Family.SECTION, f"section {row}", summarise([0.1, 0.11, 0.12])) for row in range(16)]
    rows = [(hash_name(row.name), row) for row in made]
    exchange = StoreExchange(server, 0, ranks, bound_seconds=30.0, prefix="bench")
    for sequence in range(2):
        for rank in range(1, ranks):
            payload = encode(
                {"sequence": sequence, "rank": rank, "world_size": ranks, "elapsed": 60.0, "node": b"n"}, rows
            )
            server.set(exchange._window(sequence, rank), b"%d " % sequence + payload)
        server.add(f"bench/count/{sequence}", ranks - 1)
        payload = encode({"sequence": sequence, "rank": 0, "world_size": ranks, "elapsed": 60.0, "node": b"n"}, rows)
        posted = median_ms(lambda s=sequence, p=payload: exchange.post(s, p), 1)  # type: ignore[misc]
        began = time.perf_counter()
        payloads = exchange.collect(sequence)
        collected = time.perf_counter()
        assert None not in payloads, "the exchange reads windows from other keys than these"
        gathered = assemble(payloads, sequence)
        lined_up = time.perf_counter()
        scorer = Scorer(ranks, DetectorSettings())
        scores = scorer.score(gathered)
        judged = time.perf_counter()
        report = Report(scores=scores, gathered=gathered, name_of=str, sequence=sequence, rank=0)
        report.table()
        told = time.perf_counter()
        messages = encode_for_ranks(scores, {}, np.ones(ranks, bool), details=True)
        encoded = time.perf_counter()
        exchange.publish(sequence, messages)
        published = time.perf_counter()
    print(
        f"report of {ranks} ranks x 16: a rank sends {len(payload)} bytes in {posted:.2f} ms; rank 0 collects in "
        f"{1e3 * (collected - began):.0f} ms, lines up in {1e3 * (lined_up - collected):.0f}, "
        f"judges in {1e3 * (judged - lined_up):.0f}, tells in {1e3 * (told - judged):.0f}; with gather_on_rank0=False "
        f"it encodes the messages in {1e3 * (encoded - told):.0f} and leaves them in {1e3 * (published - encoded):.0f}"
    )
    exchange.close()


def evaluation(quick: bool) -> None:
    """F1 on the simulator: 10 % slowdowns, 5 % noise, 20 samples, 2 % spread, 0.1 % tenfold outliers."""
    for ranks, jobs in ((8, 200), (512, 40), (10_000, 10)):
        for shape, onset in (("normal", 10), ("uniform", 10), ("uniform", 0), ("normal", 0)):
            total = Confusion(0, 0, 0)
            for seed in range(5 if quick else jobs):
                plain = SimulatedJob(ranks=ranks, seed=seed, spread_shape=shape)  # type: ignore[arg-type]
                total += evaluate(with_stragglers(plain, 0.01, 0.1, onset))
            print(
                f"{ranks} ranks, {shape} spread, 10 % slower from report {onset}, three reports later: "
                f"F1 {total.f1:.4f} {total}"
            )
    for ranks, windows in ((8, 10_000), (512, 10_000), (10_000, 100 if quick else 1000)):
        for shape in ("normal", "uniform"):
            false_verdicts = clean_windows(ranks, windows, 1, spread_shape=shape)
            print(f"{windows} clean windows of {ranks} ranks, {shape} spread: {false_verdicts} false verdicts")
    for ranks in (8, 512, 10_000):
        for shape in ("normal", "uniform"):
            total = Confusion(0, 0, 0)
            for seed in range(20):
                slowdown = SimulatedSlowdown(kind="bogus_clock", rank=seed % ranks, slowdown=-0.5, onset=0)
                job = SimulatedJob(ranks=ranks, seed=seed, windows=12, slowdowns=(slowdown,), spread_shape=shape)  # type: ignore[arg-type]
                total += evaluate(job)
            print(f"one bogus clock (half of the time) among {ranks}, {shape}, 20 jobs: {total.fp} healthy ranks named")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer simulated jobs")
    parser.add_argument("--reports", metavar="RANKS,...", help="what a report costs at these sizes, and nothing else")
    options = parser.parse_args()
    if options.reports:
        for ranks in options.reports.split(","):
            report_cost(int(ranks))
        return
    quick = options.quick
    section_cost()
    scoring_speed(10_000)
    scoring_speed(100_000)
    report_cost(1000)
    report_cost(10_000)
    evaluation(quick)


if __name__ == "__main__":
    main()
