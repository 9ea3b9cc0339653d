"""Write what is no text, and end in mid-line; die in the first two generations, so that the launcher speaks, too."""

import os
import sys

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

if __name__ == "__main__":
    for descriptor in (1, 2):
        raw = BLOB
        while raw:
            raw = raw[os.write(descriptor, raw) :]
    generation = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    sys.stdout.flush()
    os._exit(3 if generation < 2 else 0)
