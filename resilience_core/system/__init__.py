"""What the packages ask of Linux and of the file system. Standard library only."""
