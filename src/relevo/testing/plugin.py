"""The pytest plugin. Fails a test that forgot to await an ``outbox.add`` on an async handle."""
