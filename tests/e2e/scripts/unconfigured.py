"""Opens a section that nobody has configured; most likely it is misspelt."""

from resilience_core import RankMonitorClient

client = RankMonitorClient()
client.init_workload_monitoring()
client.start_section("checkpoint")
