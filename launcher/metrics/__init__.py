"""Serve the metrics of one node as OpenMetrics, in a process of its own; see :mod:`launcher.metrics.exporter`.

Two shapes were compared. *A thread of the launcher* would see all there is without reading a file, but a scrape would
hold the interpreter lock for milliseconds at the moment a rank dies, and whatever is wrong with it would be wrong with
the launcher. *A process that reads what others may read, too* (cells by ``pread``, the files of the log folder) can be
killed, stopped, or asked a hundred times a second, and nobody else notices; it is told nothing but where to look. What
it says may be as old as the last lines that have reached the log folder.
"""
