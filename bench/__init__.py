"""The benchmarks: a file per question, each a use of the fixture `lockstep`.

Each case of a test is a row of its study (`lockstep.core.studies`): its factors are the test's
arguments, or it reads them from `lockstep.factors`. `measure_step` builds the model in DDP with a
batch and an optimizer, and times its step, `TrainStep.run` of `lockstep.measure.step.train_step`,
on every rank.
"""
