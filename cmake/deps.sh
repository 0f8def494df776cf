#!/bin/sh
# Installs missing build dependencies with apt, as root or through sudo; elsewhere lists the packages for dnf, brew and
# vcpkg. It searches like CMake: CMAKE_PREFIX_PATH, CXX and toolchain files.
#   sh cmake/deps.sh          for a build and its tests
#   sh cmake/deps.sh --ci     also for .ci/run (Debian 12)
#   sh cmake/deps.sh --list   prints the package names per manager
set -eu

packages='Eigen3 doctest fmt nlohmann_json CLI11' # names of find_package()
tools='c++ cmake ninja utf8proc pcre2'
ci_tools='git pkg-config clang++-16 clang-rt-16 clang-format-16 doxygen python3-venv mpicxx mpirun'
table='
what             apt                 dnf            brew           vcpkg
c++              g++                 gcc-c++        -              -
cmake            cmake               cmake          cmake          -
ninja            ninja-build         ninja-build    ninja          -
Eigen3           libeigen3-dev       eigen3-devel   eigen          eigen3
doctest          doctest-dev         doctest-devel  doctest        doctest
fmt              libfmt-dev          fmt-devel      fmt            fmt
nlohmann_json    nlohmann-json3-dev  json-devel     nlohmann-json  nlohmann-json
CLI11            libcli11-dev        cli11-devel    cli11          cli11
utf8proc         libutf8proc-dev     utf8proc-devel utf8proc       utf8proc
pcre2            libpcre2-dev        pcre2-devel    pcre2          pcre2
git              git                 -              -              -
pkg-config       pkg-config          -              -              -
clang++-16       clang-16            -              -              -
clang-rt-16      libclang-rt-16-dev  -              -              -
clang-format-16  clang-format-16     -              -              -
doxygen          doxygen             -              -              -
python3-venv     python3-venv        -              -              -
mpicxx           libopenmpi-dev      -              -              -
mpirun           openmpi-bin         -              -              -'

fail() {
  printf '[deps] %s\n' "$*" >&2
  exit 1
}

names() {
  manager=$1
  shift
  printf '%s\n' "$table" | awk -v manager="$manager" -v wanted=" $* " '
    $1 == "what" { for (i = 2; i <= NF; ++i) if ($i == manager) column = i }
    $1 != "what" && column && index(wanted, " " $1 " ") && $column != "-" { printf "%s%s", gap, $column; gap = " " }'
}

list() {
  for manager in apt dnf brew vcpkg; do
    # shellcheck disable=SC2086 # lists of words
    printf '%-6s install %s\n' "$manager" "$(names $manager $tools $packages)"
  done
  # shellcheck disable=SC2086
  printf '%-6s install %s   (--ci)\n' apt "$(names apt $ci_tools)"
}

missing_tools() {
  for tool in $tools; do
    if [ "$tool" = clang-rt-16 ]; then # no program: the runtime of the sanitizers
      echo 'int main() {}' | clang++-16 -fsanitize=address,undefined -x c++ - -o /dev/null 2>/dev/null && continue
    fi
    library=$(case $tool in utf8proc) echo utf8proc ;; pcre2) echo pcre2-8 ;; esac)
    if [ -n "$library" ]; then # no CMake package
      printf '#define PCRE2_CODE_UNIT_WIDTH 8\n#include <%s.h>\nint main() {}' "$tool" |
        ${CXX:-c++} -x c++ - "-l$library" -o /dev/null 2>/dev/null && continue
    fi
    if [ "$tool" = python3-venv ]; then # part of python3
      python3 -c 'import ensurepip, venv' 2>/dev/null && continue
    fi
    for candidate in $(case $tool in c++) echo "${CXX:-c++ g++ clang++}" ;; *) echo "$tool" ;; esac); do
      command -v "$candidate" >/dev/null && continue 2
    done
    printf '%s ' "$tool"
  done
}

missing_packages() { # asks CMake, in a probe project
  probe=$(mktemp -d)
  trap 'rm -rf "$probe"' EXIT
  cat >"$probe/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(probe LANGUAGES CXX)
separate_arguments(PACKAGES)
foreach(package IN LISTS PACKAGES)
  find_package(${package} QUIET CONFIG)
  if(NOT ${package}_FOUND OR (package STREQUAL Eigen3 AND Eigen3_VERSION VERSION_LESS 3.4))
    string(APPEND missing "${package} ")
  endif()
endforeach()
file(WRITE ${CMAKE_BINARY_DIR}/missing "${missing}")
END
  cmake -G Ninja -S "$probe" -B "$probe/build" "-DPACKAGES=$packages" >"$probe/log" 2>&1 || {
    cat "$probe/log" >&2
    fail "the C++ compiler does not work with CMake: see above."
  }
  cat "$probe/build/missing"
}

install() { # install <what>...
  if ! command -v apt-get >/dev/null; then
    list >&2
    fail "missing: $*. No apt here: install them with your package manager by the names above and run this again."
  fi
  wanted=$(names apt "$@")
  if [ "$(id -u)" = 0 ]; then
    sudo=''
  elif command -v sudo >/dev/null; then
    sudo=sudo
  else
    fail "missing: $*, and there is neither root nor sudo here. Run as root: apt-get install $wanted"
  fi
  echo "[deps] installing $wanted"
  # shellcheck disable=SC2086
  { $sudo apt-get update -qq &&
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $wanted; } ||
    fail "apt-get could not install $wanted: see above."
}

ensure() { # ensure <function that prints missing items>
  gone=$("$1")
  [ -n "$gone" ] || return 0
  # shellcheck disable=SC2086
  install $gone
  gone=$("$1")
  [ -z "$gone" ] || fail "installed, but still not found: $gone. Is an older copy first in PATH or CMAKE_PREFIX_PATH?"
}

case ${1:-} in
  '') ;;
  --ci) tools="$tools $ci_tools" ;;
  --list) list && exit ;;
  *) fail "unknown option $1. Options: --ci, --list." ;;
esac

ensure missing_tools
version=$(cmake --version | sed -n '1s/.*version \([0-9]*\.[0-9]*\).*/\1/p')
if [ "${version%.*}" -lt 3 ] || { [ "${version%.*}" -eq 3 ] && [ "${version#*.}" -lt 25 ]; }; then
  fail "cmake is $version, 3.25 or newer is needed. Get it from https://cmake.org/download, https://apt.kitware.com" \
    "or by 'pip install cmake', and put it first in PATH."
fi
ensure missing_packages
echo "[deps] all there: $tools $packages"
