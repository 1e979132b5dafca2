# The generated header base/version.h.
configure_file("${CMAKE_CURRENT_LIST_DIR}/version.h.in"
  "${PROJECT_BINARY_DIR}/generated/base/version.h" @ONLY)
