from relevo.catalog import DEFAULT_PREFIX, Catalog, check_identifier, numbered, pyformat

__all__ = ["DEFAULT_PREFIX", "Catalog", "check_identifier", "numbered", "pyformat"]
