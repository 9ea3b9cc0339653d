"""Simulated jobs whose truth is known, to test the scores."""
