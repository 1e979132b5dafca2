# distgrad_library(NAME [TORCH | FAST] SOURCES a.cpp ... [APART b.cpp ...] [DEPS target ...])
#   The static library distgrad_NAME. Headers are included from the root of src:
#   #include "base/error.h". APART: those of the sources whose names clash with others' when they
#   are compiled as one (DISTGRAD_JOINED); better to rename what is local to one of them. FAST:
#   loops over tensors' elements, so that Release builds compile it with -O2.
# distgrad_executable(NAME [TORCH] SOURCES main.cpp ... [DEPS target ...])
#   The executable NAME in the build tree's bin/, installed. The target `programs` builds all of
#   them.
# distgrad_test(NAME [TORCH] SOURCES x_test.cpp ... [DEPS target ...] [TIMEOUT seconds]
#               [SANITIZED] [LABELS label ...])
#   The GoogleTest executable NAME in the build tree's tests/; nothing is made when BUILD_TESTING is
#   off. Tests see the macros DISTGRAD_SOURCE_DIR, DISTGRAD_BIN_DIR and DISTGRAD_PYTHON (strings).
#   SANITIZED: it reads foreign bytes, or handles memory, processes or threads itself, so that
#   `tools/test --asan` runs it: the target `sanitized`, and the label.
# distgrad_benchmark(NAME [TORCH] SOURCES x_bench.cpp ... [DEPS target ...])
#   The Google Benchmark executable NAME in the build tree's bench/, not part of `all`: the target
#   `benchmarks`.
#
# TORCH: the sources include torch headers. Such sources must not see Debian's {fmt}, as torch's
# headers bring another version of it; all other targets link fmt. So no header that both sides
# include may include fmt.

add_custom_target(programs)
add_custom_target(benchmarks)
add_custom_target(sanitized)
add_custom_target(gpu_check)  # what tools/gpu_check runs

# Every source without torch reads much of the same headers: they are compiled once for all. The
# preset dev does without, so that each source is seen to include what it uses. Tests have GoogleTest's
# besides, and are not optimised: they take longer to compile than to run.
set(DISTGRAD_COMMON_HEADERS <algorithm> <array> <charconv> <cmath> <cstdint> <cstdlib> <cstring>
  <filesystem> <fstream> <functional> <map> <memory> <numeric> <optional> <ranges> <set> <span>
  <sstream> <stdexcept> <string> <string_view> <tuple> <utility> <variant> <vector>
  <fmt/format.h> <fmt/ranges.h> <nlohmann/json.hpp>)
function(distgrad_precompiled target)
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/generated/no_source.cpp" CONTENT "")
  add_library(${target} OBJECT EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/generated/no_source.cpp")
  target_link_libraries(${target} PRIVATE distgrad_compile_options fmt::fmt
    nlohmann_json::nlohmann_json)
  target_precompile_headers(${target} PRIVATE ${DISTGRAD_COMMON_HEADERS} ${ARGN})
endfunction()
if(DISTGRAD_JOINED)
  distgrad_precompiled(distgrad_headers)
endif()

function(distgrad_configure_target target visibility torch)
  target_link_libraries(${target} ${visibility} distgrad_compile_options ${ARGN})
  if(torch)
    target_link_libraries(${target} ${visibility} distgrad::torch)
    target_compile_options(${target} PRIVATE ${DISTGRAD_TORCH_COMPILE_OPTIONS})
    target_precompile_headers(${target} REUSE_FROM distgrad_torch_headers)
    set_target_properties(${target} PROPERTIES JOB_POOL_COMPILE torch)
  else()
    target_link_libraries(${target} PRIVATE fmt::fmt)
    if(DISTGRAD_JOINED AND precompiled)
      target_precompile_headers(${target} REUSE_FROM ${precompiled})
    endif()
  endif()
endfunction()

# Its sources are compiled as one.
function(distgrad_join target)
  if(DISTGRAD_JOINED)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  endif()
endfunction()

function(distgrad_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH;FAST" "" "SOURCES;APART;DEPS")
  add_library(distgrad_${name} STATIC ${arg_SOURCES})
  set(precompiled distgrad_headers)
  if(arg_FAST)
    set(precompiled "")
  endif()
  distgrad_configure_target(distgrad_${name} PUBLIC ${arg_TORCH} ${arg_DEPS})
  if(arg_FAST)
    target_compile_options(distgrad_${name} PRIVATE "$<$<CONFIG:Release>:-O2>")
  endif()
  distgrad_join(distgrad_${name})
  set_source_files_properties(${arg_APART} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

function(distgrad_executable name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH" "" "SOURCES;DEPS")
  add_executable(${name} ${arg_SOURCES})
  set(precompiled "")
  distgrad_configure_target(${name} PRIVATE ${arg_TORCH} ${arg_DEPS})
  add_dependencies(programs ${name})
  if(NOT SKBUILD)  # installation.cmake has them
    install(TARGETS ${name} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  endif()
endfunction()

if(BUILD_TESTING)
  find_package(GTest REQUIRED)
  include(GoogleTest)
  add_library(distgrad_test_main STATIC "${PROJECT_SOURCE_DIR}/tools/cmake/test_main.cpp")
  target_link_libraries(distgrad_test_main
    PUBLIC distgrad_compile_options GTest::gmock GTest::gtest)
  if(DISTGRAD_JOINED)
    distgrad_precompiled(distgrad_test_headers <gmock/gmock.h> <gtest/gtest.h>)
    target_link_libraries(distgrad_test_headers PRIVATE GTest::gmock GTest::gtest)
    target_compile_options(distgrad_test_headers PRIVATE -O0)
  endif()
endif()

function(distgrad_test name)
  if(NOT BUILD_TESTING)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH;SANITIZED" "TIMEOUT" "SOURCES;DEPS;LABELS")
  if(NOT arg_TIMEOUT)  # A busy machine takes ten times as long.
    set(arg_TIMEOUT 300)
  endif()
  add_executable(${name} ${arg_SOURCES})
  set(precompiled distgrad_test_headers)
  distgrad_configure_target(${name} PRIVATE ${arg_TORCH} ${arg_DEPS} distgrad_test_main)
  distgrad_join(${name})
  if(DISTGRAD_JOINED AND NOT arg_TORCH)
    target_compile_options(${name} PRIVATE -O0)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  target_compile_definitions(${name} PRIVATE
    "DISTGRAD_SOURCE_DIR=\"${PROJECT_SOURCE_DIR}\""
    "DISTGRAD_BIN_DIR=\"${CMAKE_RUNTIME_OUTPUT_DIRECTORY}\""
    "DISTGRAD_PYTHON=\"${DISTGRAD_TEST_PYTHON}\"")
  if(arg_SANITIZED)
    list(APPEND arg_LABELS sanitized)
    add_dependencies(sanitized ${name})
  endif()
  if(arg_TORCH)
    # One entry for the whole executable: each start loads libtorch.
    add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "torch;${arg_LABELS}")
  else()
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
      TEST_PREFIX "${name}." PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}")
  endif()
endfunction()

function(distgrad_benchmark name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH" "" "SOURCES;DEPS")
  find_package(benchmark REQUIRED)
  add_executable(${name} EXCLUDE_FROM_ALL ${arg_SOURCES})
  set(precompiled "")
  distgrad_configure_target(${name} PRIVATE ${arg_TORCH} ${arg_DEPS} benchmark::benchmark)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bench")
  target_compile_definitions(${name} PRIVATE
    "DISTGRAD_SOURCE_DIR=\"${PROJECT_SOURCE_DIR}\""
    "DISTGRAD_BIN_DIR=\"${CMAKE_RUNTIME_OUTPUT_DIRECTORY}\"")
  add_dependencies(benchmarks ${name})
endfunction()
