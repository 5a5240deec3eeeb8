"""What is measured, and how: the world, timing, workloads, records and the cases themselves.

The vocabulary (`record`, `journal`, `campaign`, `sizes`, `metrics`, `hardware`) imports neither
torch nor pytest, so a login node can use it.
"""
