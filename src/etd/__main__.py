"""``python -m etd``."""

from etd.cli import main

if __name__ == "__main__":
    main()
