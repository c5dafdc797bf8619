"""What `torch_ort` is installed with: nothing has to be compiled here."""

from __future__ import annotations

from onward.torch.ortmodule.torch_cpp_extensions.install import build_torch_cpp_extensions

__all__ = ["build_torch_cpp_extensions"]

if __name__ == "__main__":
    build_torch_cpp_extensions()
