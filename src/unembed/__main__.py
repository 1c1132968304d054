"""`python -m unembed` is the `unembed` command."""

from unembed.cli import main

if __name__ == "__main__":
    main()
