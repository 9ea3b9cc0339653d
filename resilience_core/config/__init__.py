"""The configuration: its settings, and how they are read from files and command lines."""
