"""`python -m rootdk` is the command line."""

from rootdk.cli import main

if __name__ == "__main__":
    main()
