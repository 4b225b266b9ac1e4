"""The architecture on a few screens: each port is a protocol whose docstring is the contract."""
