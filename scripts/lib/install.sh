# Sourced by scripts/demo, scripts/test and others: lists the packages that a Debian 12 host lacks, and installs them.
# With NO_INSTALL=1 it only lists them, and fails.

say() { printf '==> %s\n' "$*" >&2; }

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# as_root COMMAND...: runs it as root, through sudo if this user is not root.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        fail "this needs root and there is no sudo; as root, run: $*"
    fi
}

# Packages for building: a C compiler, clang's library for bindgen, DPDK with the libraries of its drivers, libibverbs.
PACKAGES_BUILD=(build-essential pkg-config clang libclang-dev libdpdk-dev libnuma-dev libfdt-dev libbsd-dev libpcap-dev libibverbs-dev librdmacm-dev ca-certificates curl)
# Packages for the demo's report.
PACKAGES_REPORT=(python3 python3-matplotlib)
# The peers of the benchmarks, and the programs of the network tests.
PACKAGES_PEERS=(openmpi-bin libopenmpi-dev mpich libmpich-dev python3-torch iproute2 nftables)
# A launcher beside those of MPI, for tests of jobs under it.
PACKAGES_LAUNCHERS=(slurmctld slurmd slurm-client munge)
# The peers of our TCP/IP in scripts/peers-net.
PACKAGES_PEERS_NET=(iproute2 iputils-ping nftables ethtool procps curl openssl nginx-light wrk socat python3-minimal)
# Packages that build and run the virtual machines of scripts/vm-lab.
PACKAGES_VM_LAB=(qemu-system-x86 mmdebstrap squashfs-tools cpio kmod util-linux)

# install_packages WHY PACKAGE...: installs the missing packages.
install_packages() {
    local why=$1 package missing=()
    shift
    for package in "$@"; do
        if [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then
            missing+=("$package")
        fi
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "${NO_INSTALL:-}" = 1 ]; then
        fail "$why: missing packages; as root, run: apt-get install --no-install-recommends ${missing[*]}"
    fi
    command -v apt-get >/dev/null || fail "$why: no apt-get here; install what corresponds to Debian's ${missing[*]}"
    say "$why: installing ${missing[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
}

# need_rust: keeps a toolchain that is new enough; otherwise installs rustup as https://rustup.rs documents.
need_rust() {
    local wanted have=none
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    if ! command -v cargo >/dev/null && [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
        PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
    fi
    if command -v rustc >/dev/null; then
        have=$(rustc --version | cut -d ' ' -f 2)
        if [ "$(printf '%s\n' "$wanted" "$have" | sort -V | head -n 1)" = "$wanted" ]; then
            return 0
        fi
    fi
    if [ "${NO_INSTALL:-}" = 1 ]; then
        fail "Rust $wanted or newer is needed (found: $have); see https://rustup.rs"
    fi
    say "Rust $wanted or newer is needed (found: $have): installing it with rustup into ${CARGO_HOME:-$HOME/.cargo}"
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
        sh -s -- -y --profile minimal --component clippy --component rustfmt --no-modify-path >&2
    PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
}

# The profile of the build, release or dev, and cargo's folder for it.
profile=${PROFILE:-release}
built=target/${profile/#dev/debug}

# All packages except the one that must not contain DPDK.
WHOLE=(--workspace --exclude shouter-packetdrill)

# build_programs: the program and the C library; with the profile dev the examples too, as the tests build them, so that
# nothing is built twice.
build_programs() {
    if [ "$profile" = dev ]; then
        cargo build --locked "${WHOLE[@]}" --lib --bins --examples
    else
        cargo build --locked --profile "$profile" -p shouter-cli -p shouter-c
    fi
}

# build_extension: the same, and the Python package's extension module.
build_extension() {
    build_programs
    [ "$profile" = dev ] || cargo build --locked --profile "$profile" -p shouter-python
}

# link_extension: puts that module into the package's folder, where Python finds it.
link_extension() {
    local module=../../../../$built/lib_core.so link=bindings/python/python/shouter/_core.abi3.so
    # Steps that run at the same time must not miss it.
    [ "$(readlink "$link")" = "$module" ] || ln -sfn "$module" "$link"
}
