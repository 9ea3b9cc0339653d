"""``python -m launcher`` is the command ``ft_launcher``."""

from launcher.cli import console_main

if __name__ == "__main__":
    console_main()
