# Sourced by scripts/vm-lab: the scenarios, one a file in vm-lab.d/scenarios, and the table of their results.
#
# A scenario begins with a comment of `# KEY: VALUE` lines:
#   shows      what it proves, in one line
#   options    of `vm-lab run`: guests, NICs, memory; none by default
#   needs      binaries of target/release (target/debug with PROFILE=dev), such as shouter and examples/echo: built when they are needed, put on the guest's PATH
#   slice      yes: part of `vm-lab slice`
# and its body runs in the guest, or in both, with bash and guest/lib.sh loaded. It passes by ending with 0 and is skipped by ending
# with 77; its last line `shown: ...` or `skipped: ...` is printed in the table.

# key NAME FILE: the value of that key of a scenario.
key() { sed -n "/^#/!q; s/^# $1: *//p" "$2"; }

# scenario_files [slice]: the paths of all scenarios, or of those of the slice.
scenario_files() {
    local file
    for file in "$vm_lab_d"/scenarios/*.sh; do
        if [ "${1:-}" != slice ] || [ "$(key slice "$file")" = yes ]; then
            printf '%s\n' "$file"
        fi
    done
}

list_scenarios() {
    local file
    while read -r file; do
        printf '%-18s %-6s %s\n' "$(basename "$file" .sh)" "$([ "$(key slice "$file")" = yes ] && echo slice)" "$(key shows "$file")"
    done < <(scenario_files)
}

# test_binary NAME ARGUMENT...: builds a test binary by cargo's arguments, as $target/NAME.
test_binary() {
    local name=$1 found
    shift
    found=$(cargo test --locked --no-run --message-format=json "$@" | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
    [ -n "$found" ] && cp "$found" "$target/$name"
}

# build_binary NAME: builds one of the project's programs as $target/NAME, unless it is up to date.
build_binary() {
    mkdir -p "$target"
    case $1 in
    shouter) build_programs ;;
    examples/*) cargo build --locked --profile "$profile" "${WHOLE[@]}" --example "${1#examples/}" ;;
    verbs_rxe) test_binary verbs_rxe "${WHOLE[@]}" --test verbs_rxe ;;
    shouter_lib) test_binary shouter_lib -p shouter --lib ;;
    trainer) scripts/package-c && scripts/lib/compile-trainer "$target/trainer" ;;
    cuda-sim/kernels.tar) build_binary shouter && build_binary cuda-sim/libcuda.so.1 &&
        scripts/lib/cuda-sim/kernels "$target/cuda-sim" "$target/shouter" ;;
    cuda-sim/*) scripts/lib/cuda-sim/build "$target/cuda-sim" ;;
    *) printf 'error: no rule builds %s\n' "$1" >&2 && return 1 ;;
    esac
}

# build_binaries FILE...: builds the scenarios' binaries that --bin does not give.
build_binaries() {
    local file binary binaries
    export CARGO_TARGET_DIR=${target%/*}
    install_packages "to build" "${PACKAGES_BUILD[@]}"
    need_rust
    mapfile -t binaries < <(for file in "$@"; do
        for binary in $(key needs "$file"); do
            [ -n "$(given_bin "$binary")" ] || printf '%s\n' "$binary"
        done
    done | sort -u)
    for binary in "${binaries[@]}"; do
        say "building $binary"
        build_binary "$binary" || lab_failed "$binary was not built"
    done
}

# run_scenarios FILE...: runs them one after another; prints the table; fails if a scenario does.
run_scenarios() {
    local file name binary bin began result status said rows=() options passed=0 failed=0 skipped=0
    local target=${CARGO_TARGET_DIR:-$root/target}/${built##*/}
    # Before the first scenario boots.
    build_binaries "$@"
    mkdir -p "$lab/logs"
    for file in "$@"; do
        name=$(basename "$file" .sh)
        options=()
        for binary in $(key needs "$file"); do
            bin=$(given_bin "$binary")
            options+=(--bin "${bin:-$target/$binary}")
        done
        # shellcheck disable=SC2207 # words are meant to be split
        options+=($(key options "$file"))
        say "$name: $(key shows "$file")"
        began=$SECONDS status=0
        "$self" run "${options[@]}" --script "$file" >"$lab/logs/$name.log" 2>&1 &
        child=$!
        wait "$child" || status=$?
        child=''
        said=$(sed -En 's/^(\[[01]\] )?(shown|skipped|FAILED): //p' "$lab/logs/$name.log" | tail -n 1)
        case $status in
        0) result=passed passed=$((passed + 1)) ;;
        77) result=skipped skipped=$((skipped + 1)) ;;
        *)
            result=FAILED failed=$((failed + 1))
            tail -n 30 "$lab/logs/$name.log" >&2
            ;;
        esac
        rows+=("$(printf '%-18s %-8s %4s s  %s' "$name" "$result" $((SECONDS - began)) "$said")")
    done
    printf '%-18s %-8s %6s  %s\n' scenario verdict time shown
    printf '%s\n' "${rows[@]}"
    printf 'logs: %s\n%d passed, %d failed, %d skipped\n' "$lab/logs" "$passed" "$failed" "$skipped"
    [ "$failed" = 0 ]
}

# given_bin NAME: the path of that program among those given with --bin, in any folder.
given_bin() {
    local each
    for each in "${bins[@]}"; do
        if [ "${each##*/}" = "${1##*/}" ]; then
            printf '%s\n' "$each"
        fi
    done
}
