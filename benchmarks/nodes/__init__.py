"""Jobs over several nodes on one machine, each node in namespaces of its own, and what may be lost of them."""
