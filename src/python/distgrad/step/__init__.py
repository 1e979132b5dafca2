"""Whether the gradients of a training step are the derivative of its loss, measured on the ranks of
a running job. `api`, `errors` and `report` need no torch; the rest imports it."""
