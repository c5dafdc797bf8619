"""What the original is installed with: nothing has to be compiled here."""

from __future__ import annotations


def build_torch_cpp_extensions() -> None:
    """Say that there is nothing to do."""
    print("ORTModule of onward has no extensions of torch in C++: there is nothing to compile.")


if __name__ == "__main__":
    build_torch_cpp_extensions()
