"""What the commands print and run, apart from their options: one file per command, texts of at most 80 columns."""
