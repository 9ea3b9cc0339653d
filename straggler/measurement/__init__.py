"""What each rank measures: sections, and the statistics of their samples."""
