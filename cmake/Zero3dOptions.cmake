# Build options, compiler flags and sanitizer switches shared by every target.
option(ZERO3D_BUILD_TESTS "Build the test suite" ON)
option(ZERO3D_BUILD_BENCH "Build the benchmarks" ON)
option(ZERO3D_BUILD_FUZZERS "Build the libFuzzer targets (clang only)" OFF)
option(ZERO3D_WITH_MPI "Build the MPI communicator" ON)
option(ZERO3D_WERROR "Treat warnings as errors" OFF)
option(ZERO3D_HAZARD_CHECKS "Compile in the stream-order hazard checker and check it by default" OFF)
set(ZERO3D_SANITIZE "" CACHE STRING "Sanitizers to build with: address,undefined or thread")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
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

# One interface target carries the flags, so that they never leak to users of the installed package.
add_library(zero3d_flags INTERFACE)
target_compile_options(zero3d_flags INTERFACE
  -Wall -Wextra -Wno-missing-field-initializers -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  -ffp-contract=off  # the numerics contract: fused multiply-add only where written
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>  # false alarms in std::string of g++ 12 (GCC PR 105651)
  $<$<BOOL:${ZERO3D_WERROR}>:-Werror>)
if(ZERO3D_SANITIZE)
  string(REPLACE ";" "," sanitizers "${ZERO3D_SANITIZE}")
  target_compile_options(zero3d_flags INTERFACE -fsanitize=${sanitizers} -fno-omit-frame-pointer -g1)
  target_link_options(zero3d_flags INTERFACE -fsanitize=${sanitizers})
endif()
if(ZERO3D_HAZARD_CHECKS)
  target_compile_definitions(zero3d_flags INTERFACE ZERO3D_HAZARD_CHECKS=1)
endif()
