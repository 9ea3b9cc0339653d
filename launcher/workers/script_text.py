"""Read a script's text, without running it, for what it sets in its environment before it imports torch.

Followed, in the order in which Python would run it: assignments to ``os.environ`` and its methods, ``os.putenv``,
bodies of ``if __name__ == "__main__"``, ``with`` and ``try``, loops over a literal, calls of functions of the same
file, and imports of files beside the script. The walk ends where torch is imported. What depends on a condition, or
whose value the text does not tell, is reported as such.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterable, Mapping

import attrs

from launcher.processes.working_folder import completed, working_folder
from resilience_core.system.plain_files import only_plain

__all__ = ["SetByText", "module_files", "read_script", "script_file"]

_DEEPEST = 8
_LARGEST_FILE = 1 << 20


@attrs.define
class SetByText:
    """What the text tells."""

    values: dict[str, str | None] = attrs.field(factory=dict)
    """By name; None for a variable that is taken out."""
    untold: dict[str, str] = attrs.field(factory=dict)
    """Names that may be set, or to an unknown value, with file and line."""


class _TorchIsImportedError(Exception):
    """The walk is over."""


def read_script(path: str, environment: Mapping[str, str]) -> SetByText:
    """Read a script, and what it imports from its own folder.

    Args:
        path: The script's file.
        environment: What it is started with, for ``setdefault`` and ``if "X" not in os.environ``.

    Returns:
        What is set before torch is imported; nothing for a file that cannot be read as Python.
    """
    walk = _Walk(os.path.dirname(completed(path)), environment)
    try:
        walk.file(path)
    except _TorchIsImportedError:
        pass
    return walk.found


class _Walk:
    def __init__(self, folder: str, environment: Mapping[str, str]) -> None:
        self.found = SetByText()
        self._folder = folder
        self._environment = environment
        self._files: set[str] = set()
        self._path = ""
        self._depth = 0
        self._is_conditional = False
        self._functions: dict[str, ast.FunctionDef] = {}
        self._constants: dict[str, str] = {}

    def file(self, path: str) -> None:
        """Walk through one file; a second time there is nothing to run."""
        if path in self._files or self._depth > _DEEPEST:
            return
        self._files.add(path)
        try:
            with open(path, "rb", opener=only_plain) as file:
                tree = ast.parse(file.read(_LARGEST_FILE))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return
        outer = self._path, self._functions, self._constants
        self._path, self._functions, self._constants = path, {}, {}
        self._depth += 1
        try:
            self._block(tree.body)
        finally:
            self._depth -= 1
            self._path, self._functions, self._constants = outer

    # ---- statements -------------------------------------------------------------------------------------

    def _block(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self._import(alias.name)
        elif isinstance(node, ast.ImportFrom):
            self._import(node.module or "")
        elif isinstance(node, ast.FunctionDef):
            self._functions[node.name] = node
        elif isinstance(node, ast.If):
            self._if(node)
        elif isinstance(node, ast.With):
            self._block(node.body)
        elif isinstance(node, ast.Try):
            self._block(node.body)
            self._perhaps(statement for handler in node.handlers for statement in handler.body)
            self._block([*node.orelse, *node.finalbody])
        elif isinstance(node, ast.For):
            self._for(node)
        elif isinstance(node, ast.While):
            self._perhaps(node.body)
        elif isinstance(node, ast.Assign):
            self._calls(node.value)
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, ast.AugAssign) and _is_environ(node.target):
            self._update(node.value, node)
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and _is_environ(target.value):
                    self._set(self._text(target.slice), None, node, is_told=True)
        elif isinstance(node, (ast.Expr, ast.Return, ast.AnnAssign)) and node.value is not None:
            self._calls(node.value)

    def _perhaps(self, statements: Iterable[ast.stmt]) -> None:
        """Walk through what may be run, or not."""
        before, self._is_conditional = self._is_conditional, True
        try:
            self._block(statements)
        except _TorchIsImportedError:
            pass  # perhaps not; what follows may still count
        finally:
            self._is_conditional = before

    def _if(self, node: ast.If) -> None:
        truth = self._truth(node.test)
        if truth is None:
            self._perhaps(node.body)
            self._perhaps(node.orelse)
        else:
            self._block(node.body if truth else node.orelse)

    def _truth(self, test: ast.expr) -> bool | None:
        """Return whether a condition holds, where the text and the environment tell."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._truth(test.operand)
            return None if inner is None else not inner
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            return None
        left, operator, right = test.left, test.ops[0], test.comparators[0]
        if isinstance(left, ast.Name) and left.id == "__name__" and isinstance(operator, ast.Eq):
            return len(self._files) == 1
        name = self._text(left)
        if name is None or not _is_environ(right) or not isinstance(operator, (ast.In, ast.NotIn)):
            return None
        return (self._current(name) is not None) == isinstance(operator, ast.In)

    def _for(self, node: ast.For) -> None:
        items = node.iter.elts if isinstance(node.iter, (ast.Tuple, ast.List)) else None
        texts = None if items is None else [self._text(item) for item in items]
        if texts is None or None in texts or not isinstance(node.target, ast.Name):
            self._perhaps(node.body)
            return
        for text in texts:
            assert text is not None
            self._constants[node.target.id] = text
            self._block(node.body)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Subscript) and _is_environ(target.value):
            self._set(self._text(target.slice), self._text(value), target)
        elif isinstance(target, ast.Name):
            text = self._text(value)
            if text is None or self._is_conditional:
                self._constants.pop(target.id, None)
            else:
                self._constants[target.id] = text

    def _import(self, name: str) -> None:
        if name.partition(".")[0] == "torch":
            raise _TorchIsImportedError
        for end in range(1, name.count(".") + 2):
            for path in module_files(".".join(name.split(".")[:end]), self._folder):
                self.file(path)

    # ---- expressions ------------------------------------------------------------------------------------

    def _calls(self, node: ast.expr) -> None:
        for call in [each for each in ast.walk(node) if isinstance(each, ast.Call)]:
            self._call(call)

    def _call(self, call: ast.Call) -> None:
        function, arguments = call.func, call.args
        if isinstance(function, ast.Name) and function.id in self._functions:
            body = self._functions.pop(function.id).body  # once: what it sets is set
            self._depth += 1
            if self._depth <= _DEEPEST:
                self._block(body)
            self._depth -= 1
        elif isinstance(function, ast.Attribute) and _is_environ(function.value):
            name = self._text(arguments[0]) if arguments else None
            if function.attr == "setdefault" and len(arguments) == 2:
                if name is None or self._current(name) is None:
                    self._set(name, self._text(arguments[1]), call)
            elif function.attr == "pop":
                self._set(name, None, call, is_told=True)
            elif function.attr == "update":
                for mapping in arguments:
                    self._update(mapping, call)
                for keyword in call.keywords:
                    self._set(keyword.arg, self._text(keyword.value), call)
        elif isinstance(function, (ast.Attribute, ast.Name)) and len(arguments) == 2:
            called = function.attr if isinstance(function, ast.Attribute) else function.id
            if called == "putenv":  # native code finds it, os.environ does not
                self._set(self._text(arguments[0]), None, call)

    def _update(self, mapping: ast.expr, node: ast.AST) -> None:
        if isinstance(mapping, ast.Dict):
            for key, value in zip(mapping.keys, mapping.values, strict=True):
                self._set(None if key is None else self._text(key), self._text(value), node)
        elif isinstance(mapping, ast.Call):
            for keyword in mapping.keywords:
                self._set(keyword.arg, self._text(keyword.value), node)

    def _set(self, name: str | None, value: str | None, node: ast.AST, is_told: bool = False) -> None:
        if name is None:  # which one, only the run will tell
            return
        if self._is_conditional or (value is None and not is_told):
            if not (name in self.found.values and self.found.values[name] == value):
                self.found.untold[name] = f"{self._path}, line {getattr(node, 'lineno', '?')}"
            return
        self.found.untold.pop(name, None)
        self.found.values[name] = value

    def _current(self, name: str) -> str | None:
        return self.found.values[name] if name in self.found.values else self._environment.get(name)

    def _text(self, node: ast.expr) -> str | None:
        """Return the string that an expression gives, None where the text does not tell."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.Name):
            return self._constants.get(node.id)
        if isinstance(node, ast.JoinedStr):
            parts = [self._text(part) for part in node.values]
            return None if None in parts else "".join(part for part in parts if part is not None)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str" and node.args:
            inner = node.args[0]
            return str(inner.value) if isinstance(inner, ast.Constant) else self._text(inner)
        return None


def _is_environ(node: ast.expr) -> bool:
    """Return whether an expression is ``os.environ``, whatever ``os`` is called there."""
    if isinstance(node, ast.Attribute):
        return node.attr == "environ"
    return isinstance(node, ast.Name) and node.id == "environ"


def script_file(target: str, is_module: bool) -> str | None:
    """Return the file that ``python target``, or ``python -m target``, runs first; None where none is found."""
    if not is_module:
        return os.path.join(target, "__main__.py") if os.path.isdir(target) else target
    for folder in (working_folder() or "", *sys.path[1:]):
        stem = os.path.join(folder, *target.split("."))
        for path in (stem + ".py", os.path.join(stem, "__main__.py")):
            if os.path.isfile(path):
                return path
    return None


def module_files(name: str, folder: str) -> list[str]:
    """Return the files that an import of a module would run, as far as they are in a folder: a module or a package.

    Args:
        name: Dotted, as in an ``import`` statement.
        folder: A place of ``sys.path``.
    """
    stem = os.path.join(folder, *name.split("."))
    return [path for path in (f"{stem}.py", os.path.join(stem, "__init__.py")) if os.path.isfile(path)]
