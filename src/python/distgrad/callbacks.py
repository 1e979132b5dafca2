"""Runs check_gradients in the loop of a trainer, by one line of a script: it checks the gradients
of the first batch on all ranks before the trainer trains. Each call imports its trainer's
package."""

import contextlib

from .step.api import check_gradients


def for_transformers(trainer, objective="mean", **options):
    """trainer.add_callback(distgrad.callbacks.for_transformers(trainer))

    `options` are check_gradients'. The objective "mean" is the mean over the ranks of the sum of
    what training_step() returns for each micro-batch: a division that it forgets, or makes twice,
    changes that loss as it changes the gradients, and is not seen. What the trainer does after
    that, such as clipping, is not run."""
    from transformers import TrainerCallback

    class Check(TrainerCallback):
        def on_train_begin(self, args, state, control, train_dataloader=None, **_):
            with _generators_left_alone():
                batches, items = trainer.get_batch_samples(
                    iter(train_dataloader), args.gradient_accumulation_steps, args.device)
            trainer.current_gradient_accumulation_steps = len(batches)
            model = trainer.model_wrapped

            def step():
                model.zero_grad()
                total = 0.0
                for i, inputs in enumerate(batches):
                    is_last = i == len(batches) - 1
                    trainer.accelerator.gradient_state._set_sync_gradients(is_last)
                    with (contextlib.nullcontext() if is_last
                          else trainer.accelerator.no_sync(model=model)):
                        total = total + trainer.training_step(model, dict(inputs), items)
                return total

            _check(model, step, objective, options)

    return Check()


def for_lightning(objective="mean", **options):
    """lightning.Trainer(..., callbacks=[distgrad.callbacks.for_lightning()])

    `options` are check_gradients'. Raises ValueError where the module optimises by hand, or
    gradients are accumulated: call check_gradients yourself there. The module's training_step() is
    called as the strategy calls it, and its hooks between backward and optimizer.step() are, but
    not those of other callbacks."""
    from lightning import Callback

    class Check(Callback):
        _is_done = False

        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            if self._is_done:
                return
            self._is_done = True
            strategy = trainer.strategy
            if not module.automatic_optimization or trainer.accumulate_grad_batches > 1:
                what = ("accumulate_grad_batches" if module.automatic_optimization
                        else "manual optimization")
                raise ValueError(f"for_lightning does not run {what}: call"
                                 " distgrad.check_gradients(module, step), with a step() that does"
                                 " forward and backward as your module does")

            def step():
                module.zero_grad()
                found = strategy.training_step(batch, batch_idx)
                loss = found["loss"] if isinstance(found, dict) else found
                if loss is None:
                    raise ValueError("training_step() returned None: Lightning skips this batch")
                strategy.backward(loss, None)
                for optimizer in trainer.optimizers:  # as Lightning does before optimizer.step()
                    module.on_before_optimizer_step(optimizer)
                    module.configure_gradient_clipping(optimizer, trainer.gradient_clip_val,
                                                       trainer.gradient_clip_algorithm)
                return loss.detach()

            with _nothing_logged(module):
                _check(strategy.model, step, objective, options)

    return Check()


def _check(model, step, objective, options):
    import torch.distributed as dist

    report = check_gradients(model, step, objective, **options)
    if dist.get_rank() == 0:
        print(report, flush=True)


@contextlib.contextmanager
def _nothing_logged(module):
    """Drops what training_step() logs meanwhile, as that belongs to no batch of the loop."""
    names = ("log", "log_dict")
    before = {name: module.__dict__.get(name) for name in names}
    for name in names:
        object.__setattr__(module, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                object.__delattr__(module, name)
            else:
                object.__setattr__(module, name, value)


@contextlib.contextmanager
def _generators_left_alone():
    """Restores the random generators, so that drawing a batch for the check does not change the
    training."""
    from .step.running import random_states

    states = random_states()
    try:
        yield
    finally:
        for put, state in states:
            put(state)
