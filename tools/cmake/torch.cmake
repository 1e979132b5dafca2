# The imported target distgrad::torch: libtorch_cpu and libc10 of the torch that DISTGRAD_PYTHON
# has.
#
# Not find_package(Torch): in wheels built with CUDA that demands a CUDA toolkit, and nothing here
# links CUDA. The python is asked where its torch is without importing it, which would take seconds.

if(NOT DISTGRAD_PYTHON)
  find_program(DISTGRAD_PYTHON_FOUND NAMES python3 REQUIRED)
  set(DISTGRAD_PYTHON "${DISTGRAD_PYTHON_FOUND}")
endif()
execute_process(
  COMMAND "${DISTGRAD_PYTHON}" -c
    "import importlib.util as u
torch = u.find_spec('torch')
print(torch.submodule_search_locations[0] if torch else '')"
  OUTPUT_VARIABLE DISTGRAD_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE
  ERROR_VARIABLE python_error RESULT_VARIABLE python_result)
if(NOT python_result EQUAL 0)
  message(FATAL_ERROR
    "DISTGRAD_PYTHON=${DISTGRAD_PYTHON} does not run: ${python_result} ${python_error}")
endif()
if(NOT EXISTS "${DISTGRAD_TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR
    "${DISTGRAD_PYTHON} has no torch: set DISTGRAD_PYTHON to one that has, or DISTGRAD_TORCH=OFF")
endif()
file(STRINGS "${DISTGRAD_TORCH_DIR}/version.py" version_line REGEX "^__version__ *=")
string(REGEX REPLACE ".*['\"]([^'\"]+)['\"].*" "\\1" DISTGRAD_TORCH_VERSION "${version_line}")
set_property(DIRECTORY "${PROJECT_SOURCE_DIR}" APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
  "${DISTGRAD_TORCH_DIR}/version.py")  # another torch in its place
message(STATUS "torch ${DISTGRAD_TORCH_VERSION}: ${DISTGRAD_TORCH_DIR}")

# Where libtorch_cpu's own dependencies are (libcudart, libcupti), should the wheel's RPATH not say
# it.
get_filename_component(site_packages "${DISTGRAD_TORCH_DIR}" DIRECTORY)
file(GLOB cuda_libraries
  "${site_packages}/nvidia/*/lib/libcudart.so*"
  "${site_packages}/nvidia/*/lib/libcupti.so*")
set(torch_rpath "${DISTGRAD_TORCH_DIR}/lib")
foreach(library IN LISTS cuda_libraries)
  get_filename_component(folder "${library}" DIRECTORY)
  list(APPEND torch_rpath "${folder}")
endforeach()
list(REMOVE_DUPLICATES torch_rpath)
set(DISTGRAD_TORCH_RPATH "${torch_rpath}")  # a list
list(JOIN torch_rpath ":" torch_rpath)

add_library(distgrad::torch INTERFACE IMPORTED)
target_include_directories(distgrad::torch INTERFACE
  "${DISTGRAD_TORCH_DIR}/include" "${DISTGRAD_TORCH_DIR}/include/torch/csrc/api/include")
target_compile_definitions(distgrad::torch INTERFACE USE_DISTRIBUTED)
target_link_libraries(distgrad::torch INTERFACE
  "${DISTGRAD_TORCH_DIR}/lib/libtorch_cpu.so" "${DISTGRAD_TORCH_DIR}/lib/libc10.so"
  Threads::Threads)
# The symbols that libtorch_cpu takes from libcudart and libcupti are found at run time. RPATH rather
# than RUNPATH, so that it holds for the libraries' own dependencies too.
target_link_options(distgrad::torch INTERFACE
  "LINKER:--disable-new-dtags" "LINKER:--unresolved-symbols=ignore-in-shared-libs")
if(SKBUILD)
  include(wheel_rpath)
else()
  # The run-time path is a plain link option, and CMake's own handling is off: it would drop paths
  # inside the project, where tools/run keeps its environments, from installed files.
  target_link_options(distgrad::torch INTERFACE "LINKER:-rpath,${torch_rpath}")
  set(CMAKE_SKIP_RPATH ON)
endif()

# Most of the time of these files goes into reading torch's headers; their own speed matters little,
# and full debug information adds half as much again.
set(DISTGRAD_TORCH_COMPILE_OPTIONS "$<$<CONFIG:Release>:-g0>" "$<$<CONFIG:Debug>:-g1>")

# One precompiled header for all of them: a file that takes 8 s without it takes 2 s, for 18 s once.
# What is in it is what most of them include; rarer headers would slow down the rest. To see whether
# every file includes what it uses, build with CMAKE_DISABLE_PRECOMPILE_HEADERS=ON.
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/generated/torch_headers.cpp" CONTENT "")
add_library(distgrad_torch_headers OBJECT "${PROJECT_BINARY_DIR}/generated/torch_headers.cpp")
target_link_libraries(distgrad_torch_headers PRIVATE distgrad_compile_options distgrad::torch)
target_compile_options(distgrad_torch_headers PRIVATE ${DISTGRAD_TORCH_COMPILE_OPTIONS})
target_precompile_headers(distgrad_torch_headers PRIVATE
  <ATen/ATen.h> <torch/csrc/distributed/c10d/ProcessGroup.hpp>)

# Each takes 1.2 GB to compile: no more at a time than fit.
cmake_host_system_information(RESULT memory_mib QUERY TOTAL_PHYSICAL_MEMORY)
math(EXPR torch_jobs "${memory_mib} / 1500 + 1")
set_property(GLOBAL APPEND PROPERTY JOB_POOLS torch=${torch_jobs})
