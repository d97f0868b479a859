"""Training runs that ask what the scale does when a model learns. Needs torch; runs and results are in rootdk.trained."""
