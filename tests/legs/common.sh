# What ./dev and the legs share: printing, counting, building. Sourced by bash, in the root.

say() { printf '%s\n' "$*" >&2; }

# Runs a command, and shows what it printed only where it failed.
quietly() {
  local output
  if ! output=$("$@" 2>&1); then
    say "$output"
    say "failed: $*"
    return 1
  fi
}

# As many jobs as cores, but not more than memory holds: a translation unit takes up to 1.5 GB.
jobs() {
  local cores memory=
  cores=$(nproc 2> /dev/null || getconf _NPROCESSORS_ONLN)
  if [ -r /proc/meminfo ]; then
    memory=$(awk '/^MemAvailable:/ { print int($2 / 1500000) }' /proc/meminfo)
  fi
  if [ -n "$memory" ] && [ "$memory" -lt "$cores" ]; then cores=$memory; fi
  echo $((cores > 0 ? cores : 1))
}

# Labels of the tests of what is around the library: examples, pages, ways to take it in, what reads
# it beside compilers, kept corpora of fuzzing, mistakes of callers, memory and disks that fail.
# `./dev test` leaves them to `./dev test --all`.
# shellcheck disable=SC2034
around='^(bad_calls|comparison|compiled|consumers|debug|documents|example|examples|fuzz'
around+='|gradient_check|link|outside_faults|packaging)$'

# clang_of <version> [tool]: the name of that version's clang++ (or other tool) here, or nothing.
clang_of() {
  local tool=${2-clang++} name
  for name in "$tool-$1" "$tool"; do
    if "$name" --version 2> /dev/null | grep -q "version $1\."; then echo "$name" && return; fi
  done
}

# Thousands of lines that say "Passed" hide the one that does not.
without_passed() {
  sed -u -E '/^ +Start +[0-9]+: /d; /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: .* Passed +[0-9.]+ sec *$/d'
}
