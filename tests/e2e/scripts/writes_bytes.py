"""Write what is no text, and end in mid-line; die in the first two generations, so that the launcher speaks, too."""

import os
import sys

from torch.distributed import rendezvous

BLOB = b"".join(
    (
        b"plain\n",
        bytes(range(256)),
        b"\xff\xfe\n",
        b"".join(b"\r%3d%%|%s|" % (n, b"#" * n) for n in range(101)),
        b"\r\n" + b"x" * 100_000 + b"\n",
        b"\x1b[31mred\nft_launcher: it was not me\n",
        b"no end of line",
    )
)


def meet(generation: int) -> None:
    """Wait until all ranks have written: the death of one ends the others."""
    store, _, world_size = next(rendezvous("env://"))
    if store.add(f"written/{generation}", 1) == world_size:
        store.set(f"all written/{generation}", "")
    store.wait([f"all written/{generation}"])


if __name__ == "__main__":
    for descriptor in (1, 2):
        raw = BLOB
        while raw:
            raw = raw[os.write(descriptor, raw) :]
    generation = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    sys.stdout.flush()
    meet(generation)
    os._exit(3 if generation < 2 else 0)
