"""Side by side with other libraries. `make bench` runs it; README.md says what is timed and how."""
