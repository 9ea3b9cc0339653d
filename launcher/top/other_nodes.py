"""Read the metrics of other nodes, each by a thread of its own: one that does not answer delays nobody."""

from __future__ import annotations

import http.client
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from launcher.live.rates import Rate
from launcher.top.openmetrics import Sample, samples
from launcher.top.phrases import duration, one_line
from launcher.top.rows import Row
from resilience_core.system.clock import NS_PER_SECOND

__all__ = ["LONGEST_ANSWER_SECONDS", "NAMES", "OtherNode", "OtherNodes", "rows_of", "whole"]

LONGEST_ANSWER_SECONDS = 2.0
"""How long a node may take to answer."""
_MOST_BYTES = 16 << 20

# As launcher/metrics/families.py has them.
_AGE = "ft_heartbeat_age_seconds"
_LEFT = "ft_slack_seconds"
_ITERATION = "ft_iteration"
_STEPS = "ft_steps_total"
_SECTION = "ft_section_open_seconds"
_MEMORY = "ft_resident_memory_bytes"
_GENERATION = "ft_generation"
_RESTARTS = "ft_restarts_total"
NAMES = (_AGE, _LEFT, _ITERATION, _STEPS, _SECTION, _MEMORY, _GENERATION, _RESTARTS)


class OtherNode(NamedTuple):
    """What is known of another node at one moment."""

    url: str
    rows: tuple[Row, ...]
    """From its last answer; empty once that is too old."""
    problem: str | None
    """Why it has not answered; None when it has."""


class OtherNodes:
    """Asks every node again and again.

    Args:
        urls: Where their metrics are; one that is given twice is one node.
        interval_seconds: How often each is asked.
    """

    def __init__(self, urls: Sequence[str], interval_seconds: float) -> None:
        self._scrapers = [_Scraper(url, interval_seconds) for url in dict.fromkeys(map(whole, urls))]

    def start(self) -> None:
        """Begin to ask."""
        for scraper in self._scrapers:
            scraper.start()

    def wait_for_first(self) -> None:
        """Wait until each has answered once, or has had its time."""
        end = time.monotonic() + LONGEST_ANSWER_SECONDS + 0.2
        for scraper in self._scrapers:
            scraper.has_tried.wait(max(0.0, end - time.monotonic()))

    def look(self) -> tuple[OtherNode, ...]:
        """Return what is known now; never waits."""
        return tuple(scraper.look() for scraper in self._scrapers)

    def stop(self) -> None:
        """Ask no more; does not wait for answers that are under way."""
        for scraper in self._scrapers:
            scraper.stop()


class _Scraper:
    """Asks one node."""

    def __init__(self, url: str, interval_seconds: float) -> None:
        self._url = url
        self._interval_seconds = interval_seconds
        self._lock = threading.Lock()
        self._rows: tuple[Row, ...] = ()
        self._problem: str | None = "no answer yet"
        self._answered_ns = time.monotonic_ns()
        self._rates: dict[str, Rate] = {}
        self._stopped = threading.Event()
        self.has_tried = threading.Event()

    def start(self) -> None:
        # A daemon: a node that neither answers nor refuses must not keep the interpreter from ending.
        threading.Thread(target=self._run, name="ft-top-metrics", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def look(self) -> OtherNode:
        now_ns = time.monotonic_ns()
        with self._lock:
            silent = (now_ns - self._answered_ns) / NS_PER_SECOND
            if self._problem is None and silent <= 2 * self._interval_seconds + 2 * LONGEST_ANSWER_SECONDS:
                return OtherNode(self._url, self._rows, None)
            problem = self._problem or "it does not answer"
            return OtherNode(self._url, (), f"{problem}, silent for {duration(silent)}")

    def _run(self) -> None:
        while not self._stopped.is_set():
            rows, problem = self._ask()
            with self._lock:
                self._problem = problem
                if problem is None:
                    self._rows, self._answered_ns = rows, time.monotonic_ns()
            self.has_tried.set()
            self._stopped.wait(self._interval_seconds)

    def _ask(self) -> tuple[tuple[Row, ...], str | None]:
        request = urllib.request.Request(self._url, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        try:
            # No proxy: these are machines of the job's own network.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(request, timeout=LONGEST_ANSWER_SECONDS) as answer:
                text = answer.read(_MOST_BYTES).decode("utf-8", errors="replace")
        except urllib.error.HTTPError as error:
            error.close()
            return (), f"it answers with HTTP status {error.code}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            return (), one_line(str(getattr(error, "reason", None) or error) or type(error).__name__)
        rows = rows_of(samples(text), self._rates, time.monotonic_ns())
        return rows, None if rows or "ft_" in text else "it answers with something else than metrics of a run"


def whole(url: str) -> str:
    """Return the whole of a URL, of which the scheme and the path may be left out."""
    scheme, _, rest = url.partition("://") if "://" in url else ("http", "", url)
    host, _, path = rest.partition("/")
    return f"{scheme.lower()}://{host.lower()}/{path or 'metrics'}"


def rows_of(found: Iterable[Sample], rates: dict[str, Rate], now_ns: int) -> tuple[Row, ...]:
    """Return a row for each rank that the metrics of a node name.

    Args:
        found: The node's samples.
        rates: From a rank to its pace so far; is brought up to date.
        now_ns: ``CLOCK_MONOTONIC``.
    """
    values: dict[str, dict[str, float]] = {}
    sections: dict[str, list[tuple[float, str]]] = {}
    about: dict[str, Sample] = {}
    generation, restarts = None, 0
    for sample in found:
        rank = sample.labels.get("rank")
        if sample.name == _GENERATION:
            generation = int(sample.value)
        elif sample.name == _RESTARTS:
            restarts += int(sample.value)
        elif rank is None or not rank.isdecimal():
            continue
        elif sample.name == _SECTION:
            sections.setdefault(rank, []).append((sample.value, sample.labels.get("section", "")))
            about.setdefault(rank, sample)
        elif sample.name in (_AGE, _LEFT, _ITERATION, _STEPS, _MEMORY):
            values.setdefault(rank, {})[sample.name] = sample.value
            about.setdefault(rank, sample)
    rows = []
    for rank, sample in about.items():
        of_rank = values.get(rank, {})
        if _STEPS in of_rank or _ITERATION in of_rank:
            rates.setdefault(rank, Rate()).note(now_ns, int(of_rank.get(_STEPS, of_rank.get(_ITERATION, -1))))
        opened = " > ".join(name for _, name in sorted(sections.get(rank, ()), reverse=True))
        age, left = of_rank.get(_AGE), of_rank.get(_LEFT)
        local_rank = sample.labels.get("local_rank", "")
        rows.append(
            Row(
                rank=int(rank),
                local_rank=int(local_rank) if local_rank.isdecimal() else None,
                node=one_line(sample.labels.get("node", "")),
                generation=generation,
                activity=one_line(opened) or "out of section",
                remark=None,
                iteration=int(of_rank[_ITERATION]) if _ITERATION in of_rank else None,
                age=age,
                left=left,
                used=_used(age, left),
                steps_per_second=rates[rank].per_second(now_ns) if rank in rates else None,
                restarts=restarts,
                caused=None,
                memory_bytes=int(of_rank[_MEMORY]) if _MEMORY in of_rank else None,
            )
        )
    return tuple(rows)


def _used(age: float | None, left: float | None) -> float:
    """Return the part of a limit that is used, from the age and what is left, since the limit itself is not known."""
    if age is None:
        return 0.0
    if left is None:
        return age / (age + 60.0)
    return 1.0 - left / (age + left) if left > 0 else 1.0 + max(0.0, -left) / max(age, 1.0)
