# cmake --install: bin/distgrad with distgrad-rank beside it (distgrad_executable installs both),
# share/distgrad for what they read. The build tree has links in the same places, so that
# ../share/distgrad, seen from the executable, holds in both.
#
# pip install: the launcher in the environment's bin; the rest in the package distgrad of its
# site-packages, from where torch is always in the same direction. src/pool/installation.h knows both.
set(data_dir "${CMAKE_INSTALL_DATADIR}/distgrad")
file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/share/distgrad")
set(data_links "${PROJECT_BINARY_DIR}/share/distgrad")
file(CREATE_LINK "${PROJECT_SOURCE_DIR}/src/python" "${data_links}/python" SYMBOLIC)
file(CREATE_LINK "${PROJECT_SOURCE_DIR}/scenarios" "${data_links}/scenarios" SYMBOLIC)
install(DIRECTORY src/python/distgrad DESTINATION "${data_dir}/python"
  FILES_MATCHING PATTERN "*.py" PATTERN __pycache__ EXCLUDE)
install(DIRECTORY scenarios DESTINATION "${data_dir}")
install(DIRECTORY docs/ DESTINATION "${CMAKE_INSTALL_DOCDIR}")

install(FILES "${DISTGRAD_COMPLETION}"
  DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")

if(SKBUILD)
  set(package "${SKBUILD_PLATLIB_DIR}/distgrad")
  install(TARGETS distgrad-launcher RUNTIME DESTINATION "${SKBUILD_SCRIPTS_DIR}" COMPONENT wheel)
  install(TARGETS distgrad distgrad-rank distgrad_rank
    RUNTIME DESTINATION "${package}/bin" COMPONENT wheel
    LIBRARY DESTINATION "${package}/bin" COMPONENT wheel)
  install(FILES "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/gloo-traits.json" DESTINATION "${package}/bin"
    COMPONENT wheel)
  if(TARGET distgrad-nccl)
    install(TARGETS distgrad-nccl LIBRARY DESTINATION "${package}/bin" COMPONENT wheel OPTIONAL)
  endif()
  install(FILES "${DISTGRAD_COMPLETION}" COMPONENT wheel
    DESTINATION "${SKBUILD_DATA_DIR}/share/bash-completion/completions")
  # A wheel goes where Debian's libfmt is not, and finds torch from its own place; torch.cmake made
  # the list.
  install(FILES "$<TARGET_FILE:fmt::fmt>" RENAME "$<TARGET_SONAME_FILE_NAME:fmt::fmt>"
    DESTINATION "${package}/bin" COMPONENT wheel)
  set_target_properties(distgrad PROPERTIES INSTALL_RPATH "$ORIGIN")
  set_target_properties(distgrad-rank PROPERTIES INSTALL_RPATH "$ORIGIN;${DISTGRAD_WHEEL_RPATH}")
  set_target_properties(distgrad_rank PROPERTIES
    BUILD_RPATH "${DISTGRAD_TORCH_RPATH}" INSTALL_RPATH "$ORIGIN;${DISTGRAD_WHEEL_RPATH}")
endif()
