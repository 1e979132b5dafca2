"""distgrad's parts that run in a user's own Python."""
