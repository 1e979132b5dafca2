"""check_gradients measures, on the ranks of a running job, whether the gradients of a training step
are the derivative of its loss. `api`, `errors` and `report` need no torch; the rest imports it."""
