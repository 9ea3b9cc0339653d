"""What a run writes down and says: its folders, its event log, its lines on standard error."""
