import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e.cache import cache_root
from e2e.cluster.binaries import Progress
from e2e.cluster.errors import ClusterError

NONROOT = 65532
KEPT_ARCHIVES = 3  # of 90 MB each
# For `kubectl exec`; vLLM asks lscpu about the machine.
PROGRAMS = ("cat", "dash", "env", "head", "id", "ls", "lscpu", "sleep", "tail")

# Loaded by name at run time, or needed by common wheels, so that no ldd shows them.
LIBRARIES = (
    "libatomic.so.1", "libdl.so.2", "libgcc_s.so.1", "libgomp.so.1", "libm.so.6", "libmvec.so.1",
    "libnss_dns.so.2", "libnss_files.so.2", "libnuma.so.1", "libpthread.so.0", "libresolv.so.2",
    "librt.so.1", "libstdc++.so.6", "libutil.so.1", "libz.so.1",
)  # fmt: skip
TREES = ("/usr/share/zoneinfo", "/usr/lib/locale/C.utf8", "/usr/lib/locale/C.UTF-8")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo",
            "ensurepip", "lib2to3", "pydoc_data"}  # fmt: skip

TEXTS = {
    "etc/passwd": f"root:x:0:0:root:/root:/bin/sh\n"
    f"nonroot:x:{NONROOT}:{NONROOT}:nonroot:/home/nonroot:/bin/sh\n",
    "etc/group": f"root:x:0:\nnonroot:x:{NONROOT}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
ENVIRONMENT = (
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG=C.UTF-8",
    f"SSL_CERT_FILE={CERTIFICATES}",
)
# The shell sets SIGCHLD to ignored and passes that on, so that the kernel reaps orphans of pods
# that share a process namespace.
SANDBOX_COMMAND = ("/bin/sh", "-c", "trap '' CHLD; exec sleep infinity")


@dataclass(frozen=True)
class Images:
    """Two images with one layer: Python for pods, and the sandbox that holds their namespaces."""

    archive: Path
    python: str
    sandbox: str


@dataclass(frozen=True)
class Content:
    """What the layer holds: files of this machine at their own paths, and links between them."""

    files: dict[str, Path]
    links: dict[str, str]

    def key(self) -> str:
        digest = hashlib.sha256(Path(__file__).read_bytes())
        for name, file in sorted(self.files.items()):
            status = file.stat()
            digest.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
        for name, target in sorted(self.links.items()):
            digest.update(f"{name} -> {target}\n".encode())
        return digest.hexdigest()[:12]


def find_or_build(progress: Progress) -> Images:
    content = collect()
    key = content.key()
    archive = cache_root() / "image" / f"python-{key}.tar"
    images = Images(
        archive, f"localhost/promptprefix/python:{key}", f"localhost/promptprefix/sandbox:{key}"
    )
    if not archive.exists():
        progress(f"making the base image from this machine's Python and libraries: {archive}")
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent, prefix="making-") as temporary:
            _write_archive(images, content, Path(temporary)).rename(archive)
        newest_first = sorted(
            archive.parent.glob("python-*.tar"), key=lambda file: file.stat().st_mtime, reverse=True
        )
        for old in newest_first[KEPT_ARCHIVES:]:
            old.unlink(missing_ok=True)
    return images


def collect() -> Content:
    content = Content({}, {})
    executable = Path(sys.base_prefix, "bin", f"python{sysconfig.get_python_version()}")
    programs = [executable]
    for name in PROGRAMS:
        if found := shutil.which(name, path="/usr/bin:/bin"):
            programs.append(Path(found))
    standard_library = Path(sysconfig.get_path("stdlib"))
    for file in _walk(standard_library, LEFT_OUT):
        content.files[_inside(file)] = file
    # Without tkinter, which alone would bring a window system's libraries.
    extensions = [
        file
        for file in sorted((standard_library / "lib-dynload").glob("*.so"))
        if not file.name.startswith("_tkinter")
    ]
    for file in [*programs, *_libraries([*programs, *extensions])]:
        _add(content, file)
    for tree in (Path(tree) for tree in TREES):
        for file in _walk(tree, set()):
            _add(content, file)
    if CERTIFICATES.exists():
        content.files[_inside(CERTIFICATES)] = CERTIFICATES
    content.links["usr/bin/sh"] = "dash"
    for name in ("python3", "python"):
        content.links.setdefault(f"usr/local/bin/{name}", str(executable))
    for name in ("bin", "lib", "lib64", "sbin"):
        content.links[name] = f"usr/{name}"
    return content


def _add(content: Content, file: Path) -> None:
    """Add a file under its real folder, and every link on the way to it."""
    file = file.parent.resolve() / file.name
    if file.is_symlink():
        content.links[_inside(file)] = os.readlink(file)
        target = file.parent / os.readlink(file)
        if target.exists():
            _add(content, target)
    elif file.is_file():
        content.files[_inside(file)] = file


def _inside(file: Path) -> str:
    return str(file).removeprefix("/")


def _walk(tree: Path, left_out: set[str]) -> Iterator[Path]:
    for folder, folders, files in os.walk(tree):
        folders[:] = sorted(set(folders) - left_out - {"right", "posix"})
        folders[:] = [name for name in folders if not name.startswith("config-")]
        for name in sorted(files):
            # Compiled files are kept: pods with a read-only root could not write them.
            if not re.search(r"\.opt-\d\.pyc$|\.a$", name):
                yield Path(folder, name)


def _libraries(programs: list[Path]) -> set[Path]:
    listing = subprocess.run(
        ["ldd", *map(str, programs)], capture_output=True, text=True, check=False
    ).stdout
    found = {Path(path) for path in re.findall(r"(?:=> |^\t)(/\S+) \(0x", listing, re.MULTILINE)}
    loader = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False,
                            env={"PATH": "/usr/sbin:/sbin"}).stdout  # fmt: skip
    machine = {"x86_64": "x86-64", "aarch64": "AArch64"}.get(platform.machine(), "")
    for name in LIBRARIES:
        pattern = rf"^\t{re.escape(name)} \(libc6,{machine}[^)]*\) => (\S+)$"
        if match := re.search(pattern, loader, re.MULTILINE):
            found.add(Path(match[1]))
    if not found:
        raise ClusterError("ldd names no library of the running Python: is it statically linked?")
    return found


def _write_archive(images: Images, content: Content, folder: Path) -> Path:
    layer = folder / "layer"
    _write_layer(layer, content)
    size, digest = layer.stat().st_size, _digest(layer)
    blobs: dict[str, bytes] = {}

    def blob(media_type: str, value: object) -> dict[str, object]:
        data = json.dumps(value, sort_keys=True).encode()
        name = hashlib.sha256(data).hexdigest()
        blobs[name] = data
        return {"mediaType": media_type, "digest": f"sha256:{name}", "size": len(data)}

    prefix = "application/vnd.oci.image"
    manifests = []
    for reference, command in ((images.python, ("python3",)), (images.sandbox, SANDBOX_COMMAND)):
        config = blob(f"{prefix}.config.v1+json", _config(command, digest))
        manifest = blob(
            f"{prefix}.manifest.v1+json",
            {
                "schemaVersion": 2,
                "mediaType": f"{prefix}.manifest.v1+json",
                "config": config,
                "layers": [
                    {
                        "mediaType": f"{prefix}.layer.v1.tar",
                        "digest": f"sha256:{digest}",
                        "size": size,
                    }
                ],
            },
        )
        # The name for containerd, and that for whoever else reads the layout.
        names = {
            "io.containerd.image.name": reference,
            "org.opencontainers.image.ref.name": reference,
        }
        manifests.append(manifest | {"annotations": names})
    archive = folder / "archive"
    with tarfile.open(archive, "w") as tar:
        _add_bytes(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        index = {"schemaVersion": 2, "mediaType": f"{prefix}.index.v1+json",
                 "manifests": manifests}  # fmt: skip
        _add_bytes(tar, "index.json", json.dumps(index).encode())
        for name, data in blobs.items():
            _add_bytes(tar, f"blobs/sha256/{name}", data)
        tar.add(layer, f"blobs/sha256/{digest}")
    return archive


def _config(command: tuple[str, ...], layer_digest: str) -> dict[str, object]:
    return {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(
            platform.machine(), platform.machine()
        ),
        "os": "linux",
        "config": {
            "User": f"{NONROOT}:{NONROOT}",
            "Env": list(ENVIRONMENT),
            "Entrypoint": list(command),
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
        "history": [{"created_by": "files of the machine"}],  # buildah wants one for each layer
    }


def _write_layer(layer: Path, content: Content) -> None:
    with tarfile.open(layer, "w") as tar:
        folders = {
            parent
            for name in [*content.files, *content.links, *TEXTS]
            for parent in map(str, Path(name).parents)
        } | {"dev", "home", "proc", "root", "run", "sys", "tmp", "var", "var/tmp"}
        for name in sorted(folders - {"."}):
            _add_folder(tar, name, 0o1777 if name in ("tmp", "var/tmp") else 0o755)
        _add_folder(tar, "home/nonroot", 0o700, NONROOT)
        for name, target in sorted(content.links.items()):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        for name, text in TEXTS.items():
            _add_bytes(tar, name, text.encode())
        for name, file in sorted(content.files.items()):
            # The time of change stays: Python compares it to that in the compiled file.
            entry = tar.gettarinfo(file, name)
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mode |= 0o444
            if entry.islnk():
                entry.type, entry.linkname, entry.size = tarfile.REGTYPE, "", file.stat().st_size
            with file.open("rb") as data:
                tar.addfile(entry, data)


def _add_folder(tar: tarfile.TarFile, name: str, mode: int, owner: int = 0) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, mode, owner, owner
    tar.addfile(entry)


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o644
    tar.addfile(entry, io.BytesIO(data))


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
