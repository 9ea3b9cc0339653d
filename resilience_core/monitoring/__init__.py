"""The monitored rank: its client, its cell of shared memory, its limits."""
