"""The process that warm workers are forked from, and what a fork does before it runs the script."""
