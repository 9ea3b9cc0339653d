"""FaultToleranceConfig: every setting of the toolkit, checked once, at construction.

Three ways in (Python, a YAML file, the command line) and one check. A value that cannot be used is a
:class:`ConfigError` that names the place, the value and the fix; so is an unknown key. Nothing falls back to a
default silently: a misspelt setting must not switch protection off unnoticed.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from resilience_core.config import converters as values
from resilience_core.config.limits import LimitSettings
from resilience_core.config.metrics import MetricsSettings
from resilience_core.config.nodes import NodeSettings
from resilience_core.config.notices import NoticeSettings
from resilience_core.config.nvrx_keys import why_ignored
from resilience_core.config.restarts import RestartSettings
from resilience_core.config.setting import (
    Setting,
    checked_and_documented,
    convert,
    described,
    name_in_errors,
    settings_of,
    unknown_key,
)
from resilience_core.config.words import log_format
from resilience_core.errors import ConfigError

__all__ = ["FaultToleranceConfig", "settings"]

VERSION = 1
"""Of the JSON that the launcher hands over; raised when the meaning of a setting changes."""


def _names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(names)


def _texts(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(texts)


@checked_and_documented
@attrs.frozen(kw_only=True, field_transformer=name_in_errors)
class FaultToleranceConfig(NoticeSettings, MetricsSettings, RestartSettings, NodeSettings, LimitSettings):
    """How ranks are watched, terminated and restarted. All durations in seconds; None means no limit.

    Raises:
        ConfigError: A value cannot be used.
    """

    log_level: int = attrs.field(
        default=logging.INFO,
        converter=values.level,
        metadata=described(
            "LEVEL", "What launcher, monitor and client log, by name (DEBUG) or number (10); NOTSET and 0 mean DEBUG."
        ),
    )
    log_format: str = attrs.field(
        default="text",
        converter=log_format,
        metadata=described(
            "text|json",
            "How launcher, monitor and client write what they log: lines for people (text), or one JSON object per "
            "line (json). What ranks write is never changed.",
        ),
    )
    install_exception_hook: bool = attrs.field(
        default=False,
        converter=values.boolean,
        metadata=described(
            "true|false",
            "Log the traceback of an uncaught exception in a rank and leave at once with exit code 1, so that "
            "interpreter teardown cannot hang.",
        ),
    )
    worker_start: str = attrs.field(
        default="warm",
        converter=values.start_method,
        metadata=described(
            "warm|spawn",
            "Start workers as forks of a process that has imported torch (warm), or as new interpreters (spawn).",
        ),
    )
    preload: tuple[str, ...] | None = attrs.field(
        default=None,
        converter=values.modules,
        metadata=described(
            "MODULE,...",
            "Modules that the process which warm workers are forked from imports first; null is its own choice.",
        ),
    )
    load_plugins: bool = attrs.field(
        default=True,
        converter=values.boolean,
        metadata=described(
            "true|false",
            "Load installed plugins (entry points of the group 'resilience') in every rank; so does a rank without a "
            "launcher. FT_LOAD_PLUGINS=0 in the environment loads none, whatever stands here.",
        ),
    )
    run_dir: str = attrs.field(
        default="/dev/shm",
        converter=values.folder,
        metadata=described(
            "FOLDER",
            "Folder in memory (tmpfs) in which the launcher makes its private run folder; gone when it ends.",
        ),
    )
    keep_runs: int | None = attrs.field(
        default=None,
        converter=values.optional_count,
        metadata=described(
            "COUNT",
            "Log folders of runs to keep in --log-dir, this run's included: at the start the oldest of those whose "
            "run has ended are removed. null keeps all.",
        ),
    )
    unmonitored_notice_after: float | None = attrs.field(
        default=60.0,
        converter=values.timeout,
        metadata=described(
            "SECONDS",
            "Time after which the launcher says, once, which ranks have not initialised monitoring; null: never.",
        ),
    )
    given: frozenset[str] = attrs.field(default=frozenset(), converter=_names, eq=False, repr=False)
    """Settings that somebody wrote down, even where the value is the default's."""
    warnings: tuple[str, ...] = attrs.field(default=(), converter=_texts, eq=False, repr=False)
    """What the launcher should print once: keys that were accepted and mean nothing here."""

    def is_given(self, name: str) -> bool:
        """Return whether a setting was chosen by somebody: written down, or different from its default."""
        default = next(setting.default for setting in settings() if setting.name == name)
        return name in self.given or getattr(self, name) != default

    @property
    def names_sections(self) -> bool:
        """Return whether any section is configured; then every section that is used must be."""
        return bool(self.rank_section_timeouts)

    @classmethod
    def from_yaml_file(cls, path: str | os.PathLike[str]) -> FaultToleranceConfig:
        """Read the ``fault_tolerance`` section of a YAML file, at the top or nested anywhere.

        Raises:
            ConfigError: The file or a value in it cannot be used; names file, line, value and fix.
        """
        # Here, since a rank gets its configuration as JSON and should not pay for YAML at every restart.
        from resilience_core.config.yaml_file import read_section

        entries, warnings = read_section(path, [setting.name for setting in settings()])
        config = cls.from_entries(entries)
        return attrs.evolve(config, warnings=(*config.warnings, *warnings))

    @classmethod
    def from_entries(cls, entries: Iterable[values.Entry]) -> FaultToleranceConfig:
        """Check raw settings, each with its place, and make a configuration of them.

        Raises:
            ConfigError: A key is not known or a value cannot be used.
        """
        known = {s.name: s for s in settings()}
        converted: dict[str, Any] = {}
        warnings: list[str] = []
        for entry in entries:
            setting = known.get(entry.key)
            if setting is not None:
                converted[entry.key] = convert(setting, entry.value, f"{entry.key} in {entry.place}", entry.written)
                continue
            why = why_ignored(entry.key)
            if why is None:
                raise unknown_key(entry.key, entry.place, known)
            warnings.append(f"key '{entry.key}' in {entry.place} is ignored: {why}")
        return cls(**converted, given=frozenset(converted), warnings=tuple(warnings))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy by the settings; a read-only mapping can do neither by itself."""
        plain = {field.name: getattr(self, field.name) for field in attrs.fields(type(self))}
        plain["rank_section_timeouts"] = dict(self.rank_section_timeouts)
        return _unpickled, (type(self), plain)

    def to_json(self) -> str:
        """All settings as one plain JSON object, for ranks and for the monitor; signals as numbers."""
        plain: dict[str, Any] = {"version": VERSION, "given": sorted(self.given)}
        for setting in settings():
            value = getattr(self, setting.name)
            plain[setting.name] = dict(value) if isinstance(value, Mapping) else value
        return json.dumps(plain, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> FaultToleranceConfig:
        """Read what :meth:`to_json` wrote.

        Raises:
            ConfigError: The text is not that.
        """
        try:
            plain = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"configuration handed over is not JSON: {error}") from error
        if not isinstance(plain, dict):
            raise ConfigError(f"configuration handed over is a {type(plain).__name__}, not an object")
        version = plain.pop("version", None)
        if type(version) is not int or version != VERSION:
            raise ConfigError(
                f"configuration handed over has version {version!r}, and version {VERSION} is read here: launcher and "
                "rank run different installations; use one for both"
            )
        given = plain.pop("given", None)
        entries = (values.Entry(str(key), value, "the JSON handed over") for key, value in plain.items())
        config = cls.from_entries(entries)
        lacking = [setting.name for setting in settings() if setting.name not in plain]
        if lacking or not isinstance(given, list) or not all(isinstance(name, str) for name in given):
            raise ConfigError(f"configuration handed over lacks {', '.join(lacking) or 'a list of what was given'}")
        return attrs.evolve(config, given=frozenset(given))


def _unpickled(cls: type[FaultToleranceConfig], plain: dict[str, Any]) -> FaultToleranceConfig:
    return cls(**plain)


def settings() -> tuple[Setting, ...]:
    """Every setting of :class:`FaultToleranceConfig`, in the order of the fields."""
    return _SETTINGS


_SETTINGS = settings_of(FaultToleranceConfig)
