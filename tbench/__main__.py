"""`python -m tbench`: the command line."""

from tbench.cli import main

main()
