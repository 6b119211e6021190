"""The parts of scikit-learn that an estimator uses, with replacements where it is not installed."""

import inspect
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mereo.errors import UsageError, unknown

if TYPE_CHECKING or find_spec("sklearn") is None:

    class Estimator:
        """The parameters of an estimator, as scikit-learn's base class has them."""

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            """The arguments of the constructor by name; `deep` is part of scikit-learn's call and changes nothing."""
            return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

        def set_params(self, **params: Any) -> "Estimator":
            """Change some of them; UsageError for an unknown one."""
            known = self.get_params()
            for name, value in params.items():
                if name not in known:
                    raise unknown(f"parameter of {type(self).__name__}", name, known)
                setattr(self, name, value)
            return self

        def __repr__(self) -> str:
            defaults = inspect.signature(type(self)).parameters
            own = {name: value for name, value in self.get_params().items() if value != defaults[name].default}
            return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in own.items())})"

else:
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Estimator(ClassifierMixin, BaseEstimator):
        """An estimator of scikit-learn."""


def of_sklearn(name: str, otherwise: type[Exception]) -> Any:
    """An exception or warning of scikit-learn where that is installed."""
    if find_spec("sklearn") is None:
        return otherwise
    import sklearn.exceptions

    return getattr(sklearn.exceptions, name)


def not_fitted(name: str) -> Exception:
    """The error of an estimator that was not fitted, of both libraries."""
    base = of_sklearn("NotFittedError", UsageError)
    kind = UsageError if base is UsageError else type("NotFittedUsageError", (UsageError, base), {})
    error: Exception = kind(f"this {name} is not fitted yet; call fit first.")
    return error
