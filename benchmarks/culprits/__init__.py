"""Faults in a job of several nodes, and whether its incident names who caused them."""
