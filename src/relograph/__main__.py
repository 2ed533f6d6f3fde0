"""`python -m relograph` is `relograph`, for where the script is not on PATH."""

from relograph.cli import main

main()
