"""From a campaign to its jobs: resources, scripts and what sbatch answers."""
