"""Of a script: the truth where nothing but the ranks' forward run is known."""

import torch

measured = []  # what measure() found


def measure(rank):
    """The truth: how the objective moves with each element, by central differences. All ranks move
    the same one."""
    values = {name: [leaf(v, requires_grad=False) for v in value] if isinstance(value, list)
              else leaf(value, requires_grad=False) for name, value in named_inputs().items()}

    def slope(flat, i):
        at, scale = flat[i].item(), max(flat[i].abs(), flat.square().mean().sqrt()).item() or 1.0
        for by in (2.0**-14, 2.0**-20, 2.0**-26):  # smaller ones where there is a kink between
            h, J = scale * by, []
            for step in (h, -h, h / 4, -h / 4):
                flat[i] = at + step
                J.append(objective(losses_at(rank, **values)))
            flat[i] = at
            far, near = (J[0] - J[1]) / (2 * h), (J[2] - J[3]) / (h / 2)
            if abs(far - near) <= 1e-4 * abs(near) + 1e-12 * abs(J[0]) / h:
                break
        return (16 * near - far) / 15

    def slopes(value):
        if isinstance(value, list):
            return [slopes(of_rank) for of_rank in value]
        flat = value.view(-1)
        return torch.tensor([slope(flat, i) for i in range(value.numel())]).reshape(value.shape)

    losses = losses_at(rank, **values)
    measured[:] = losses, {title: slopes(values[name]) for title, name in moved.items()}
