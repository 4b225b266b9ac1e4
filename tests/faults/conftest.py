"""Stores for the fault tests, as for the integration tests."""

from tests.integration.conftest import pg_store, store  # noqa: F401
