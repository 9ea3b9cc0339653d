"""What a rank, its monitor and its launcher exchange: cells, limits, errors and control requests.

The client (:mod:`resilience_core.monitoring`) writes, the monitor and the launcher read. Nothing here knows in which of
the three processes it runs.
"""
