"""The sections of the report on Geva et al. 2021, one module each."""
