"""From a campaign to jobs: site profiles, job templates, submission, accounting, collection."""
