"""What `lockstep init` writes: the first site and campaign files of a place."""
