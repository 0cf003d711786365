"""The `sonant` command: one file for each subcommand, on top of the same API that programs use."""
