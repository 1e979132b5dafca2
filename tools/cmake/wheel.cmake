# What pip installs. Included first, in builds that scikit-build-core starts (it sets SKBUILD); the
# installed files are installation.cmake's.
#
# The python with torch is the one that builds, or the one that the environment variable
# DISTGRAD_PYTHON names.
if(NOT DISTGRAD_PYTHON)
  set(DISTGRAD_PYTHON "$ENV{DISTGRAD_PYTHON}")
endif()
if(NOT DISTGRAD_PYTHON)
  set(DISTGRAD_PYTHON "${Python_EXECUTABLE}")
endif()
if(NOT DISTGRAD_PYTHON)
  message(FATAL_ERROR "scikit-build-core did not say which python it is building for")
endif()
