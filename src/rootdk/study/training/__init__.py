"""Training runs that ask what the scale does when a model learns. Needs torch; what they record: rootdk.trained."""
