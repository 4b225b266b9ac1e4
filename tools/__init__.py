"""Helpers for working on Relevo itself; nothing here is part of the installed package."""
