"""From the command line to a finished results folder."""
