"""Whether this node is fit to run ranks: checks with a bound each, before it joins a job and while its ranks run."""
