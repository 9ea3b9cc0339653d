"""Placeholder until the first room is furnished."""
