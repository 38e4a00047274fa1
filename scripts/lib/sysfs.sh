# shellcheck shell=bash
# shellcheck disable=SC2034 # Some of what is set here is for those that source it.
# Sourced by scripts/bind-nic and scripts/hugepages: reads and writes the kernel's attributes, each write with a deadline.
# SYSFS, PROC and SYSFS_KERNEL are for tests: other trees than /sys and /proc, and a program that plays the kernel's part
# after each write (its arguments are the file and the value). Nothing else should set them.

SYSFS=${SYSFS:-/sys}
PROC=${PROC:-/proc}

# How long one write to an attribute may take, in seconds: a driver that does not let go of its device waits in there.
WRITE_DEADLINE=${WRITE_DEADLINE:-20}

# The meaning of the exit statuses.
FAILED=1 USAGE=2 REFUSED=3

program=$(basename "$0")

warn() { printf '%s: %s\n' "$program" "$*" >&2; }

# die STATUS MESSAGE: the last thing that is said.
die() {
    local status=$1
    shift
    printf '%s: error: %s\n' "$program" "$*" >&2
    exit "$status"
}

# usage_error MESSAGE: wrong arguments.
usage_error() { die "$USAGE" "$*; see scripts/$program --help"; }

# attribute FILE: its only line, or nothing if there is none.
attribute() {
    local line=
    if [ -r "$1" ]; then
        IFS= read -r line 2>/dev/null <"$1" || true
    fi
    printf '%s' "$line"
}

# name_of_link LINK: the last part of where it leads, or nothing if it is no link.
name_of_link() {
    local target
    if target=$(readlink "$1"); then
        printf '%s' "${target##*/}"
    fi
}

# write_attribute FILE VALUE: fails, leaving the reason in WRITE_ERROR, if the kernel refuses or takes too long.
WRITE_ERROR=
write_attribute() {
    local answer='' status=0
    WRITE_ERROR=
    # The writer is another process, so that one that the kernel does not let return can be left behind.
    IFS= read -r -t "$WRITE_DEADLINE" answer < <(
        {
            if printf '%s\n' "$2" >"$1" && { [ -z "${SYSFS_KERNEL:-}" ] || "$SYSFS_KERNEL" "$1" "$2"; }; then
                echo 'done'
            fi
        } 2>&1
    ) || status=$?
    if [ "$answer" = 'done' ]; then
        return 0
    elif [ "$status" -gt 128 ]; then
        WRITE_ERROR="no answer from the kernel within $WRITE_DEADLINE s"
    else
        WRITE_ERROR=${answer##*: }
        WRITE_ERROR=${WRITE_ERROR:-it cannot be written}
    fi
    return 1
}

# json_string TEXT: as a JSON string (RFC 8259, section 7); bytes below 0x20 are left out.
json_string() {
    local text=${1//[$'\x01'-$'\x1f']/}
    text=${text//\\/\\\\}
    printf '"%s"' "${text//\"/\\\"}"
}

# json_strings TEXT...: as a JSON array of strings.
json_strings() {
    local item comma=
    printf '['
    for item in "$@"; do
        printf '%s' "$comma"
        json_string "$item"
        comma=,
    done
    printf ']'
}

# json_number TEXT: a number that is known, or null.
json_number() {
    case $1 in
    '' | *[!0-9]*) printf null ;;
    *) printf '%s' "$1" ;;
    esac
}
