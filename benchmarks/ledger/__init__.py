"""What a run has cost, by its report, against what its script has counted and a clock around the launcher."""
