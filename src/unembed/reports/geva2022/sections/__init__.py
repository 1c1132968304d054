"""The sections of the report on Geva et al. 2022, one module each."""
