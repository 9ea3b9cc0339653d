"""A second simulator of jobs with slow ranks, and a judge of straggler rules, apart from straggler.simulation."""
