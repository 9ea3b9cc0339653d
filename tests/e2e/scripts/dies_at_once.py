"""Dies before anybody has heard of it."""

raise SystemExit(3)
