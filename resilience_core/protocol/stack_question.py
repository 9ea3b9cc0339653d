"""Stacks that a rank's own thread writes beside its cell when the monitor asks it to in the pipe of questions.

The question is a line in ``<cell>.ask``. The answer, in ``<cell>.threads``, names the main thread and has its stack,
then what faulthandler writes, and a last line. The thread holds the GIL meanwhile, so no frame changes. In a signal
handler faulthandler can read the stack of the thread that handles the signal, and no other: frames of others change
while it reads them, and a process with busy threads dies of SIGSEGV.
"""

from __future__ import annotations

from types import FrameType

__all__ = ["END_OF_STACKS", "STACK", "STACKS_QUESTION", "THREADS", "main_thread_stack"]

THREADS = ".threads"
"""What the path of the answer has behind that of the cell."""
STACK = ".stack"
"""The same of the file in which faulthandler answers a signal, or tells of a fatal one."""
STACKS_QUESTION = "stacks"
"""The line that asks."""
END_OF_STACKS = "End of stacks\n"
_MOST_LINES = 2_000
"""Of the main thread's stack: the GIL is held while it is written."""


def main_thread_stack(ident: int, frame: FrameType | None) -> str:
    """Return what says which of the threads runs the script, and where that stands, as faulthandler writes it.

    Of more than a hundred threads faulthandler writes the newest hundred alone, and the main thread is the oldest.
    """
    number = f"0x{ident:016x}"
    lines = [f"Main thread {number}", "", f"Thread {number} (most recent call first):"]
    while frame is not None and len(lines) < _MOST_LINES:
        lines.append(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}')
        frame = frame.f_back
    return "\n".join([*lines, "", ""])
