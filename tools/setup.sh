# Shared by tools/run, tools/test, tools/bench and tools/wheel, which source it: packages, torch,
# configure, build.
#
# Standard output is never written. Where nothing changed, all of it takes less than 0.1 s: packages
# are looked at only when the list or dpkg's state changed, environments and build folders have a
# stamp that says what they were made for. A set-up that fails leaves no stamp, says why on standard
# error, and exits with 2.

kPinnedTorch=2.15.0
kRoot=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
kBuild=$kRoot/build

say() { printf 'distgrad: %s\n' "$*" >&2; }
fail() {
  say "$@"
  exit 2
}

# logged LOG WHAT COMMAND...: runs the command with its output in LOG, shown only when the command
# fails. What takes longer says how far it is: every second on a terminal, else every 15 s.
logged() {
  local log=$1 what=$2 status=0
  shift 2
  show_progress "$log" "$what" &
  local watcher=$!
  "$@" >"$log" 2>&1 </dev/null || status=$?
  kill "$watcher" 2>/dev/null || true
  wait "$watcher" 2>/dev/null || true
  ((status)) || return 0
  tail -n 60 "$log" >&2
  fail "$what failed (the whole log: $log)"
}

# show_progress LOG WHAT: until it is killed. Ninja's and make's output say how far they are.
show_progress() {
  local log=$1 what=$2 pause=15 step text shown= started=$SECONDS passed sleeper
  [[ -t 2 ]] && pause=1
  # Whoever waits for our output must not have to wait for a sleep.
  trap 'kill "$sleeper" 2>/dev/null
        [[ $pause == 15 || ! $shown ]] || printf "\r\033[K" >&2
        exit' TERM
  while true; do
    sleep "$pause" >/dev/null 2>&1 & sleeper=$!
    wait "$sleeper"
    step=$(tail -c 4000 "$log" 2>/dev/null | grep -oE '^\[ *[0-9]+(/[0-9]+|%)\]' |
      tail -n 1) || true
    step=${step//[\[\] ]/}
    passed=$((SECONDS - started))
    text="$what${step:+: ${step/\// of }}, $((passed / 60)) min $((passed % 60)) s"
    shown=1
    if ((pause == 15)); then say "$text"; else printf '\r\033[Kdistgrad: %s' "$text" >&2; fi
  done
}

# parse_environment ARGUMENTS...: takes --torch VERSION or --python PATH off the front. Sets
# torch_version or python, and arguments.
parse_environment() {
  torch_version=$kPinnedTorch python=
  while (($#)); do
    case $1 in
      --torch | --python) (($# > 1)) || fail "$1 needs a value" ;;&
      --torch) torch_version=$2 && shift 2 ;;
      --torch=*) torch_version=${1#*=} && shift ;;
      --python) python=$2 && shift 2 ;;
      --python=*) python=${1#*=} && shift ;;
      --) shift && break ;;
      *) break ;;
    esac
  done
  arguments=("$@")
  [[ $torch_version =~ ^[0-9][0-9A-Za-z.+]*$ ]] ||
    fail "--torch $torch_version: not a version such as $kPinnedTorch"
  if [[ $python ]]; then
    # Absolute, but symbolic links stay: a virtual environment's python is one.
    local found
    found=$(type -P -- "$python") || fail "--python $python: not an executable"
    [[ $found == /* ]] || found=$PWD/$found
    python=$found
  fi
}

# Holds the lock on build/ until unlock, so that two calls do not install or build the same thing at
# the same time.
lock() {
  { mkdir -p "$kBuild" && exec {lock_fd}>"$kBuild/.lock"; } 2>/dev/null ||
    fail "cannot write to $kBuild"
  flock --timeout 2 "$lock_fd" && return
  say "waiting for another set-up in $kBuild"
  flock "$lock_fd"
}
unlock() { exec {lock_fd}>&-; }

# The Debian packages of tools/packages.txt, with apt-get where we may.
need_packages() {
  local stamp=$kBuild/.packages state missing=() wanted installed package tool
  for tool in g++ cmake python3; do
    type -P "$tool" >/dev/null || missing+=("$tool")
  done
  if ! type -P dpkg-query >/dev/null; then
    ((${#missing[@]} == 0)) || fail "not found: ${missing[*]}"
    return 0  # not Debian: CMake names what it does not find
  fi
  state=$(stat -c '%Y %s' /var/lib/dpkg/status 2>/dev/null; cat "$kRoot/tools/packages.txt")
  if ((${#missing[@]} == 0)) && [[ -f $stamp && $(<"$stamp") == "$state" ]]; then return 0; fi
  mapfile -t wanted <"$kRoot/tools/packages.txt"
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${wanted[@]}" \
    2>/dev/null) || true
  for package in "${wanted[@]}"; do
    [[ $'\n'$installed$'\n' == *$'\n'"installed $package"$'\n'* ]] || missing+=("$package")
  done
  if ((${#missing[@]})); then
    if ((EUID)); then
      say "packages are missing; run this once, then try again:"
      printf 'sudo apt-get install -y --no-install-recommends %s\n' "${missing[*]}" >&2
      exit 2
    fi
    say "installing ${missing[*]}"
    logged "$kBuild/apt.log" "apt-get" env DEBIAN_FRONTEND=noninteractive sh -c \
      'apt-get update && apt-get install -y --no-install-recommends "$@"' sh "${missing[@]}"
    state=$(stat -c '%Y %s' /var/lib/dpkg/status; cat "$kRoot/tools/packages.txt")
  fi
  printf '%s\n' "$state" >"$stamp"
}

# make_environment DIR: an empty virtual environment, also where python3 lacks ensurepip (Debian
# without python3-venv).
make_environment() {
  rm -rf "$1"
  python3 -m venv "$1" && return
  rm -rf "$1"
  python3 -m venv --without-pip "$1" && python3 -m pip --version && return
  rm -rf "$1"
  python3 -m virtualenv "$1" && return
  echo "$(type -P python3) can make no virtual environment:" \
    "install python3-venv, or 'pip install virtualenv'"
  return 1
}

# pip_in DIR ARGUMENTS...: the environment's own pip, else python3's.
pip_in() {
  local python=$1/bin/python
  shift
  if [[ -x ${python%/*}/pip ]]; then
    "$python" -m pip --disable-pip-version-check "$@"
  else
    python3 -m pip --disable-pip-version-check --python "$python" "$@"
  fi
}

# The environment with torch: the user's, or build/torch-VERSION. Sets python and tag.
need_torch() {
  if [[ $python ]]; then
    # The name says which python; what torch it has, CMake finds out (and again when it changes).
    tag=python-$(printf %s "$python" | cksum | cut -d' ' -f1)
    [[ -f $kBuild/release-$tag/.configured ]] ||
      "$python" -c 'import importlib.util as u; exit(not u.find_spec("torch"))' </dev/null ||
      fail "$python has no torch"
    return
  fi
  tag=$torch_version
  local dir=$kBuild/torch-$torch_version
  # Made for: the interpreter behind the environment's python, which may have been replaced since.
  python=$dir/bin/python
  if [[ -x $python && -f $dir/.complete &&
        $(<"$dir/.complete") == "$(readlink -f "$python")" ]]; then
    return
  fi
  say "installing torch $torch_version into build/torch-$torch_version (5 GB, about a minute)"
  logged "$kBuild/venv-$torch_version.log" "making a virtual environment" make_environment "$dir"
  logged "$kBuild/pip-$torch_version.log" "pip install torch==$torch_version" \
    pip_in "$dir" install "torch==$torch_version" numpy
  readlink -f "$python" >"$dir/.complete"
}

# configure DIR OPTIONS...: runs CMake if DIR was not configured with these options from this place.
configure() {
  local dir=$1 made_for generator=()
  shift
  made_for=$(printf '%s\n' "$kRoot" "$@" "${CXX-}" "${CXXFLAGS-}" "${LDFLAGS-}")
  if [[ -f $dir/.configured && $(<"$dir/.configured") == "$made_for" ]]; then return; fi
  rm -rf "$dir"  # CMake refuses a cache of another place
  mkdir -p "$dir"
  type -P ninja >/dev/null && generator=(-G Ninja)
  logged "$dir.log" "configuring $dir" cmake -S "$kRoot" -B "$dir" "${generator[@]}" "$@"
  say "building $(basename "$dir") (minutes, the first time)"
  printf '%s\n' "$made_for" >"$dir/.configured"
}

# build DIR TARGET
build() {
  local cache=${CCACHE_DIR:-${XDG_CACHE_HOME:-${HOME-}/.cache}}
  mkdir -p "$cache" 2>/dev/null && [[ -w $cache ]] || export CCACHE_DISABLE=1  # else ccache fails
  if [[ -f $1/build.ninja ]]; then
    logged "$1.log" "building $(basename "$1")" ninja -j "$(nproc)" -C "$1" "$2"
  else
    logged "$1.log" "building $(basename "$1")" \
      cmake --build "$1" --parallel "$(nproc)" --target "$2"
  fi
}

# set_up TARGET: everything up to a Release build of TARGET. Sets python and build_dir.
set_up() {
  lock
  need_packages
  need_torch
  build_dir=$kBuild/release-$tag
  configure "$build_dir" -DCMAKE_BUILD_TYPE=Release "-DDISTGRAD_PYTHON=$python"
  build "$build_dir" "$1"
  unlock
}
