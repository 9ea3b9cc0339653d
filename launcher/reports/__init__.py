"""What a run, or several, tell afterwards: one story with its cost, for a terminal, for programs and as a page."""
