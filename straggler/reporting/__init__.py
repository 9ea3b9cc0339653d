"""What is said of the scores: reports, verdicts, tables, logs, pictures."""
