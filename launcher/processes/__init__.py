"""Processes as Linux shows them: pidfds, sessions, what they leave. Standard library only."""
