# Build options, compiler flags and sanitizer switches shared by every target.
option(ZERO3D_BUILD_TESTS "Build the test suite" ON)
option(ZERO3D_BUILD_BENCH "Build the benchmarks" ON)
option(ZERO3D_BUILD_FUZZERS "Build the libFuzzer targets (clang only)" OFF)
option(ZERO3D_WITH_MPI "Build the MPI communicator" ON)
option(ZERO3D_CUDA "Build the CUDA back end (needs nvcc; compute capability 8.0 or newer)" OFF)
option(ZERO3D_WITH_URING "Build I/O on io_uring where liburing is found" ON)
option(ZERO3D_WERROR "Treat warnings as errors" OFF)
option(ZERO3D_HAZARD_CHECKS "Compile in the stream-order hazard checker and check it by default" OFF)
set(ZERO3D_SANITIZE "" CACHE STRING "Sanitizers to build with: address,undefined or thread")

if(ZERO3D_CUDA)
  find_program(CMAKE_CUDA_COMPILER nvcc PATHS /usr/local/cuda/bin)
  if(NOT CMAKE_CUDA_COMPILER)
    message(FATAL_ERROR "ZERO3D_CUDA needs the CUDA Toolkit: no nvcc in PATH or /usr/local/cuda/bin; name it with -DCMAKE_CUDA_COMPILER")
  endif()
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90 CACHE STRING "Architectures: 90 is sm_90 and its PTX; the preset cuda-release has them all")
  endif()
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # can be replaced by an emulator of it
  enable_language(CUDA)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)  # CMake 3.25 does not know that nvcc has it
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_program(ZERO3D_CCACHE ccache)
if(ZERO3D_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${ZERO3D_CCACHE}")
endif()
# A precompiled header differs from folder to folder, and so would every object in the cache. -DZERO3D_CCACHE=OFF does without one.
set(precompile ON)
if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache" OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(precompile OFF)
endif()
option(ZERO3D_PRECOMPILE "Precompile headers that most sources include (default: with g++, unless ccache is used)" ${precompile})

# One interface target carries the flags, so that they never leak to users of the installed package.
add_library(zero3d_flags INTERFACE)
set(warnings -Wall -Wextra -Wno-missing-field-initializers -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual)
set(flags
  -fPIC  # everywhere, so that one precompiled header suits objects of libraries and programs
  ${warnings}
  -ffp-contract=off  # the numerics contract: fused multiply-add only where written
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>  # false alarms in std::string of g++ 12 (GCC PR 105651)
  $<$<BOOL:${ZERO3D_WERROR}>:-Werror>)
if(ZERO3D_CUDA)
  # Sources of nvcc: its host compiler has no -Wpedantic, which the code that nvcc makes does not stand.
  string(REPLACE ";" "," host "-fPIC;${warnings}")
  string(REPLACE ",-Wpedantic" "" host "${host}")
  target_compile_options(zero3d_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler=${host} --fmad=false --expt-relaxed-constexpr -lineinfo>"
    "$<$<AND:$<BOOL:${ZERO3D_WERROR}>,$<COMPILE_LANGUAGE:CUDA>>:SHELL:-Werror all-warnings>")
  list(TRANSFORM flags REPLACE "^(.+)$" "$<$<COMPILE_LANGUAGE:CXX>:\\1>")
  target_link_options(zero3d_flags INTERFACE LINKER:--enable-new-dtags)  # LD_LIBRARY_PATH wins over the path of the build
endif()
target_compile_options(zero3d_flags INTERFACE ${flags})
if(ZERO3D_SANITIZE)
  string(REPLACE ";" "," sanitizers "${ZERO3D_SANITIZE}")
  target_compile_options(zero3d_flags INTERFACE -fsanitize=${sanitizers} -fno-omit-frame-pointer -g1)
  if("undefined" IN_LIST ZERO3D_SANITIZE)
    # Checks of every pointer that is followed: more than half of the time to compile. AddressSanitizer finds what of it does harm, but for
    # numbers read from where they are not aligned: targets that make such of bytes from outside have the property ZERO3D_POINTER_CHECKS.
    target_compile_options(zero3d_flags INTERFACE
      $<$<NOT:$<BOOL:$<TARGET_PROPERTY:ZERO3D_POINTER_CHECKS>>>:-fno-sanitize=null,alignment,object-size,vptr,nonnull-attribute,returns-nonnull-attribute>)
  endif()
  target_link_options(zero3d_flags INTERFACE -fsanitize=${sanitizers})
endif()
if(ZERO3D_BUILD_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "ZERO3D_BUILD_FUZZERS needs clang: libFuzzer is part of it; configure with -DCMAKE_CXX_COMPILER=clang++")
  endif()
  target_compile_options(zero3d_flags INTERFACE -fsanitize=fuzzer-no-link -fno-sanitize-recover=all)
endif()
if(ZERO3D_HAZARD_CHECKS)
  target_compile_definitions(zero3d_flags INTERFACE ZERO3D_HAZARD_CHECKS=1)
endif()

# zero3d_precompile(NAME HEADERS ... [LIBRARIES ...]): headers parsed once for all targets that use NAME; each one more costs every source
# time to load. Sources include what they use all the same: builds with ccache have no precompiled header.
function(zero3d_precompile name)
  cmake_parse_arguments(ARG "" "" "HEADERS;LIBRARIES" ${ARGN})
  if(ZERO3D_PRECOMPILE)
    add_library(${name} OBJECT EXCLUDE_FROM_ALL "${CMAKE_SOURCE_DIR}/cmake/empty.cpp")
    target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} zero3d_flags)
    target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
  endif()
endfunction()
# Only for targets that compile with the flags and definitions of NAME and no others.
function(zero3d_use_precompiled target name)
  if(ZERO3D_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM ${name})
  endif()
endfunction()

set(ZERO3D_STANDARD_HEADERS
  <algorithm> <array> <cmath> <condition_variable> <cstddef> <cstdint> <cstdio> <cstring> <exception> <functional> <limits> <map>
  <memory> <mutex> <optional> <span> <string> <string_view> <utility> <vector>)
zero3d_precompile(zero3d_precompiled HEADERS ${ZERO3D_STANDARD_HEADERS})
if(ZERO3D_PRECOMPILE)
  # g++ 12 no longer knows these for the library's own when they come from a precompiled header: false alarms in std::string.
  target_compile_options(zero3d_flags INTERFACE
    $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread>)
endif()
