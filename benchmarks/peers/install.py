#!/usr/bin/env python3
"""Puts the peers that Debian does not have into a cache folder: UCX 1.22 and iceoryx2 0.10.

    benchmarks/peers/install.py            both; says nothing if they are there
    benchmarks/peers/install.py ucx        the wheel, by pip, which compares its checksum
    benchmarks/peers/install.py iceoryx2   builds benchmarks/peers/iceoryx2 with Cargo, as its
                                           Cargo.lock says

The folder is $XDG_CACHE_HOME/sluice/peers or ~/.cache/sluice/peers. tools/setup --peers runs this,
and has installed pip and a Cargo that is new enough (Debian's cargo-web; its `cargo` is too old).
Exit code: 0; 1 if one of them could not be installed.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

import downloaded

LIMIT_SECONDS = 1800  # of pip, of Cargo; Cargo takes two minutes on two processors


class Trouble(Exception):
    """The message says what failed and what to do."""


def run(command, **more):
    print(f"install.py: {' '.join(command)}", file=sys.stderr)
    try:
        done = subprocess.run(
            command, stdout=sys.stderr, timeout=LIMIT_SECONDS, check=False, **more)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Trouble(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise Trouble(f"{command[0]} ended with {done.returncode}")


def install_ucx():
    """Into a folder beside the last one, which it then becomes: whole or not at all."""
    os.makedirs(downloaded.folder(), exist_ok=True)
    with tempfile.TemporaryDirectory(dir=downloaded.folder()) as made:
        pinned, target = os.path.join(made, "pinned.txt"), os.path.join(made, "target")
        with open(pinned, "w", encoding="ascii") as file:
            file.write(
                f"{downloaded.UCX_PACKAGE}=={downloaded.UCX_VERSION}"
                f" --hash=sha256:{downloaded.UCX_SHA256}\n")
        run(
            [
                sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile",
                "--only-binary=:all:", "--require-hashes", "--target", target, "-r", pinned])
        shutil.rmtree(downloaded.ucx_folder(), ignore_errors=True)
        os.rename(target, downloaded.ucx_folder())


def version_of(said):
    found = re.match(r"cargo (\d+)\.(\d+)", said)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def check_cargo():
    wanted = ".".join(str(number) for number in downloaded.ICEORYX2_RUST)
    remedy = "install Debian's cargo-web (tools/setup --peers), or a newer Rust"
    if shutil.which("cargo") is None:
        raise Trouble(f"there is no cargo; {remedy}")
    said = subprocess.run(
        ["cargo", "--version"], capture_output=True, text=True, timeout=60, check=False
    ).stdout
    if version_of(said) < downloaded.ICEORYX2_RUST:
        raise Trouble(
            f"{said.strip()} is older than {wanted}, which iceoryx2 {downloaded.ICEORYX2_VERSION}"
            f" needs; {remedy}")


def install_iceoryx2():
    check_cargo()
    run(
        [
            "cargo", "build", "--release", "--locked", "--quiet", "--manifest-path",
            os.path.join(downloaded.HERE, "iceoryx2", "Cargo.toml"), "--target-dir",
            downloaded.iceoryx2_folder()])


def is_stale(program, sources):
    """Whether a source is newer than what was built of it."""
    return any(os.path.getmtime(source) > os.path.getmtime(program) for source in sources)


def sources():
    top = os.path.join(downloaded.HERE, "iceoryx2")
    return [os.path.join(folder, name) for folder, _, names in os.walk(top) for name in names]


def missing(which):
    if not downloaded.installed(which):
        return True
    return which == "iceoryx2" and is_stale(downloaded.iceoryx2_pingpong(), sources())


INSTALLERS = {"ucx": install_ucx, "iceoryx2": install_iceoryx2}


def main(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "peers", nargs="*", metavar="PEER", help=f"one of {', '.join(INSTALLERS)}; both without it")
    asked = parser.parse_args(arguments).peers or list(INSTALLERS)
    for which in asked:
        if which not in INSTALLERS:
            parser.error(f"no peer {which!r}; there are {', '.join(INSTALLERS)}")
    failed = False
    for which in asked:
        if not missing(which):
            continue
        try:
            INSTALLERS[which]()
        except Trouble as trouble:
            print(
                f"install.py: {downloaded.PROGRAMS[which][0]} is not installed: {trouble}",
                file=sys.stderr)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
