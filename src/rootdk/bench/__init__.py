"""Side by side with other libraries: shapes, fair timing, peers, targets. `rootdk bench` runs it."""
