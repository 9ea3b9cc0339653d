"""What people are told of a job while it runs: one JSON document per event, for a command or a URL of the user's."""
