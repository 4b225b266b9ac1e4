"""Stores and stacks for the fault tests, as for the integration tests."""

from tests.integration.conftest import batched, consuming, pg_stack, pg_store, stack, store  # noqa: F401
