"""Fails inside torch's @record, which leaves an error file."""

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main() -> None:
    raise KeyError("the missing key")


main()
