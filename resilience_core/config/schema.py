"""FaultToleranceConfig: every setting of the toolkit, checked once, at construction.

Three ways in (Python, a YAML file, the command line) and one check. A value that cannot be used is a
:class:`ConfigError` that names the place, the value and the fix; a key that is not known is one too. Nothing
falls back to a default in silence: misspelt protection that is off is the worst bug this project could ship.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import attrs

from resilience_core.config import converters as values
from resilience_core.config.nvrx_keys import why_ignored
from resilience_core.errors import ConfigError
from resilience_core.suggestions import nearest

__all__ = ["FaultToleranceConfig", "Setting", "convert", "settings"]


@attrs.frozen
class Setting:
    """What is known about one field of the configuration, for its checks, its option and the documentation.

    Args:
        name: The field's name.
        default: Its default.
        metavar: Its unit or form.
        meaning: One or two sentences.
        convert: Raw value to checked value; raises ``ValueError`` with the fix.
    """

    name: str
    default: Any
    metavar: str
    meaning: str
    convert: Callable[[Any], Any] = attrs.field(repr=False)


def _setting(default: Any, convert: Callable[[Any], Any], metavar: str, meaning: str) -> Any:
    metadata = {"convert": convert, "metavar": metavar, "meaning": meaning}
    if isinstance(default, Mapping):
        return attrs.field(factory=lambda: MappingProxyType({}), metadata=metadata)
    return attrs.field(default=default, metadata=metadata)


def _names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(names)


@attrs.frozen(kw_only=True)
class FaultToleranceConfig:
    """How ranks are watched, terminated and restarted. All durations in seconds; None means no limit.

    Raises:
        ConfigError: A value cannot be used.
    """

    initial_rank_heartbeat_timeout: float | None = _setting(
        3600.0,
        values.timeout,
        "SECONDS",
        "Longest time from init_workload_monitoring to the first heartbeat.",
    )
    rank_heartbeat_timeout: float | None = _setting(
        2700.0,
        values.timeout,
        "SECONDS",
        "Longest time between two heartbeats. None is sent while a checkpoint is loaded or saved, so the "
        "longest save must fit in.",
    )
    rank_section_timeouts: Mapping[str, float | None] = _setting(
        {},
        values.sections,
        "NAME:SECONDS,...",
        "Longest time that each section may stay open, as setup:600,step:180,checkpointing:420. Once any is "
        "named, a section that is used but not named is an error. On the command line each named section "
        "replaces the one of the file.",
    )
    rank_out_of_section_timeout: float | None = _setting(
        None, values.timeout, "SECONDS", "Longest time that a rank may be in no section at all."
    )
    rank_startup_timeout: float | None = _setting(
        None,
        values.timeout,
        "SECONDS",
        "Longest time from the start of a worker process to init_workload_monitoring: imports, data, process group.",
    )
    rank_exit_timeout: float | None = _setting(
        None,
        values.timeout,
        "SECONDS",
        "Longest time that a worker may live on after shutdown_workload_monitoring(); it is killed then, and has "
        "failed. Must be long enough for a last upload. null: as long as it likes.",
    )
    safety_factor: float = _setting(
        5.0,
        values.factor,
        "FACTOR",
        "A learned timeout is this many times the longest interval observed since the last calculation, averaged with "
        "the one before where that was learned; with learned_limits relax never less than this many times the longest "
        "of the last 24 hours of observation.",
    )
    learned_timeout_floor: float = _setting(
        1.0,
        values.duration,
        "SECONDS",
        "No learned timeout is shorter, also one from a state file, unless it lengthens a shorter configured one; 0 "
        "switches the floor off.",
    )
    learned_limits: str = _setting(
        "relax",
        values.one_of("off", "relax", "replace"),
        "off|relax|replace",
        "What a learned timeout may do: nothing (off); apply where none is configured and lengthen, but never "
        "undercut, one that is (relax); or replace it (replace).",
    )
    thin_evidence_floor: float = _setting(
        60.0,
        values.duration,
        "SECONDS",
        "With learned_limits relax, no learned timeout is shorter that rests on fewer than 300 intervals, less than an "
        "hour, or another run's observation alone, nor any of heartbeats or out-of-section time; where no restart is "
        "left, none of these is shorter than 60 times as long. 0 switches it off.",
    )
    rank_termination_signal: signal.Signals = _setting(  # noqa: RUF009 - an enum does not change
        signal.SIGKILL,
        values.termination_signal,
        "SIGNAL",
        "Sent to a rank that hangs, by name (SIGTERM, TERM) or number.",
    )
    failure_stop_timeout: float = _setting(
        2.0,
        values.duration,
        "SECONDS",
        "What the peers of a failed rank get between SIGTERM and SIGKILL. They have nothing left to save. When the job "
        "is ended, or nodes join or leave, ranks get --shutdown-timeout instead.",
    )
    kill_timeout: float = _setting(
        60.0,
        values.duration,
        "SECONDS",
        "Longest time to wait for killed processes to be gone before the next generation is started all the same. One "
        "that is stuck in a driver or a file system may take long, and holds its GPU memory until then.",
    )
    exit_barrier_timeout: float = _setting(
        300.0,
        values.duration,
        "SECONDS",
        "Longest time that a node whose ranks have all ended waits for those of the other nodes.",
    )
    capture_stacks: bool = _setting(
        True,
        values.boolean,
        "true|false",
        "Take the Python stacks of all local ranks before a hung one is killed.",
    )
    stack_capture_timeout: float = _setting(
        0.5,
        values.duration,
        "SECONDS",
        "Longest time that taking the stacks may delay the signal; once more as long where source cannot be read.",
    )
    log_level: int | str = _setting(
        logging.INFO,
        values.level,
        "LEVEL",
        "What launcher, monitor and client log, by name (DEBUG) or number (10).",
    )
    num_warmup_iterations: int = _setting(
        1,
        values.count(0),
        "COUNT",
        "First training steps of a process, and first steps of each evaluation, that open no 'step' section.",
    )
    install_exception_hook: bool = _setting(
        False,
        values.boolean,
        "true|false",
        "Log the traceback of an uncaught exception in a rank and leave at once with exit code 1, so that "
        "interpreter teardown cannot hang.",
    )
    checkpoint_iteration_file: str | None = _setting(
        None,
        values.path,
        "PATH",
        "A file holding one integer, the iteration of the newest checkpoint; read at each restart to tell "
        "whether the job makes progress.",
    )
    max_no_progress_cycles: int = _setting(
        3,
        values.count(0),
        "COUNT",
        "Generations in a row without progress after which the job ends for good; 0: never. Progress is a new "
        "highest iteration, or a checkpoint, saved or loaded, that is newer than that of the generation before, as "
        "the events report them; or that of checkpoint_iteration_file alone. A generation counts that shows none "
        "and fails where the row of such failures began: within two iterations where it has loaded a checkpoint; "
        "where none is reported, in a step, at the same iteration. Not judged are a generation without any iteration, "
        "and a job whose iterations go back or stand still within a generation (counted within each epoch, or the "
        "numbers of epochs, for example) or begin below the checkpoint that was loaded.",
    )
    min_progress_iterations: int = _setting(
        1, values.count(1), "COUNT", "Iterations that a generation must have gained to count as progress."
    )
    no_restart_exit_code: int = _setting(
        93,
        values.exit_code,
        "CODE",
        "What ft_launcher exits with when it gives a job up: no progress, or an error in its configuration.",
    )
    restart_backoff_after: int = _setting(
        3,
        values.count(0),
        "COUNT",
        "Generations in a row that died early after which the launcher waits before the next; 0: never.",
    )
    worker_start: str = _setting(
        "warm",
        values.one_of("warm", "spawn"),
        "warm|spawn",
        "Start workers as forks of a process that has imported torch (warm), or as new interpreters (spawn).",
    )
    preload: tuple[str, ...] | None = _setting(
        None,
        values.modules,
        "MODULE,...",
        "Modules that the process which warm workers are forked from imports first; null is its own choice.",
    )
    load_plugins: bool = _setting(
        True,
        values.boolean,
        "true|false",
        "Load installed plugins (entry points of the group 'resilience') in every rank; so does a rank without a "
        "launcher. FT_LOAD_PLUGINS=0 in the environment loads none, whatever stands here.",
    )
    run_dir: str = _setting(
        "/dev/shm",
        values.folder,
        "FOLDER",
        "Folder in memory (tmpfs) in which the launcher makes its private run folder; gone when it ends.",
    )
    keep_runs: int | None = _setting(
        None,
        values.optional_count(1),
        "COUNT",
        "Log folders of runs to keep in --log-dir, this run's included: at the start the oldest of those whose run has "
        "ended are removed. null keeps all.",
    )
    unmonitored_notice_after: float | None = _setting(
        60.0,
        values.timeout,
        "SECONDS",
        "Time after which the launcher says, once, which ranks have not initialised monitoring; null: never.",
    )
    given: frozenset[str] = attrs.field(default=frozenset(), converter=_names, eq=False, repr=False)
    """Settings that somebody wrote down, even where the value is the default's."""
    warnings: tuple[str, ...] = attrs.field(default=(), eq=False, repr=False)
    """What the launcher should print once: keys that were accepted and mean nothing here."""

    def __attrs_post_init__(self) -> None:
        for setting in settings():
            converted = convert(setting, getattr(self, setting.name), setting.name)
            object.__setattr__(self, setting.name, converted)

    def is_given(self, name: str) -> bool:
        """Whether a setting was chosen by somebody: written down, or different from its default."""
        default = next(setting.default for setting in settings() if setting.name == name)
        return name in self.given or getattr(self, name) != default

    @property
    def names_sections(self) -> bool:
        """Whether any section is configured; then every section that is used must be."""
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
                converted[entry.key] = convert(setting, entry.value, f"{entry.key} in {entry.place}")
                continue
            why = why_ignored(entry.key)
            if why is None:
                raise _unknown(entry.key, entry.place)
            warnings.append(f"key '{entry.key}' in {entry.place} is ignored: {why}")
        return cls(**converted, given=frozenset(converted), warnings=tuple(warnings))

    def to_json(self) -> str:
        """All settings as one plain JSON object, for ranks and for the monitor; signals as numbers."""
        plain: dict[str, Any] = {"given": sorted(self.given)}
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
        given = plain.pop("given", None)
        entries = (values.Entry(str(key), value, "the JSON handed over") for key, value in plain.items())
        config = cls.from_entries(entries)
        lacking = [setting.name for setting in settings() if setting.name not in plain]
        if lacking or not isinstance(given, list) or not all(isinstance(name, str) for name in given):
            raise ConfigError(f"configuration handed over lacks {', '.join(lacking) or 'a list of what was given'}")
        return attrs.evolve(config, given=frozenset(given))


def settings() -> tuple[Setting, ...]:
    """Every setting of :class:`FaultToleranceConfig`, in the order of the fields."""
    return _SETTINGS


def convert(setting: Setting, value: Any, label: str) -> Any:
    """Check one raw value.

    Args:
        setting: The field that it is meant for.
        value: What was written.
        label: The place as a person knows it, to begin the error message with.

    Raises:
        ConfigError: Label, value and fix.
    """
    try:
        return setting.convert(value)
    except ValueError as error:
        raise ConfigError(f"{label} is {value!r}: {error}") from None


def _unknown(key: str, place: str) -> ConfigError:
    return ConfigError(f"unknown key '{key}' in {place}{nearest(key, (s.name for s in settings()))}")


def _refusing_unknown(construct: Callable[..., None]) -> Callable[..., None]:
    """Let a keyword that is no setting be the error that it is in a file, instead of Python's own."""
    names = {field.name for field in attrs.fields(FaultToleranceConfig)}

    @functools.wraps(construct)
    def checked(self: FaultToleranceConfig, *args: Any, **given: Any) -> None:
        for key in given.keys() - names:
            place = "FaultToleranceConfig(...)"
            if (why := why_ignored(key)) is not None:
                raise ConfigError(f"key '{key}' in {place} means nothing here: {why}; leave it out")
            raise _unknown(key, place)
        construct(self, *args, **given)

    return checked


def _collect() -> tuple[Setting, ...]:
    found = []
    for field in attrs.fields(FaultToleranceConfig):
        if field.metadata:
            default = {} if isinstance(field.default, attrs.Factory) else field.default  # type: ignore[arg-type]
            found.append(Setting(name=field.name, default=default, **field.metadata))
    return tuple(found)


_SETTINGS = _collect()
setattr(FaultToleranceConfig, "__init__", _refusing_unknown(FaultToleranceConfig.__init__))  # noqa: B010 - mypy

# One text for the option's help, the documentation and help(FaultToleranceConfig).
_arguments = "".join(f"        {s.name}: {s.meaning} [{s.metavar}]\n" for s in _SETTINGS)
FaultToleranceConfig.__doc__ = (FaultToleranceConfig.__doc__ or "").replace(
    "\n    Raises:", f"\n    Args:\n{_arguments}\n    Raises:"
)
