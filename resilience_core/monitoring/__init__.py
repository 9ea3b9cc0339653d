"""A rank's side of the monitoring: the client, its cell, and the limits that it is under.

``RankMonitorClient`` is one class with the hot path in it, and collaborators for everything that is done rarely:

========================  ============================================================================================
:mod:`.client_state`      what the client remembers between two calls, in slots: words, sections, intervals
:mod:`.connection`        finds, claims, opens and closes the cell; detaches forked children
:mod:`.first_use`         what a first heartbeat, or a section's first use, checks and prepares
:mod:`.limits_in_force`   limits in nanoseconds, learned with the other ranks, kept and loaded
:mod:`.running_limits`    new limits for intervals that are running already
:mod:`.section_block`     the ``with`` block
:mod:`.group_numbers`     answers how far the rank is in its collectives, when the monitor asks
========================  ============================================================================================

The alternative is one collaborator for each concern, heartbeats and sections among them, and a client that only
forwards. It is as readable, but costs each event one more Python call, a tenth of what a section event costs.
So the three calls that run in each step stay in the client and work on the state record directly; everything that
they do once, or in case of an error, is a call to a collaborator.
"""
