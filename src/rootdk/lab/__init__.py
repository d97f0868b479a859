"""The laboratory: what the scale does, computed, measured, trained and shown.

checks           experiments and claims: what theory predicts beside what was measured, with a verdict
training         training runs: as plain data, and what makes them
report           results as one HTML page that opens offline
proof            why the variance is d_k, step by step: `rootdk prove`
recommendation   theory and advice for one setting: `rootdk predict`
first_look       several scales on the same random q and k: `rootdk look`
drawing, formulas, palette.css   what report, explorer and experiments draw with
"""
