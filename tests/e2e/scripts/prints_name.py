"""Says hello if it runs as the main program."""

if __name__ == "__main__":
    print("hello")
