"""How windows of samples travel from each rank to rank 0, and when."""
