"""What is known about a failure, and who caused it. Standard library only."""
