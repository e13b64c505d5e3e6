"""`python -m argus_cli` and the console script `argus`."""

from argus_cli.cli.app import main

if __name__ == "__main__":
    main()
