"""What became of a campaign's jobs: their states, their cost and their results."""
