# DISTGRAD_WHEEL_RPATH: where an installed distgrad-rank, in site-packages/distgrad/bin, finds torch.
#
# From its own place, as whatever pip installs into an environment comes to lie beside torch. Where
# the building python's torch lies elsewhere (an environment that sees the system's packages), its
# absolute path follows.
set(DISTGRAD_WHEEL_RPATH "")
foreach(folder IN LISTS DISTGRAD_TORCH_RPATH)
  file(RELATIVE_PATH below "${site_packages}" "${folder}")
  list(APPEND DISTGRAD_WHEEL_RPATH "$ORIGIN/../../${below}")
endforeach()
execute_process(
  COMMAND "${DISTGRAD_PYTHON}" -c "import sysconfig; print(sysconfig.get_path('platlib'))"
  OUTPUT_VARIABLE platlib OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
file(REAL_PATH "${platlib}" platlib)
file(REAL_PATH "${site_packages}" real_site_packages)
if(NOT platlib STREQUAL real_site_packages)
  list(APPEND DISTGRAD_WHEEL_RPATH ${DISTGRAD_TORCH_RPATH})
endif()
