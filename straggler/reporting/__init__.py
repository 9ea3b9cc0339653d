"""From scores to reports, verdicts, tables, logs and pictures."""
