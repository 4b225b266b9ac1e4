"""``python -m relevo`` is ``relevo``."""

from relevo.cli.main import main

if __name__ == "__main__":
    main()
