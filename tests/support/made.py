"""What is made while something is refused: tensors with memory, modules, operations."""

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Made(TorchDispatchMode):
    """Counts what is made inside its block.

    Attributes:
        largest: bytes of the largest tensor that has memory; those on the meta device have none.
        modules: registered in others.
        operations: of PyTorch, on any device.
    """

    def __enter__(self) -> "Made":
        self.largest = self.modules = self.operations = 0

        def count(parent: nn.Module, name: str, child: nn.Module | None) -> None:
            self.modules += 1

        self._hook = register_module_module_registration_hook(count)
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._hook.remove()
        super().__exit__(*raised)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations += 1
        sizes = [x.untyped_storage().nbytes() for x in tree_leaves(result) if isinstance(x, Tensor) and not x.is_meta]
        self.largest = max([self.largest, *sizes])
        return result


def refused_with(made: Made, largest: int = 2**22) -> None:
    """Assert that nothing large was made, and nothing often."""
    assert made.largest <= largest, f"a tensor of {made.largest:,} bytes was made"
    assert made.modules < 5000 and made.operations < 50_000, f"{made.modules} modules, {made.operations} operations"
