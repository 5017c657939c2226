"""A saved model, evaluated."""
