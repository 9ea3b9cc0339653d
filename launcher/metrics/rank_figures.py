"""Read the files of figures beside the cells, by descriptors that cannot write."""

from __future__ import annotations

import contextlib
import os
import stat

from resilience_core.protocol.figures import RankFigures, figures_path, read_figures

__all__ = ["FiguresReader"]


class FiguresReader:
    """Reads the figures of the ranks of one generation after the other.

    A file that somebody has removed is read on, as its rank writes on.
    """

    def __init__(self) -> None:
        self._generation = -1
        self._descriptors: dict[int, int] = {}

    def read(self, run_folder: str, generation: int, local_rank: int) -> RankFigures | None:
        """Return a rank's figures; None where it has none.

        Args:
            run_folder: Where the cells of this generation were made.
            generation: Of the rank.
            local_rank: Of the rank.

        Raises:
            ValueError: What lies there is damaged.
        """
        if generation != self._generation:
            self.close()
            self._generation = generation
        if local_rank not in self._descriptors:
            path = figures_path(os.path.join(run_folder, "cells", f"{generation}-{local_rank}"))
            try:
                # Not blocking: whatever somebody has put there must not keep a scrape waiting.
                flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
                descriptor = os.open(path, flags)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise ValueError(f"{path}: {error.strerror}") from error
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise ValueError(f"{path} is no plain file")
            self._descriptors[local_rank] = descriptor
        if (figures := read_figures(self._descriptors[local_rank])) is None:
            raise ValueError(f"the figures of local rank {local_rank} are damaged")
        return figures

    def close(self) -> None:
        """Close all files."""
        for descriptor in self._descriptors.values():
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._descriptors = {}
