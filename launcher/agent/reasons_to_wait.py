"""What a node says that waits for its next generation: what it waits for, and why it gives up."""

from __future__ import annotations

from launcher.nodes.membership import Phase
from launcher.nodes.session_messages import View

__all__ = ["never_told_of_the_end", "waiting_for_the_end", "why_alone", "why_waiting"]


def why_alone(view: View | None, refusal: str, run_id: str, endpoint: str, seconds: float) -> str:
    """Return why a node gives up that nobody has given a lease for so many seconds.

    Args:
        view: What it knows of the job; None before anything is.
        refusal: Why it cannot take part, in the word of whoever leads; empty where it can.
        run_id: The job.
        endpoint: As the user gave it.
        seconds: How long it has waited.
    """
    if refusal:
        return f"this node could not take part in the job '{run_id}' for {seconds:g} s: {refusal}"
    if view is None:
        return (
            f"no node of the job '{run_id}' has answered at {endpoint} (--rdzv-endpoint) for {seconds:g} s; the job "
            "begins on the machine that the first endpoint names"
        )
    return (
        f"nobody has led the job for {seconds:g} s: most of the nodes that vote are gone, or this node is cut off from "
        "them; start the job again"
    )


def why_waiting(
    view: View | None, refusal: str, run_id: str, endpoint: str, seconds: float, *, holds_lease: bool
) -> str:
    """Return what a node waits for.

    Args:
        view: What it knows of the job; None before anything is.
        refusal: Why it cannot take part, in the word of whoever leads; empty where it can.
        run_id: The job.
        endpoint: As the user gave it.
        seconds: How long it waits at most.
        holds_lease: Somebody leads, and answers.
    """
    if refusal:
        return f"this node waits, since it cannot take part now: {refusal}"
    if view is None:
        return (
            f"no node of the job '{run_id}' has answered at {endpoint} (--rdzv-endpoint) yet. Is ft_launcher running "
            "on the machine that the first endpoint names, is it alone at that port, and does that machine know it by "
            f"this name? Otherwise say --rdzv-conf is_host=1 there. This node waits for {seconds:g} s"
        )
    if not holds_lease:
        return f"nobody leads the job now; this node looks for who does, for {seconds:g} s at most"
    if view.phase == Phase.RUNNING:
        return f"this node waits to take part: generation {view.generation} runs without it"
    if view.phase == Phase.STOPPING:
        return (
            f"this node waits for the next generation: ranks of other nodes have not ended in generation "
            f"{view.generation} yet, or fewer nodes are here than --nnodes asks for"
        )
    return "this node waits for others: --nnodes asks for more than are here, or there is room for more"


def waiting_for_the_end(seconds: float) -> str:
    """Return what a node waits for that is cut off after all its ranks have ended with 0; ``seconds`` at most."""
    return (
        "every rank of this node has ended with 0, but this node is cut off, or nobody leads the job; it waits for at "
        f"most {seconds:g} s to learn how the job ends"
    )


def never_told_of_the_end(seconds: float) -> str:
    """Return why such a node gives up after ``seconds``."""
    return (
        f"every rank of this node has ended with 0, but nobody has led the job for {seconds:g} s, so this node cannot "
        "tell how the job has ended: read the last lines of the other launchers, and check whether the training is "
        "complete"
    )
