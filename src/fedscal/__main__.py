"""``python -m fedscal`` is the command line."""

from fedscal.cli import main

main()
