"""The laboratory: what the scale does, computed, measured, trained and shown.

checks      experiments and claims: numbers that theory predicts beside numbers that were measured, with a verdict
training    training runs: as plain data, and what makes them
report      results as one HTML page that opens offline
first_look  what `rootdk look` shows
"""
