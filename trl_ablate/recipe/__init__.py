"""From a recipe in YAML to one resolved, checked configuration."""
