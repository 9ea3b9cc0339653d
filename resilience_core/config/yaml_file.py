"""The ``fault_tolerance`` section of a YAML file -> its entries, each with the line that it stands in.

Works on YAML nodes, not on the loaded document: only nodes know their lines, and loading would let the second
of two equal keys win in silence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from typing import Any

import yaml

from resilience_core.config.converters import Entry
from resilience_core.errors import ConfigError
from resilience_core.redaction import redacted, shortened
from resilience_core.suggestions import closest, suggestion

__all__ = ["SECTION", "read_section"]

SECTION = "fault_tolerance"
_LARGEST_BYTES = 1 << 20
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*)")


class _Loader(yaml.SafeLoader):
    """Read numbers as the command line does: YAML 1.1 takes ``0600`` for 384, ``1:30`` for 90 and ``1_0`` for 10.

    Those are handed on as they are written, for the check that all ways of configuration share. So are dates, and
    ``yes``, ``off`` and the like within a list or a mapping, where nothing is either true or false.
    """

    is_within = False
    """Whether a list or a mapping is read."""

    def _integer(self, node: yaml.ScalarNode) -> int | str:
        text: str = self.construct_scalar(node)
        return int(text) if _DECIMAL.fullmatch(text) and len(text) < 400 else text

    def _float(self, node: yaml.ScalarNode) -> float | str:
        text: str = self.construct_scalar(node)
        return text if ":" in text or "_" in text else self.construct_yaml_float(node)

    def _boolean(self, node: yaml.ScalarNode) -> bool | str:
        text: str = self.construct_scalar(node)
        return text if self.is_within else self.construct_yaml_bool(node)

    def _as_written(self, node: yaml.ScalarNode) -> str:
        text: str = self.construct_scalar(node)
        return text

    def value_of(self, node: yaml.Node) -> Any:
        self.is_within = not isinstance(node, yaml.ScalarNode)
        return self.construct_object(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader._integer)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader._float)
_Loader.add_constructor("tag:yaml.org,2002:bool", _Loader._boolean)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader._as_written)


def read_section(path: str | os.PathLike[str], known: Collection[str]) -> tuple[list[Entry], list[str]]:
    """Read the one ``fault_tolerance`` section of a file, at the top or nested anywhere.

    Args:
        path: The file.
        known: Names of settings; by these a section with a misspelt name is told from one of somebody else's.

    Returns:
        Its entries, and a warning for each section that looks like a misspelt second one.

    Raises:
        ConfigError: The file cannot be read, is no YAML mapping, has no such section or more than one, or a
            key stands there twice.
    """
    name = os.fspath(path)
    text = _text(name)
    try:
        loader = _Loader(text)
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise ConfigError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from error
    try:
        section, warnings = _the_section(name, _document(name, loader), known)
        return _entries(name, text, loader, section), warnings
    finally:
        loader.dispose()


def _text(name: str) -> str:
    try:
        with open(name, "rb") as file:
            raw = file.read(_LARGEST_BYTES + 1)
        if len(raw) > _LARGEST_BYTES:
            raise ConfigError(f"configuration file {name} has more than 1 MB, which is more than any; name a YAML file")
        return raw.decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"configuration file {name} does not exist{_neighbour(name)}") from None
    except IsADirectoryError:
        raise ConfigError(f"configuration file {name} is a folder; name the YAML file in it") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"configuration file {name} is not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise ConfigError(f"configuration file {name} cannot be read: {error.strerror}") from error


def _neighbour(name: str) -> str:
    folder, base = os.path.split(name)
    try:
        files = [f for f in os.listdir(folder or ".") if f.endswith((".yaml", ".yml"))]
    except OSError:
        return f" (and neither does the folder {folder})"
    return suggestion(base, files)


def _document(name: str, loader: yaml.SafeLoader) -> yaml.MappingNode:
    try:
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}" if mark else ""
        what = error.problem or error.context
        if what == "but found another document":
            what = "a second document begins there; give one document"
        raise ConfigError(f"{name}{line} is not valid YAML: {what}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise ConfigError(f"{name} is nested too deeply to be a configuration") from None
    expected = f"expected a section '{SECTION}:'"
    if node is None:
        raise ConfigError(f"{name} is empty; {expected}")
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{name} line {node.start_mark.line + 1} begins a {_kind(node)}; {expected}")
    return node


def _the_section(name: str, document: yaml.MappingNode, known: Collection[str]) -> tuple[yaml.Node, list[str]]:
    found: list[tuple[yaml.Node, yaml.Node]] = []
    others: list[tuple[yaml.ScalarNode, yaml.Node]] = []
    lines: dict[str, int] = {}
    for key, value in _walk(document):
        lines.setdefault(str(key.value), key.start_mark.line + 1)
        if key.value == SECTION:
            found.append((key, value))
        else:
            others.append((key, value))
    if not found:
        misspelt = closest(SECTION, lines)
        hint = f"; rename '{misspelt}' in line {lines[misspelt]} to '{SECTION}'" if misspelt is not None else ""
        raise ConfigError(f"{name} has no section '{SECTION}'{hint}")
    if len(found) > 1:
        places = " and ".join(map(str, sorted(key.start_mark.line + 1 for key, _ in found)))
        raise ConfigError(f"{name} has {len(found)} sections '{SECTION}', in lines {places}; keep one")
    line = found[0][0].start_mark.line + 1
    return found[0][1], [
        f"section '{key.value}' in {name} line {key.start_mark.line + 1} is not read, only '{SECTION}' in line {line} "
        "is; put its keys there, or remove it"
        for key, value in others
        if closest(SECTION, [str(key.value)]) and _has_any(value, known)
    ]


def _has_any(section: yaml.Node, known: Collection[str]) -> bool:
    if not isinstance(section, yaml.MappingNode):
        return False
    return any(isinstance(key, yaml.ScalarNode) and key.value in known for key, _ in section.value)


def _walk(document: yaml.MappingNode) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    """Every scalar key with its value, outside our own section, in the order of the file.

    A node is visited once, however many aliases lead to it: an alias names a section again, it does not
    write a second one, and a document may contain itself.
    """
    seen: set[int] = set()
    stack: list[yaml.Node] = [document]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            stack.extend(reversed(node.value))
        elif isinstance(node, yaml.MappingNode):
            below = []
            for key, value in node.value:
                ours = isinstance(key, yaml.ScalarNode) and key.value == SECTION
                if isinstance(key, yaml.ScalarNode):
                    yield key, value
                if not ours:
                    below.append(value)
            stack.extend(reversed(below))


def _entries(name: str, text: str, loader: _Loader, section: yaml.Node) -> list[Entry]:
    line = section.start_mark.line + 1
    if isinstance(section, yaml.ScalarNode) and section.tag == "tag:yaml.org,2002:null":
        return []  # every key commented out: the defaults, and protection is on
    if not isinstance(section, yaml.MappingNode):
        raise ConfigError(f"'{SECTION}' in {name} line {line} is a {_kind(section)}; expected key: value lines")
    _refuse_twins(name, section)
    try:
        loader.flatten_mapping(section)
        entries: dict[str, Entry] = {}
        for key_node, value_node in section.value:
            _refuse_no_word(name, text, key_node)
            if isinstance(value_node, yaml.MappingNode):
                _refuse_twins(name, value_node)
                for name_node, _ in value_node.value:
                    _refuse_no_word(name, text, name_node)
            value = loader.value_of(value_node)
            written = None if isinstance(value, str) else _written(text, value_node)
            place = f"{name} line {key_node.start_mark.line + 1}"
            entries[key_node.value] = Entry(key_node.value, value, place, written)
    except ConfigError:  # which is a ValueError, too
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = mark.line + 1 if mark else line
        raise ConfigError(f"{name} line {where} cannot be read: {error.problem or error.context}") from error
    except (TypeError, ValueError) as error:
        # What has a tag may be no such value.
        raise ConfigError(f"'{SECTION}' in {name} line {line} cannot be read: {error}") from error
    return list(entries.values())


def _refuse_twins(name: str, mapping: yaml.MappingNode) -> None:
    lines: dict[str, int] = {}
    for key, _ in mapping.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        line = key.start_mark.line + 1
        if key.value in lines:
            raise ConfigError(
                f"key '{key.value}' stands twice in {name}, in lines {lines[key.value]} and {line}; keep one"
            )
        lines[key.value] = line


def _refuse_no_word(name: str, text: str, key: yaml.Node) -> None:
    """Refuse a list or a mapping that stands where a name belongs."""
    if not isinstance(key, yaml.ScalarNode):
        raise ConfigError(
            f"{name} line {key.start_mark.line + 1} has a {_kind(key)} for a key: "
            f"{shortened(redacted(_written(text, key)))}; write a name there, as in 'rank_heartbeat_timeout: 600'"
        )


def _written(text: str, node: yaml.Node) -> str:
    """Return a value as it stands in a file, in one line."""
    if isinstance(node, yaml.ScalarNode):
        return node.value or "null"
    return " ".join(text[node.start_mark.index : node.end_mark.index].split())


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "list"
    return "mapping" if isinstance(node, yaml.MappingNode) else "single value"
