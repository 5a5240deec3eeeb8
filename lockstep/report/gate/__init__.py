"""Targets that results must reach: `lockstep gate`.

`targets` reads the file, `gates` judges, `training_runs` brings in what `lockstep train` left.
"""
