"""What is measured: a file per question, each the first use of the fixture `lockstep`.

A test's arguments are the factors of its study (`lockstep.core.studies`), so its cases are rows of
that study. `build_step` gives the model in DDP with a batch and an optimizer; a step, forward,
backward and update, is `TrainStep.run` in `lockstep/measure/step/train_step.py`.
`lockstep.measure` times it on every rank and keeps the result, as it does in anybody's repository.
"""
