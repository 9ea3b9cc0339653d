"""A deterministic simulation of the protocol between nodes: virtual time, seeded faults, rules that must hold."""
