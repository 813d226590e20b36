"""`python -m workbench`."""

from workbench.cli.quick import main

if __name__ == "__main__":
    main()
