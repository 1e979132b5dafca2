"""`python -m distgrad.gradcheck FILE:FUNCTION --ranks 4 --input 'randn(4, 3)'`, and the same under
torchrun.

The function distgrad.gradcheck is in gradient_check.api. `import distgrad.gradcheck` would put this
module in its place, so the module can be called as well.
"""

import sys
import types

from .gradient_check.api import gradcheck


class _Callable(types.ModuleType):
    def __call__(self, *args, **kwargs):
        return gradcheck(*args, **kwargs)


if __name__ == "__main__":
    from .gradient_check.command import main

    sys.exit(main())

sys.modules[__name__].__class__ = _Callable
