"""From gathered windows to scores: compared with peers, and with the rank's own past."""
