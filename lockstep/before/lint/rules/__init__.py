"""The rules of `lockstep lint`: each a small function from a script to what it breaks.

A rule that cannot know is silent: a variable is replaced where the script sets it to a plain text,
and what only a shell could expand is not judged.
"""
