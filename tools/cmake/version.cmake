# The generated header base/version.h. What pip installs goes where the building python may not be; it
# has its environment's.
set(DISTGRAD_BUILD_PYTHON "${DISTGRAD_PYTHON}")
if(SKBUILD)
  set(DISTGRAD_BUILD_PYTHON "")
endif()
configure_file("${CMAKE_CURRENT_LIST_DIR}/version.h.in"
  "${PROJECT_BINARY_DIR}/generated/base/version.h" @ONLY)
