"""Training jobs with one slow rank, as users write them; see ``__main__``."""
