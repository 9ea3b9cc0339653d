"""What an exception was raised in the course of, and what a group of exceptions consists of."""

from __future__ import annotations

__all__ = ["chain_of", "leaves_of"]

_MOST_LEAVES = 100
_LONGEST_CHAIN = 20


def leaves_of(error: BaseException) -> list[BaseException]:
    """Return the exceptions of a group and of groups in it, or the one that is none; nothing for too many."""
    leaves: list[BaseException] = []
    pending = [error]
    for _ in range(_MOST_LEAVES):
        if not pending:
            return leaves
        each = pending.pop()
        members = getattr(each, "exceptions", None)
        if isinstance(members, tuple) and members:
            pending += [member for member in members if isinstance(member, BaseException)]
        else:
            leaves.append(each)
    return []


def chain_of(error: BaseException) -> list[BaseException]:
    """Return an exception, and what it was raised in the course of."""
    chain = [error]
    while len(chain) < _LONGEST_CHAIN and (following := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(following)
    return chain
