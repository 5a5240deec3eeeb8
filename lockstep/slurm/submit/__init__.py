"""Turns a campaign into jobs: their resources, scripts and submission."""
