#!/usr/bin/env bash
# Builds libkdtree.so, the command, the GPU tests and the GPU bench with nvcc and its host compiler, without CMake.
#   ./build_nvcc.sh [--arch LIST] [--out FOLDER] [--jobs N] [--no-tests]
# LIST: comma-separated targets as CMake writes them: 90a, 120f, 90-virtual (PTX, for parts that are not in the list). Default:
# 80,86,89,90a,100f,120f,90-virtual; 100,120 instead of 100f,120f with an nvcc before 12.9, which has no families.
# CXX: the host compiler (default g++). Needs: nvcc 12.8 or later, and the libraries that tools/setup installs.
set -euo pipefail
cd "$(dirname "$0")"

archs='' out=build/nvcc jobs=$(nproc) tests=1
while [[ $# -gt 0 ]]; do
  case $1 in
    --arch) archs=${2:?--arch needs a list such as 90a,120} && shift 2 ;;
    --out) out=${2:?--out needs a folder} && shift 2 ;;
    --jobs) jobs=${2:?--jobs needs a number} && shift 2 ;;
    --no-tests) tests=0 && shift ;;
    *)
      echo "build_nvcc.sh: unknown option '$1', expected --arch, --out, --jobs or --no-tests" >&2
      exit 2
      ;;
  esac
done
if ! command -v nvcc >/dev/null; then
  echo "build_nvcc.sh: there is no nvcc on the PATH" >&2
  exit 1
fi

version=$(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
if [[ -z $archs ]]; then
  archs=80,86,89,90a,100f,120f,90-virtual
  [[ $(printf '%s\n' 12.9 "$version" | sort -V | head -1) == 12.9 ]] || archs=${archs//f/}
fi
generate=()
IFS=, read -ra list <<<"$archs"
for arch in "${list[@]}"; do
  case $arch in
    *-virtual) generate+=(-gencode "arch=compute_${arch%-virtual},code=compute_${arch%-virtual}") ;;
    *) generate+=(-gencode "arch=compute_$arch,code=sm_$arch") ;;
  esac
done
start=$SECONDS
echo "nvcc $version, $archs, into $out"

common=(-std=c++20 -O3 -DNDEBUG -DKDTREE_CUDA -DFMT_SHARED -DHWY_SHARED_DEFINE -Isrc -Iinclude -I. "-I$out")
toolkit=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
# fmt takes nvcc for a compiler that cannot check formats.
host=("${common[@]}" -isystem "$toolkit/include" -fPIC -fvisibility=hidden -ffp-contract=off)
device=("${common[@]}" "${generate[@]}" "-Xcompiler=-fPIC,-fvisibility=hidden")
mkdir -p "$out"

# compile NAME FILE...: objects in $out/NAME; prints them.
objects() {
  local folder=$out/$1 file
  shift
  for file in "$@"; do echo "$folder/${file//\//_}.o"; done
}
compile() {
  local folder=$out/$1 file
  shift
  mkdir -p "$folder"
  for file in "$@"; do
    case $file in
      *.cu) printf '%s\0' "nvcc ${device[*]} -c $file -o $folder/${file//\//_}.o" ;;
      *) printf '%s\0' "${CXX:-g++} ${host[*]} -c $file -o $folder/${file//\//_}.o" ;;
    esac
  done | xargs -0 -P "$jobs" -I{} bash -c '{}'
}

library=(src/core/*.cc src/tree/*.cc src/attention/*.cc src/attention/cpu/*.cc src/kernels/*.cc src/kernels/*.cu src/capi/*.cc)
tools=(src/io/*.cc src/cases/*.cc src/model/*.cc src/engine/*.cc src/cli/*.cc src/cli/report/*.cc "$out/report_assets.cc")
libraries=(-lfmt -lhwy -ltbb -lpthread)

# What CMake's configure_file does: the page's style and script as string constants.
python3 - "$out/report_assets.cc" <<'PY'
import pathlib, sys
text = pathlib.Path("src/cli/report/assets.cc.in").read_text()
for name, file in (("STYLE", "page.css"), ("SCRIPT", "page.js")):
    text = text.replace(f"@KDTREE_REPORT_{name}@", pathlib.Path("src/cli/report", file).read_text())
pathlib.Path(sys.argv[1]).write_text(text)
PY

compile library "${library[@]}"
mapfile -t library_objects < <(objects library "${library[@]}")
major=$(sed -n 's/#define KDTREE_VERSION_MAJOR //p' include/kdtree/kdtree.h)
nvcc -shared -cudart=static -o "$out/libkdtree.so.$major" "${library_objects[@]}" "${libraries[@]}" \
  -Xlinker=-soname,"libkdtree.so.$major",--version-script=src/capi/libkdtree.map,--exclude-libs,ALL,-z,defs
ln -sf "libkdtree.so.$major" "$out/libkdtree.so"
echo "$out/libkdtree.so: $(stat -Lc %s "$out/libkdtree.so") bytes"

compile tools "${tools[@]}"
mapfile -t tool_objects < <(objects tools "${tools[@]}")
nvcc -cudart=static -o "$out/kdtree" "${library_objects[@]}" "${tool_objects[@]}" "${libraries[@]}"
echo "$out/kdtree"

if ((tests)); then
  sources=(tests/kernels/*_test.cc tests/cases/case_table.cc)
  compile tests "${sources[@]}"
  mapfile -t test_objects < <(objects tests "${sources[@]}")
  mapfile -t tool_parts < <(objects tools src/io/*.cc src/cases/*.cc)
  nvcc -cudart=static -o "$out/kernels_test" "${test_objects[@]}" "${library_objects[@]}" "${tool_parts[@]}" \
    -lgtest_main -lgtest "${libraries[@]}"
  # compute-sanitizer's racecheck needs kernels that arrive at barriers lane by lane (src/kernels/ptx/ptx.cuh).
  flash=src/kernels/verify_attn_flash.cu
  device+=(-DKDTREE_RACECHECK)
  compile racecheck "$flash"
  mapfile -t other_objects < <(printf '%s\n' "${library_objects[@]}" | grep -vF "$(objects library "$flash")")
  nvcc -cudart=static -o "$out/kernels_test_racecheck" "${test_objects[@]}" "$(objects racecheck "$flash")" "${other_objects[@]}" \
    "${tool_parts[@]}" -lgtest_main -lgtest "${libraries[@]}"
  compile bench bench/verify_attn_cuda.cu
  nvcc -cudart=static -o "$out/bench_verify_attn_cuda" "$(objects bench bench/verify_attn_cuda.cu)" -L"$out" -lkdtree \
    -Xlinker=-rpath,"\$ORIGIN"
  echo "$out/kernels_test, $out/kernels_test_racecheck, $out/bench_verify_attn_cuda"
fi
echo "built in $((SECONDS - start)) s"
