# libdistgrad-nccl.so, the backend nccl. Its headers, CUDA's and NCCL's, are looked for in the
# python's own nvidia/ folders (the wheels that torch's wheel needs, so of the right version), then
# in a CUDA toolkit. Where they are, `all` builds it, so that it compiles everywhere; the programs
# have it only where a GPU's driver is, as it takes as long as half of the other ranks' code.
# DISTGRAD_NCCL=ON: the programs have it, and missing headers are an error. OFF: never.
set(DISTGRAD_NCCL AUTO CACHE STRING "The backend nccl: AUTO (where a GPU's driver is), ON, OFF")
set_property(CACHE DISTGRAD_NCCL PROPERTY STRINGS AUTO ON OFF)
set(DISTGRAD_CUDA_HINTS "" CACHE STRING "Folders that are looked at before others for CUDA's and NCCL's headers")

# nvidia/cu13/include (wheels of CUDA 13) or nvidia/cuda_runtime/include and its neighbours (before).
file(GLOB wheel_includes "${site_packages}/nvidia/*/include")
file(GLOB toolkit_includes "/usr/local/cuda/include" "/usr/local/cuda-*/include")
set(nccl_header_folders ${DISTGRAD_CUDA_HINTS} ${wheel_includes} "$ENV{CUDA_HOME}/include" ${toolkit_includes}
  "/usr/local/include" "/usr/include")

# The first folder that has the header; empty where none has.
function(distgrad_find_header variable header)
  foreach(folder IN LISTS nccl_header_folders)
    if(EXISTS "${folder}/${header}")
      set(${variable} "${folder}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${variable} "" PARENT_SCOPE)
endfunction()

function(distgrad_nccl_backend)
  set(folders "")
  set(missing "")
  # What ATen/cuda's headers and ProcessGroupNCCL.hpp include.
  foreach(header cuda_runtime_api.h cublas_v2.h cublasLt.h cusparse.h cusolverDn.h nccl.h)
    distgrad_find_header(folder ${header})
    if(folder)
      list(APPEND folders "${folder}")
    else()
      list(APPEND missing ${header})
    endif()
  endforeach()
  if(NOT EXISTS "${DISTGRAD_TORCH_DIR}/lib/libtorch_cuda.so")
    list(APPEND missing "libtorch_cuda.so (this torch was built without CUDA)")
  endif()
  list(REMOVE_DUPLICATES folders)
  if(DISTGRAD_NCCL STREQUAL "OFF")
    message(STATUS "Backend nccl: left out, as DISTGRAD_NCCL is OFF")
    return()
  endif()
  if(missing)
    list(JOIN missing ", " missing)
    if(DISTGRAD_NCCL STREQUAL "ON")
      message(FATAL_ERROR "Backend nccl: not found: ${missing}")
    endif()
    message(STATUS "Backend nccl: left out; not found: ${missing}")
    return()
  endif()
  list(JOIN folders ", " shown)
  message(STATUS "Backend nccl: headers of ${shown}")
  add_library(distgrad-nccl MODULE nccl/nccl.cpp)
  distgrad_backend_module(distgrad-nccl)
  target_include_directories(distgrad-nccl SYSTEM PRIVATE ${folders})
  target_link_libraries(distgrad-nccl PRIVATE
    "${DISTGRAD_TORCH_DIR}/lib/libtorch_cuda.so" "${DISTGRAD_TORCH_DIR}/lib/libc10_cuda.so")
  add_dependencies(gpu_check distgrad-nccl)
  if(DISTGRAD_NCCL STREQUAL "ON" OR EXISTS /proc/driver/nvidia/version OR EXISTS /dev/nvidiactl)
    add_dependencies(programs distgrad-nccl)
  endif()
  install(TARGETS distgrad-nccl LIBRARY DESTINATION "${CMAKE_INSTALL_BINDIR}" OPTIONAL)
endfunction()

# A backend in a shared library, beside distgrad-rank.
function(distgrad_backend_module target)
  target_link_libraries(${target} PRIVATE distgrad_compile_options distgrad::torch)
  target_compile_options(${target} PRIVATE ${DISTGRAD_TORCH_COMPILE_OPTIONS})
  set_target_properties(${target} PROPERTIES JOB_POOL_COMPILE torch
    LIBRARY_OUTPUT_DIRECTORY "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}"
    CXX_VISIBILITY_PRESET default)
endfunction()
