"""All-reduces timed side by side, without training: what each algorithm reaches on a lab."""
