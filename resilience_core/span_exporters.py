"""What stands between OpenTelemetry and an exporter that may hang, fail or raise. Needs the extra ``telemetry``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from resilience_core.errors import ConfigError

__all__ = ["LONGEST_MAKE_SECONDS", "LateExporter", "WatchedExporter"]

logger = logging.getLogger(__name__)

LONGEST_MAKE_SECONDS = 30.0
"""How long an exporter may take to be made before that is said."""


class LateExporter(SpanExporter):
    """Is made by a thread of its own: what an installed package does for that may take for ever.

    Args:
        name: As ``OTEL_TRACES_EXPORTER`` has it.
        make: Makes the exporter.
        on_error: Called with the first spans where it cannot be made. Not before: the level and the form of logging
            are known only once the rank is connected to its monitor.
    """

    def __init__(
        self, name: str, make: Callable[[], SpanExporter], on_error: Callable[[ConfigError], object] = lambda _: None
    ) -> None:
        self._name, self._make, self._on_error = name, make, on_error
        self._exporter: SpanExporter | None = None
        self._error: ConfigError | None = None
        self._untold_error: ConfigError | None = None
        self._is_over = threading.Event()
        self._is_told = False
        self._telling = threading.Lock()
        threading.Thread(target=self._run, name="ft_spans_make", daemon=True).start()

    def _run(self) -> None:
        try:
            self._exporter = self._make()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an installed package may raise anything
            self._error = self._untold_error = ConfigError(
                f"{self._what} cannot be made: {type(error).__name__}: {error}"
            )
        finally:
            self._is_over.set()

    @property
    def _what(self) -> str:
        return f"the exporter {self._name!r} of OTEL_TRACES_EXPORTER"

    def made(self, timeout_seconds: float) -> SpanExporter:
        """Return the exporter itself.

        Raises:
            ConfigError: It cannot be made, or not in time.
        """
        self._is_over.wait(timeout_seconds)
        if self._exporter is None:
            raise self._error or ConfigError(f"{self._what} was not made within {timeout_seconds:g} s")
        return self._exporter

    def _awaited(self) -> SpanExporter | None:
        with self._telling:  # the SDK's thread and the end may both wait
            is_late = not self._is_told and not self._is_over.wait(LONGEST_MAKE_SECONDS)
            self._is_told = self._is_told or is_late
        if is_late:
            logger.warning(
                "%s was not made within %g s; spans wait for it, and are lost when there are too many",
                *(self._what, LONGEST_MAKE_SECONDS),
            )
        self._is_over.wait()
        return self._exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See OpenTelemetry."""
        exporter = self._awaited()
        if exporter is not None:
            return exporter.export(spans)
        error, self._untold_error = self._untold_error, None
        if error is not None:
            self._on_error(error)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """See OpenTelemetry."""
        if (exporter := self._awaited()) is not None:
            exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """See OpenTelemetry."""
        exporter = self._awaited()
        return exporter is not None and exporter.force_flush(timeout_millis)


class WatchedExporter(SpanExporter):
    """Passes spans on, and counts those that were taken. One that fails is said once."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._is_told = False
        self.sent = 0

    def tell_failure(self, error: BaseException) -> None:
        """Say that it has failed."""
        if not self._is_told:
            self._is_told = True
            logger.warning("an exporter of spans has failed: %s: %s (said once)", type(error).__name__, error)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See OpenTelemetry."""
        try:
            result = self._exporter.export(spans)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the SDK would log a traceback each time
            self.tell_failure(error)
            return SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            self.sent += len(spans)
        return result

    def shutdown(self) -> None:
        """See OpenTelemetry."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """See OpenTelemetry."""
        return self._exporter.force_flush(timeout_millis)
