"""Extensions of griffe: what it reads of the code, as the reference should show it."""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Class, Extension, Function, Object, Parameter, ParameterKind, Parameters

__all__ = ["Fields", "Roles"]


class Fields(Extension):
    """Gives such classes an ``__init__``, so that their signature and the types of their arguments are shown."""

    def on_class(self, *, cls: Class, **_: Any) -> None:
        """Add a constructor where the class has fields and no constructor of its own."""
        made_by = {str(decorator.value).partition("(")[0] for decorator in cls.decorators}
        if "__init__" in cls.members or not (
            made_by & {"attrs.frozen", "attrs.define"} or any(str(base) == "NamedTuple" for base in cls.bases)
        ):
            return
        is_keyword = any("kw_only=True" in str(decorator.value) for decorator in cls.decorators)
        kind = ParameterKind.keyword_only if is_keyword else ParameterKind.positional_or_keyword
        fields = [
            Parameter(name, annotation=member.annotation, kind=kind, default=_default(member))
            for name, member in cls.members.items()
            if isinstance(member, Attribute) and member.annotation is not None and "ClassVar" not in str(member.annotation)
        ]
        arguments = Parameters(Parameter("self", kind=ParameterKind.positional_or_keyword), *fields)
        cls.set_member("__init__", Function("__init__", parameters=arguments, parent=cls))


class Roles(Extension):
    """Turns what only reStructuredText knows (``::`` before a block, ``:class:`` roles) into Markdown."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite a docstring, line by line, so that line numbers stay right."""
        if obj.docstring is not None:
            text = re.sub(r"::$", ":", obj.docstring.value, flags=re.MULTILINE)
            text = re.sub(r":(?:class|meth|func|mod|data):`~?([^`]+)`", r"`\1`", text)
            obj.docstring.value = re.sub(r"``([^`]+)``", r"`\1`", text)


def _default(field: Attribute) -> str | None:
    text = None if field.value is None else str(field.value)
    if text is None or not text.startswith(("attrs.field(", "_setting(")):
        return text
    return "..." if "default=" in text or "factory=" in text or text.startswith("_setting(") else None
