"""The monitor's rules in simulated time; see ``__main__``."""
