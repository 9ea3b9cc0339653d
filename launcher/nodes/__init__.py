"""The launchers of different nodes: how they agree on who takes part in the job, without a central store."""
