"""``python -m etd``."""

from etd.cli import main

main()
