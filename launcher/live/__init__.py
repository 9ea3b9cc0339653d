"""What goes on in a run now, read from its cells and its event log. It reads only, and starts no process.

``ft_top`` and the metrics of a node show what this folder finds.
"""
