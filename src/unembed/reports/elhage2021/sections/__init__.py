"""The sections of the report on Elhage et al. 2021, one module each."""
