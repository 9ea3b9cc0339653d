"""A rank in which all is well: a section pair every 50 ms, until told to go by a file that appears."""

from __future__ import annotations

import os
import sys
import time

from clients import make_client


def main() -> None:
    contender, ready, leave = sys.argv[1:4]
    client = make_client(contender)
    with open(ready, "a") as file:
        file.write(f"{os.getpid()}\n")
    while not os.path.exists(leave):
        if client is not None:
            client.start_section("step")
            client.end_section("step")
        time.sleep(0.05)
    if client is not None:
        client.shutdown_workload_monitoring()


if __name__ == "__main__":
    main()
