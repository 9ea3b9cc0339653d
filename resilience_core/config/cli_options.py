"""The configuration on the command line: one group of options beside torchrun's own.

Three steps for the launcher, in this order::

    add_options(parser)                     # the group, on torchrun's parser
    check_arguments(parser, argv)           # misspelt and abbreviated options of ours will be refused
    arguments = parser.parse_args(argv)
    config = from_options(arguments)        # YAML first, the command line over it

Raw text is collected while parsing and checked in :func:`from_options`, so that every error is a
:class:`ConfigError` with the option as the user spelt it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from resilience_core.config.converters import duration
from resilience_core.config.nvrx_keys import (
    FOREIGN_OPTIONS,
    IGNORED_KEYS,
    IGNORED_PREFIXES,
    ForeignOption,
    why_ignored,
)
from resilience_core.config.schema import FaultToleranceConfig, settings
from resilience_core.config.setting import Setting, convert
from resilience_core.errors import ConfigError
from resilience_core.suggestions import nearest, suggestion

__all__ = [
    "FILE_OPTIONS",
    "GROUP_TITLE",
    "add_options",
    "check_arguments",
    "from_options",
    "options_after_script",
    "options_table",
]

GROUP_TITLE = "fault tolerance"
FILE_OPTIONS = (
    "--ft-cfg-path",
    "--ft-cfg_path",
    "--fault-tol-cfg-path",
    "--fault-tol-cfg_path",
    "--fault_tol_cfg_path",
    "--ft_cfg_path",
)
"""Spellings of the option that names the YAML file."""
_FOREIGN: dict[str, ForeignOption] = {name: option for option in FOREIGN_OPTIONS for name in option.spellings}
# `--f` is enough: torchrun has no option that begins so, and argparse completes unique beginnings.
_OURS = re.compile(r"--f(?:t|a|=|$)")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add every setting as an option, in all spellings that people have in their scripts.

    ``--help`` shows one spelling of each; the others, and the options of nvidia-resiliency-ext that mean
    nothing here, are accepted without being listed.

    Args:
        parser: Most often ``torch.distributed.run.get_args_parser()``.
    """
    group = parser.add_argument_group(
        GROUP_TITLE, "How ranks are watched. null (or nothing) is no limit. See also the file's keys."
    )
    _add_path(group)
    for setting in settings():
        primary, *others = _spellings(setting.name)
        text = f"{setting.meaning} Default: {_shown(setting)}.".replace("%", "%%")
        common: dict[str, Any] = {"action": _Collect, "dest": setting.name, "default": argparse.SUPPRESS}
        group.add_argument(primary, metavar=setting.metavar, help=text, **common)
        group.add_argument(*others, help=argparse.SUPPRESS, **common)
    for key in IGNORED_KEYS:
        _accept_ignored(group, key)


def check_arguments(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """Make the parser refuse every option of ours in ``argv`` that is not spelt out exactly.

    An abbreviation would be completed by argparse, silently, and a misspelt option with a value would turn
    the value into the script's name. So each inexact one becomes an option of its own whose only action is
    the refusal. An exact match always beats an abbreviation in argparse, and whatever follows the script's
    name is never parsed: an option of the script's own is left alone, without us having to know where it is.

    Args:
        parser: The parser that :func:`add_options` was called with.
        argv: The whole command line, script and its arguments included.

    Raises:
        ConfigError: Not here but from ``parser.parse_args(argv)``; names the nearest valid option.
    """
    known = _known_options()
    group = parser.add_argument_group()
    added: set[str] = set()
    for token in argv:
        option = token.partition("=")[0]
        if option in _FOREIGN and option not in added:
            # Added where it is used only: otherwise it would make abbreviations of torchrun's options ambiguous.
            added.update(_accept_foreign(group, _FOREIGN[option]))
        if not _OURS.match(token) or option in known or option in added:
            continue
        key = _key(option)
        if key is not None and key.startswith(tuple(IGNORED_PREFIXES)):
            added.update(_accept_ignored(group, key))
        else:
            added.add(option)
            group.add_argument(option, action=_Refuse, nargs="?", help=argparse.SUPPRESS)


def from_options(arguments: argparse.Namespace) -> FaultToleranceConfig:
    """Make the configuration: the YAML file, if one was named, and the command line over it.

    Section timeouts are laid over section by section, everything else setting by setting.

    Args:
        arguments: What a parser with :func:`add_options` has parsed.

    Raises:
        ConfigError: The file or an option's value cannot be used.
    """
    path = getattr(arguments, "ft_cfg_path", None)
    if path == "":
        raise ConfigError("--ft-cfg-path is '': name the YAML file, or leave the option out")
    config = FaultToleranceConfig() if path is None else FaultToleranceConfig.from_yaml_file(path)
    known = {s.name: s for s in settings()}
    changes: dict[str, Any] = {}
    warnings = list(config.warnings)
    for key, option, text in getattr(arguments, _Collect.COLLECTED, ()):
        foreign = _FOREIGN.get(option)
        if foreign is not None and foreign.setting is None:
            why = _foreign_warning(foreign, option, text)
            if why is not None:
                warnings.append(f"option {option} is ignored: {why}")
            elif foreign.torchrun is not None:
                seconds = _seconds(option, text)
                if getattr(arguments, foreign.torchrun, None) is None:  # torchrun's own spelling counts
                    setattr(arguments, foreign.torchrun, seconds)
            continue
        why = why_ignored(key)
        if why is not None:
            warnings.append(f"option {option} is ignored: {why}")
            continue
        value = convert(known[key], text, option)
        if isinstance(value, Mapping):
            value = {**changes.get(key, getattr(config, key)), **value}
        changes[key] = value
    given = config.given.union(changes)
    return attrs.evolve(config, **changes, given=given, warnings=tuple(dict.fromkeys(warnings)))


def options_after_script(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Warnings for options of ours that stand behind the script's name and so go to the script.

    Args:
        arguments: What torchrun's parser, or one like it, has parsed.
    """
    script = getattr(arguments, "training_script", "the script")
    return tuple(
        f"option {token.partition('=')[0]} stands after {script} and goes to it, not to ft_launcher; "
        f"if it was meant for ft_launcher, write it before {script}"
        for token in getattr(arguments, "training_script_args", ())
        if token.startswith(("--ft-", "--ft_", "--fault-tol", "--fault_tol"))
    )


def options_table() -> str:
    """All settings as a Markdown table, for the documentation."""
    rows = ["| key | option | unit or form | default | meaning |", "|---|---|---|---|---|"]
    for setting in settings():
        cells = (
            f"`{setting.name}`",
            f"`{_spellings(setting.name)[0]}`",
            f"`{setting.metavar}`".replace("|", "\\|"),
            f"`{_shown(setting)}`",
            setting.meaning,
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


class _Collect(argparse.Action):
    """Keep key, spelling and text of every option of ours, in the order in which they were given."""

    COLLECTED = "ft_options"

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        earlier = getattr(namespace, self.COLLECTED, ())
        setattr(namespace, self.COLLECTED, (*earlier, (self.dest, option_string, values)))


class _Refuse(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        known = _known_options()
        written = str(option_string)
        # An abbreviation says more about what was meant than likeness does.
        primary = (_spellings(setting.name)[0] for setting in settings())
        completions = [option for option in primary if option.startswith(written)]
        if len(completions) > 4:
            raise ConfigError(f"option {written} is abbreviated; '{parser.prog} --help' lists all")
        if completions:
            raise ConfigError(f"option {written} is abbreviated; write it out: {', '.join(completions)}")
        # Of the many spellings the documented one, unless underscores were written.
        alike = known if "_" in written else [option for option in known if "_" not in option]
        hint = suggestion(written, alike) or f"; '{parser.prog} --help' lists all"
        raise ConfigError(f"unknown option {written}{hint}")


def _add_path(group: argparse._ArgumentGroup) -> None:
    common: dict[str, Any] = {"dest": "ft_cfg_path", "default": argparse.SUPPRESS}
    primary, *others = FILE_OPTIONS
    text = "YAML file with a 'fault_tolerance' section, at the top or nested. Options are laid over it."
    group.add_argument(primary, metavar="PATH", help=text, **common)
    group.add_argument(*others, help=argparse.SUPPRESS, **common)


def _accept_ignored(group: argparse._ArgumentGroup, key: str) -> tuple[str, ...]:
    spellings = _spellings(key)
    group.add_argument(*spellings, action=_Collect, dest=key, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return spellings


def _accept_foreign(group: argparse._ArgumentGroup, foreign: ForeignOption) -> tuple[str, ...]:
    kwargs: dict[str, Any] = {} if foreign.takes_value else {"nargs": 0}
    dest = foreign.setting or "ft_foreign"
    group.add_argument(
        *foreign.spellings, action=_Collect, dest=dest, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **kwargs
    )
    return foreign.spellings


def _foreign_warning(foreign: ForeignOption, option: str, text: str) -> str | None:
    """Return why an option of nvidia-resiliency-ext means nothing here; None where it does, or nothing differs."""
    if foreign.choices and text not in foreign.choices:
        raise ConfigError(f"{option} is {text!r}{nearest(text, foreign.choices)}")
    return foreign.choices.get(text, foreign.why) if foreign.takes_value else foreign.why


def _seconds(option: str, text: str) -> float:
    try:
        return duration(text)
    except ValueError as error:
        raise ConfigError(f"{option} is {text!r}: {error}") from None


def _spellings(key: str) -> tuple[str, ...]:
    dashed = key.replace("_", "-")
    return tuple(
        dict.fromkeys(
            (
                *(f"--ft-{dashed}", f"--ft-{key}", f"--ft_{key}"),
                *(f"--ft-param-{key}", f"--ft-param-{dashed}", f"--ft_param_{key}"),
            )
        )
    )


def _known_options() -> frozenset[str]:
    keys = [s.name for s in settings()] + list(IGNORED_KEYS)
    return frozenset((*FILE_OPTIONS, *_FOREIGN)).union(*(_spellings(key) for key in keys))


def _key(option: str) -> str | None:
    for prefix in ("--ft-param-", "--ft_param_", "--ft-", "--ft_"):
        if option.startswith(prefix):
            return option.removeprefix(prefix).replace("-", "_")
    return None


def _shown(setting: Setting) -> str:
    value = setting.default
    if value is None or value == {}:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if setting.name == "log_level":
        return "INFO"
    return str(getattr(value, "name", None) or (f"{value:g}" if isinstance(value, float) else value))
