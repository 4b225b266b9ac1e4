"""Storage: SQL in named files per dialect, scripts that use them, and handles that run them on any connection."""

from relevo.loggers import guard

guard()
