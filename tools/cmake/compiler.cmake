# Language, warnings, sanitizers and the compiler cache, said once.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# Libraries that loop over tensors have -O2 (targets.cmake: FAST). It takes a quarter longer to
# compile; what it would gain for the rest has not been measured.
set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG")
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Relative paths, so that another checkout of the same sources hits; the sloppiness that its manual
  # asks for with precompiled headers.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros "${CCACHE_PROGRAM}")
endif()

# Every target of ours links this one; torch's headers are system headers to it. Where sources are
# compiled as one (DISTGRAD_JOINED), a local name may be another source's.
add_library(distgrad_compile_options INTERFACE)
# The compiler collects its garbage seldom: a twentieth of the time, for up to half a GB.
target_compile_options(distgrad_compile_options INTERFACE
  $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-expand=200>
  $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=524288>)
# All code can be part of libdistgrad_rank.so; a precompiled header serves programs, too, only if
# they are compiled alike.
target_compile_options(distgrad_compile_options INTERFACE -fPIC -fno-semantic-interposition)
target_compile_options(distgrad_compile_options INTERFACE
  -Wall -Wextra $<$<NOT:$<BOOL:$<TARGET_PROPERTY:UNITY_BUILD>>>:-Wshadow> -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-align -Wunused -Wformat=2
  -Wimplicit-fallthrough -Wextra-semi
  # With -O1, gcc 12 takes a vector that a lambda fills for one that is not on the heap.
  $<$<CONFIG:Release>:-Wno-free-nonheap-object>
  -Werror=switch  # whoever adds a collective or a verdict learns where it counts
  $<$<BOOL:${DISTGRAD_WERROR}>:-Werror>)
target_include_directories(distgrad_compile_options INTERFACE
  "${PROJECT_SOURCE_DIR}/src" "${PROJECT_BINARY_DIR}/generated")

if(DISTGRAD_SANITIZE)
  if(DISTGRAD_TORCH)
    message(FATAL_ERROR "DISTGRAD_SANITIZE needs DISTGRAD_TORCH=OFF: torch is not instrumented")
  endif()
  # gcc's manual: with sanitizers this warning has false positives (std::regex's, for one).
  add_compile_options(-Wno-maybe-uninitialized
    -fsanitize=${DISTGRAD_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${DISTGRAD_SANITIZE})
endif()
