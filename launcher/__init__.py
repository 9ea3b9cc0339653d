"""Placeholder until the first room is furnished."""

__distribution__ = "torch-resilience"
