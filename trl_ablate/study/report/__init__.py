"""Analysis of a study's runs, and the report about them."""
