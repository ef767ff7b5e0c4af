# Compile options of every target.
add_library(kdtree_options INTERFACE)
target_compile_features(kdtree_options INTERFACE cxx_std_20)
target_include_directories(kdtree_options INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
# No contraction: a row's bits must not depend on where the compiler found a multiply-add to fuse.
target_compile_options(kdtree_options INTERFACE
                       $<$<COMPILE_LANGUAGE:C,CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion
                       -ffp-contract=off -fvisibility=hidden>
                       # CMake 3.25 does not know that nvcc has C++20.
                       $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 -Xcompiler=-Wall,-Wextra,-fvisibility=hidden>)
if(KDTREE_WERROR)
  target_compile_options(kdtree_options INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>
                         $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()
if(KDTREE_SANITIZE)
  target_compile_definitions(kdtree_options INTERFACE KDTREE_SANITIZED)
  target_compile_options(kdtree_options INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${KDTREE_SANITIZE}
                         -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_link_options(kdtree_options INTERFACE -fsanitize=${KDTREE_SANITIZE})
endif()
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)
