# zero3d_layer(NAME SOURCES ... HEADERS ... [DEPENDS layers] [PRIVATE libraries])
#   One static library per layer, with an include root of its own: <build>/include/<layer>/zero3d/<layer> is a link to
#   <source>/<layer>, so that the compiler refuses an include of a layer that the target does not link.
# zero3d_compile_together(TARGET sources...)
#   Compiles sources of the target as one: for those that all use a library whose headers are slow to compile.
# zero3d_test(NAME SOURCES ... LIBRARIES ... [SANITIZE address|thread ...]) adds a GoogleTest executable registered with CTest.
#   Builds with a sanitizer that it names have it in the target sanitized_tests and under the label "sanitized".
# zero3d_cuda_test(NAME SOURCES ... LIBRARIES ...) the same for a test that needs a GPU, or an emulator of CUDA in LD_LIBRARY_PATH: label
#   "cuda", skipped where there is neither.
# zero3d_shared_library() bundles all layers into libzero3d.so, the library that is installed.
# zero3d_header_checks() compiles each public header alone.
include_guard(GLOBAL)

function(zero3d_include_root name)
  set(root "${CMAKE_BINARY_DIR}/include/${name}/zero3d")
  file(MAKE_DIRECTORY "${root}")
  file(CREATE_LINK "${CMAKE_SOURCE_DIR}/${name}" "${root}/${name}" SYMBOLIC)
endfunction()

function(zero3d_layer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;HEADERS;DEPENDS;PRIVATE" ${ARGN})
  zero3d_include_root(${name})
  list(TRANSFORM ARG_DEPENDS PREPEND zero3d_)
  # Compiled once as objects: archived for the tests and tools of the tree, and linked into the shared library.
  add_library(zero3d_${name}_objects OBJECT ${ARG_SOURCES} ${ARG_HEADERS})
  target_include_directories(zero3d_${name}_objects PRIVATE "${CMAKE_BINARY_DIR}/include/${name}")
  target_link_libraries(zero3d_${name}_objects PRIVATE ${ARG_DEPENDS} ${ARG_PRIVATE} zero3d_flags)
  zero3d_use_precompiled(zero3d_${name}_objects zero3d_precompiled)
  add_library(zero3d_${name} STATIC $<TARGET_OBJECTS:zero3d_${name}_objects>)
  target_include_directories(zero3d_${name} PUBLIC "${CMAKE_BINARY_DIR}/include/${name}")
  target_link_libraries(zero3d_${name} PUBLIC ${ARG_DEPENDS} PRIVATE ${ARG_PRIVATE} zero3d_flags)
  set_property(GLOBAL APPEND PROPERTY ZERO3D_LAYERS ${name})
  set_property(GLOBAL APPEND PROPERTY ZERO3D_PRIVATE_LIBRARIES ${ARG_PRIVATE})
  set_property(TARGET zero3d_${name} PROPERTY ZERO3D_PUBLIC_HEADERS "${ARG_HEADERS}")
endfunction()

function(zero3d_compile_together target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  set_source_files_properties(${ARGN} PROPERTIES UNITY_GROUP together)
endfunction()

function(zero3d_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LIBRARIES;SANITIZE" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} zero3d_test_support zero3d_flags zero3d_test_flags GTest::gtest_main)
  if(zero3d_engine_test_support IN_LIST ARG_LIBRARIES)
    zero3d_use_precompiled(${name} zero3d_engine_test_precompiled)
  else()
    zero3d_use_precompiled(${name} zero3d_test_precompiled)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(ZERO3D_SANITIZE)  # several times slower, on machines that are slow already
    math(EXPR ARG_TIMEOUT "5 * ${ARG_TIMEOUT}")
  endif()
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
  # Tests run with the stream-order hazard checker and the checked communicator on, in every preset.
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "ZERO3D_CHECK=1;OMP_NUM_THREADS=1")
  foreach(sanitizer ${ARG_SANITIZE})
    if(sanitizer IN_LIST ZERO3D_SANITIZE)
      add_dependencies(sanitized_tests ${name})
      set_tests_properties(${name} PROPERTIES LABELS sanitized)
    endif()
  endforeach()
endfunction()

function(zero3d_cuda_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES} "${CMAKE_SOURCE_DIR}/tests/support/cuda_main.cpp")
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} zero3d_test_support zero3d_flags GTest::gtest CUDA::cudart)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS cuda SKIP_RETURN_CODE 77
    ENVIRONMENT "ZERO3D_CHECK=1;OMP_NUM_THREADS=1")
  add_dependencies(cuda_tests ${name})
endfunction()

function(zero3d_shared_library)
  get_property(layers GLOBAL PROPERTY ZERO3D_LAYERS)
  get_property(libraries GLOBAL PROPERTY ZERO3D_PRIVATE_LIBRARIES)
  list(REMOVE_DUPLICATES libraries)
  add_library(zero3d SHARED)
  add_library(zero3d::zero3d ALIAS zero3d)
  target_link_libraries(zero3d PRIVATE ${libraries} zero3d_flags)
  foreach(layer ${layers})
    target_sources(zero3d PRIVATE $<TARGET_OBJECTS:zero3d_${layer}_objects>)
    target_include_directories(zero3d INTERFACE "$<BUILD_INTERFACE:${CMAKE_BINARY_DIR}/include/${layer}>")
  endforeach()
  target_include_directories(zero3d INTERFACE "$<INSTALL_INTERFACE:include>")
  target_compile_features(zero3d INTERFACE cxx_std_20)
  set_target_properties(zero3d PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
endfunction()

# Compiles each public header alone, twice in one source, with only what its layer links: a header includes what it uses, has its
# guard, and asks for no layer to its right.
function(zero3d_header_checks)
  get_property(layers GLOBAL PROPERTY ZERO3D_LAYERS)
  foreach(layer ${layers})
    get_property(headers TARGET zero3d_${layer} PROPERTY ZERO3D_PUBLIC_HEADERS)
    set(sources)
    foreach(header ${headers})
      string(REGEX REPLACE "[/.]" "_" name "${header}")
      set(source "${CMAKE_BINARY_DIR}/header_checks/${layer}/${name}.cpp")
      set(line "#include \"zero3d/${layer}/${header}\"\n")
      file(CONFIGURE OUTPUT "${source}" CONTENT "${line}${line}" @ONLY)
      list(APPEND sources "${source}")
    endforeach()
    add_library(zero3d_${layer}_header_checks OBJECT ${sources})
    target_link_libraries(zero3d_${layer}_header_checks PRIVATE zero3d_${layer} zero3d_flags)
  endforeach()
endfunction()
