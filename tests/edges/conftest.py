"""Stores and stacks for the edge suites, as for the integration tests."""

from tests.integration.conftest import batched, consuming, pg_stack, pg_store, stack, store  # noqa: F401
